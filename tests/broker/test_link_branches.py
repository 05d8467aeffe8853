"""Branches of links and credits of addresses, at the node to which a link leads: frames in, frames and records out."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.broker.ingress._link_branches import branch_name
from meshq.broker.records import (
    BRANCHES,
    ROUTED,
    SETTLED,
    BranchesRecord,
    BranchMark,
    decode_branches,
    encode_branches,
)
from meshq.errors import DamagedError
from meshq.settings import AddressSettings
from meshq.wire import BY_NUMBER, AddressCredit, BranchChange, Call, Close, FrameType, header_of
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.peers import RawPeer, peer_of

BOUND = {"full_policy": "block", "max_size_messages": 4}


def house_with(log: FakeLog | None = None, *queues: str, **settings: object) -> House:
    house = make_house(log or FakeLog(), settings={"q": AddressSettings(**settings)} if settings else {})
    for queue in queues or ("q", "r"):
        if queue not in house.core.router.queues:
            house.core.definitions.create_queue(queue, address=None, routing="anycast", durable=True)
    return house


def credits(peer: RawPeer) -> list[tuple[str, int, int]]:
    """The credits that were told: address, number, and how many messages may come in all."""
    frames = peer.all(FrameType.ADDRESS_CREDIT)
    told = [(header_of(frame, AddressCredit), frame.first) for frame in frames]
    return [(header.address, header.number, until) for header, until in told]


def marks(peer: RawPeer) -> list[tuple[str, int]]:
    return [(header_of(frame, BranchChange).address, frame.first) for frame in peer.all(FrameType.BRANCH)]


def bodies(house: House, queue: str) -> list[bytes]:
    client = house.client()
    found = client.bodies(client.consume(queue))
    client.drop()
    return found


def next_life(house: House) -> House:
    log = house.log.after_crash()
    return make_house(log, records=log.recovered())


# -- credits


@pytest.mark.parametrize("policy", ["block", "fail"])
def test_a_link_is_told_how_much_a_bounded_address_takes_before_the_snapshot_ends(policy: str) -> None:
    house = house_with(full_policy=policy, max_size_messages=4)
    peer = peer_of(house)
    channel = peer.open(bounded=True)
    assert credits(peer) == [("q", 1, 1)]
    kinds = [frame.type for frame in peer.frames if frame.channel == channel]
    assert kinds.index(FrameType.ADDRESS_CREDIT) < kinds.index(FrameType.SNAPSHOT)
    for number in range(1, 4):
        peer.forward(channel, number, b"%d" % number, credit=1)
    assert [until for _, _, until in credits(peer)] == [1, 2, 3, 4]
    peer.forward(channel, 4, b"4", credit=1)
    # Full; and what is taken makes room.
    assert [until for _, _, until in credits(peer)] == [1, 2, 3, 4]
    client = house.client()
    client.settle(client.consume("q"), (1, 2))
    assert credits(peer)[-1][2] > 4


@pytest.mark.parametrize("policy", ["page", "drop"])
def test_what_pages_or_drops_grants_everything(policy: str) -> None:
    house = house_with(full_policy=policy, max_size_messages=4)
    peer = peer_of(house)
    peer.open(bounded=True)
    assert [until for _, _, until in credits(peer)] in ([], [2**63 - 1])


def test_a_link_that_does_not_keep_to_credits_is_told_of_none() -> None:
    house = house_with(**BOUND)
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, *[b"x"] * 10)
    assert credits(peer) == [] and len(bodies(house, "q")) == 10


def test_a_run_without_the_number_of_the_credit_is_not_counted() -> None:
    house = house_with(**BOUND)
    peer = peer_of(house)
    channel = peer.open(bounded=True)
    peer.forward(channel, 1, b"1")
    peer.forward(channel, 2, b"2", credit=7)
    assert credits(peer) == [("q", 1, 1)]


def test_a_session_that_ends_gives_its_credit_back() -> None:
    house = house_with(**BOUND)
    peer = peer_of(house)
    peer.open(bounded=True)
    quota = house.core.router.quotas["q"]
    assert not quota.idle and quota.waiting == 0
    peer.send(FrameType.CLOSE, Close(code=0))
    assert quota.idle


def test_a_link_that_is_read_in_another_session_gives_its_credit_back() -> None:
    house = house_with(full_policy="block", max_size_messages=8)
    old, new = peer_of(house), peer_of(house)
    old.open(bounded=True)
    (first,) = credits(old)
    new.open(bounded=True)
    # As much as the old session was told, which can send nothing any more.
    assert credits(new) == [first]
    old.send(FrameType.CLOSE, Close(code=0))
    new.send(FrameType.CLOSE, Close(code=0))
    assert house.core.router.quotas["q"].idle


def test_an_address_that_goes_and_comes_again_is_told_with_another_credit() -> None:
    house = house_with(auto_delete_queues=True, **BOUND)
    house.client().call("delete_queue", name="q")
    peer = peer_of(house)
    peer.open(bounded=True)
    address = house.core.router.addresses["q"]
    assert credits(peer) == [("q", 1, 1)]
    house.core.router.remove_address(address)
    house.rest()
    peer.request(FrameType.CALL, Call(operation="flush"))
    assert credits(peer)[-1] == ("q", 0, 0) and "q" not in house.core.router.quotas
    house.client().call("create_queue", name="q")
    assert credits(peer)[-1] == ("q", 2, 1)


# -- branches


def test_a_branch_has_a_mark_of_its_own() -> None:
    house = house_with()
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, b"q1")
    peer.branch(channel)
    # Number 2 waits at the sender; 3 overtakes it.
    peer.forward(channel, 3, b"r3", queues=(2,), address="r")
    peer.forward(channel, 2, b"q2", branch=True)
    # Both come again.
    peer.forward(channel, 3, b"r3", queues=(2,), address="r")
    peer.forward(channel, 2, b"q2", branch=True)
    assert (bodies(house, "q"), bodies(house, "r")) == ([b"q1", b"q2"], [b"r3"])


@pytest.mark.parametrize("cut", range(9))
def test_whatever_a_crash_leaves_what_waits_is_not_taken_for_stored(cut: int) -> None:
    """Nothing that has overtaken is there without the record of the branch."""
    house = house_with()
    house.log.sync()
    house.auto = False
    peer = peer_of(house)
    channel = peer.open()
    steps = [
        lambda: peer.forward(channel, 1, b"q1"),
        lambda: peer.branch(channel),
        lambda: peer.forward(channel, 3, b"r3", queues=(2,), address="r"),
        lambda: peer.forward(channel, 2, b"q2", branch=True),
        lambda: peer.forward(channel, 5, b"r5", queues=(2,), address="r"),
        lambda: peer.forward(channel, 4, b"q4", branch=True),
        lambda: peer.branch(channel, ended=True),
        lambda: peer.forward(channel, 6, b"q6"),
    ]
    for step in steps:
        step()
    cuts = house.log.cuts()
    last = cuts[min(cut, len(cuts) - 1)]
    later = make_house(house.log.after_crash(last), records=house.log.recovered(last))
    again = peer_of(later)
    channel = again.open(bounded=True)
    known = dict(marks(again))
    # The sender begins the branch anew if it is not known, and gives all of it again.
    if "q" not in known:
        again.branch(channel)
    for number, body in ((1, b"q1"), (2, b"q2"), (4, b"q4"), (6, b"q6")):
        if number > known.get("q", 0):
            again.forward(channel, number, body, branch=True)
    for number in (3, 5):
        again.forward(channel, number, b"r%d" % number, queues=(2,), address="r")
    assert bodies(later, "q") == [b"q1", b"q2", b"q4", b"q6"] and bodies(later, "r") == [b"r3", b"r5"]


def test_the_marks_of_branches_stay_when_their_runs_and_their_segments_are_gone() -> None:
    house = house_with()
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, b"1")
    peer.branch(channel)
    peer.branch(channel, "r")
    peer.forward(channel, 3, b"3", branch=True)
    house.log.sync()
    house.log.checkpoint(house.core.checkpoint())
    house.log.sync()
    log = house.log.after_crash()
    records = [record for record in log.recovered() if record.kind not in (ROUTED, SETTLED)]
    later = make_house(log, records=records)
    again = peer_of(later)
    again.open(bounded=True)
    assert marks(again) == [("q", 3), ("r", 1)]


def test_a_branch_that_has_ended_is_gone_in_the_next_life() -> None:
    house = house_with()
    peer = peer_of(house)
    channel = peer.open()
    peer.branch(channel)
    peer.forward(channel, 3, b"3", branch=True)
    house.log.checkpoint(house.core.checkpoint())
    peer.branch(channel, ended=True)
    house.log.sync()
    later = next_life(house)
    again = peer_of(later)
    channel = again.open(bounded=True)
    assert marks(again) == [] and decode_branches(dict(later.core.checkpoint())[BRANCHES]) == BranchesRecord((), True)
    # The number of the branch is forgotten with it.
    assert len(later.core.ingress.links) == 0


def test_a_run_over_a_branch_that_was_not_begun_and_more_branches_than_allowed_are_refused() -> None:
    house = house_with()
    peer = peer_of(house)
    peer.forward(peer.open(), 1, b"1", branch=True)
    assert BY_NUMBER[peer.good_bye().code].name == "bad_header"
    peer = peer_of(house)
    channel = peer.open()
    for number in range(limits.LINK_BRANCHES_MAX):
        peer.branch(channel, f"a{number}")
        peer.branch(channel, f"a{number}")
    peer.branch(channel, "one.more")
    assert BY_NUMBER[peer.good_bye().code].name == "bad_header"


def test_a_peer_that_knows_no_branches_does_not_open_a_link_that_has_some() -> None:
    """By the link's mark it would take what waits in a branch for stored."""
    house = house_with()
    peer = peer_of(house)
    channel = peer.open()
    peer.branch(channel)
    older = peer_of(house)
    older.open(bounded=False)
    assert BY_NUMBER[older.good_bye().code].name == "bad_header"
    # With the end of the branch there is nothing that it has to know.
    peer.branch(channel, ended=True)
    older = peer_of(house)
    older.open(bounded=False)
    assert not older.all(FrameType.CLOSE)


def test_no_link_has_the_name_of_a_branch() -> None:
    peer = peer_of(house_with())
    peer.open(branch_name(b"1" * 16, "q"))
    assert BY_NUMBER[peer.good_bye().code].name == "bad_header"


@pytest.mark.parametrize("address", ["", "$meshq.own", "a::b"])
def test_a_branch_of_no_address_is_refused(address: str) -> None:
    peer = peer_of(house_with())
    peer.branch(peer.open(), address)
    assert BY_NUMBER[peer.good_bye().code].name == "bad_header"


def test_what_is_written_of_branches_is_what_is_read_and_nothing_else_is() -> None:
    marks = (BranchMark(b"l" * 16, "ä", 7), BranchMark(b"m" * 16, "q", 2**63 - 1))
    for record in (BranchesRecord(marks, True), BranchesRecord((), False)):
        assert decode_branches(encode_branches(record)) == record
    good = encode_branches(BranchesRecord(marks, False))
    for damaged in (b"", b"\2", good[:-1], good + b"x", good[:27] + b"\xff" + good[28:]):
        with pytest.raises(DamagedError, match="a readable branches record"):
            decode_branches(damaged)


@pytest.mark.parametrize("ended", [False, True])
def test_a_change_of_a_branch_that_the_disk_has_no_room_for_is_told_again_in_another_session(ended: bool) -> None:
    """Its frame was counted as received: whoever resumed would go on behind it, and what overtakes would be stored."""
    house = house_with()
    peer = peer_of(house)
    channel = peer.open()
    if ended:
        peer.branch(channel)
    house.log.full = True
    peer.branch(channel, ended=ended)
    assert peer.all_closed()
    house.log.full = False
    assert not peer.resume().resumed
    peer.channels = 0
    peer.open(bounded=True)
    assert marks(peer) == ([("q", 0)] if ended else [])


def test_a_node_that_stops_neither_begins_a_branch_nor_calls_its_runs_wrong() -> None:
    house = house_with()
    peer = peer_of(house)
    channel = peer.open(bounded=True)
    house.core.closing.begin("it stops")
    peer.branch(channel)
    peer.forward(channel, 1, b"1", branch=True)
    assert not peer.all(FrameType.CLOSE) and peer.confirmed == []
    assert house.queue().counts.added == 0
