"""What waits for a node whose store was begun anew, and what the journal knows of that."""

from __future__ import annotations

from typing import Any

import pytest

from meshq import abc
from meshq.broker import records
from meshq.broker.catalog._known_peers import NOWHERE
from meshq.errors import AddressFullError
from meshq.node._local_broker import LocalPeerQueues, LocalRemoteBindings
from meshq.wire import Binding, FrameType, header_of
from tests.broker.kit import House, make_core, make_house
from tests.broker.logs import FakeLog
from tests.broker.peers import peer_of

FORWARD = "$meshq.cluster.x"
#: What the other node calls its stores.
FIRST, SECOND, THIRD = (bytes([number]) * 16 for number in (1, 2, 3))


def theirs(*names: str, durable: bool = True) -> list[abc.RemoteQueue]:
    """The other node's queues, numbered from 1 on."""
    return [
        abc.RemoteQueue(
            number=number, name=name, address=f"at {name}", routing="multicast", consumers=1, durable=durable
        )
        for number, name in enumerate(names, 1)
    ]


class Sender:
    """A node with a link, over its lives."""

    def __init__(self) -> None:
        self.house = make_house(FakeLog())
        self.begin()

    def begin(self) -> None:
        self.routes, self.peers = LocalRemoteBindings(self.house.core), LocalPeerQueues(self.house.core)
        self.forward = self.peers.forwarding(FORWARD)
        self.routes.take_up(self.forward, "on_demand")

    def restart(self, upto: int | None = None) -> None:
        """A crash; ``upto``: what was placed after that position is lost."""
        log = self.house.log
        self.house = House(make_core(log.after_crash(upto), records=log.recovered(upto)))
        self.begin()

    def link(self, store: bytes, *names: str, **settings: Any) -> None:
        self.forward.detach()
        self.routes.replace(self.forward, "on_demand", theirs(*names, **settings), store)
        self.peers.met(self.forward, "tcp://there")

    def send(self, name: str, body: bytes) -> None:
        client = self.house.client()
        client.put(client.produce(f"at {name}"), body)
        self.house.rest()

    def given(self) -> list[tuple[int, tuple[int, ...]]]:
        """The number of each message that waits, and the numbers of the queues it is for."""
        found: list[abc.ForwardRun] = []
        self.forward.attach(found.append, 0)
        self.house.rest()
        self.forward.detach()
        return [(run.number + row * run.step, run.queues) for run in found for row in range(run.rows)]


def queues(given: list[tuple[int, tuple[int, ...]]]) -> list[int]:
    return [number for _, (number,) in given]


@pytest.mark.parametrize("restarts", [(), (0,), (1,), (0, 1, 2)])
def test_what_waits_is_for_the_queues_of_the_same_names_in_each_store(restarts: tuple[int, ...]) -> None:
    sender = Sender()
    sender.link(FIRST, "one", "two", "three")
    for name in ("one", "two", "three"):
        sender.send(name, b"of the first")
    if 0 in restarts:
        sender.restart()
    sender.link(SECOND, "three", "one")
    sender.send("one", b"of the second")
    if 1 in restarts:
        sender.restart()
    assert queues(sender.given()) == [2, NOWHERE, 1, 2]
    sender.link(THIRD, "two", "other", "one", "three")
    sender.send("other", b"of the third")
    if 2 in restarts:
        sender.restart()
    # What was nowhere once was for a queue that is no more.
    assert queues(sender.given()) == [3, NOWHERE, 4, 3, 2]
    sender.house.check()


def test_what_is_placed_and_not_on_the_disk_is_for_the_queue_of_its_name_too() -> None:
    sender = Sender()
    sender.link(FIRST, "one", "two")
    client = sender.house.client()
    channel = client.produce("at two")
    sender.house.auto = False
    client.put(channel, b"unsynced")
    assert sender.forward.waiting == 0
    sender.link(SECOND, "two", "one")
    sender.house.rest()
    assert queues(sender.given()) == [1]


def test_the_same_store_and_one_that_is_not_named_change_nothing() -> None:
    sender = Sender()
    sender.link(b"", "one", "two")
    sender.send("two", b"of an older one")
    # It is of a newer version by now, and has the numbers that it had.
    sender.link(FIRST, "one", "two")
    sender.restart()
    written = sender.house.log.last
    sender.link(FIRST, "one", "two")
    sender.link(b"", "one", "two")
    assert sender.house.log.last == written
    assert queues(sender.given()) == [2]


def test_a_crash_before_the_turn_is_written_leaves_everything_as_it_was() -> None:
    sender = Sender()
    sender.link(FIRST, "one", "two")
    sender.send("two", b"x")
    sender.house.log.sync()
    before = sender.house.log.last
    sender.link(SECOND, "two", "one")
    # What says the new numbers is there, and the record of the node that begins the turn isn't.
    sender.restart(before + 1)
    assert queues(sender.given()) == [2]
    sender.link(THIRD, "other", "more", "two")
    sender.restart()
    assert queues(sender.given()) == [3]


def test_a_crash_before_all_queues_are_written_takes_none_of_them_for_another() -> None:
    sender = Sender()
    sender.link(FIRST, "one", "two")
    sender.house.log.sync()
    sender.link(SECOND, "two", "one")
    written = [
        record.position
        for record in sender.house.log.records
        if record.kind == records.DEFINITION and records.decode_definition(record.payload).get("turn")
    ]
    # The record of the node, that of the first queue, that of the second.
    assert len(written) >= 3
    sender.restart(written[1])
    known = sender.house.core.definitions.peers.peers[sender.forward.number]
    assert [(number, one.kept["name"]) for number, one in known.queues.items()] == [(1, "two")]
    sender.restart()
    assert known.store == SECOND


def test_a_record_of_new_numbers_dies_once_nothing_waits_from_before() -> None:
    sender = Sender()
    sender.link(FIRST, "one", "two")
    sender.send("two", b"x")
    sender.link(SECOND, "two", "one")

    def kinds() -> list[str]:
        found = [record for record in sender.house.log.living() if record.kind == records.DEFINITION]
        return [records.decode_definition(record.payload)["kind"] for record in found]

    assert kinds().count("renumbered") == 1
    taken: list[abc.ForwardRun] = []
    sender.forward.attach(taken.append, 0)
    sender.house.rest()
    sender.forward.done(taken[0].tag, taken[0].tag)
    sender.link(SECOND, "two", "one")
    sender.send("one", b"y")
    assert kinds().count("renumbered") == 0


@pytest.mark.slow
def test_more_new_numbers_than_a_record_holds_are_said_by_several() -> None:
    sender = Sender()
    names = [f"n{number}" for number in range(1_000)]
    sender.link(FIRST, *names)
    for name in names:
        sender.send(name, b"x")
    sender.link(SECOND, *reversed(names))
    sender.restart()
    assert queues(sender.given()) == list(range(1_000, 0, -1))


@pytest.mark.parametrize("refused", [1, 2])
@pytest.mark.parametrize("restart", [True, False])
def test_without_room_for_the_new_numbers_the_record_of_the_node_waits_for_them(
    monkeypatch: pytest.MonkeyPatch, refused: int, restart: bool
) -> None:
    sender = Sender()
    names = [f"n{number}" for number in range(600)]
    sender.link(FIRST, *names)
    for name in names:
        sender.send(name, b"x")
    release_queue = type(sender.house.core.release_queue)
    write, asked = release_queue.write, []

    def full(self: Any, kind: int, *given: Any, **how: Any) -> int:
        asked.append(kind)
        if len(asked) >= refused:
            raise AddressFullError("the disk has no room")
        return write(self, kind, *given, **how)

    with monkeypatch.context() as patch:
        patch.setattr(release_queue, "write", full)
        sender.link(SECOND, *reversed(names))
    if restart:
        sender.send("n3", b"of the second")
        sender.restart()
        sender.link(SECOND, *reversed(names))
        # Which queue had which number is not known any more: they go by their addresses, and to no other queue.
        assert queues(sender.given()) == [NOWHERE] * 601
    else:
        # There is room by now.
        sender.peers.met(sender.forward, "tcp://elsewhere")
        sender.restart()
        assert queues(sender.given()) == list(range(600, 0, -1))


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("linked", [True, False])
def test_nobody_is_told_of_a_queue_whose_number_the_next_life_may_give_again(durable: bool, linked: bool) -> None:
    house = make_house(FakeLog())
    peer = peer_of(house)
    if linked:
        peer.open()
    house.auto = False
    house.core.definitions.create_queue("new", address=None, routing="anycast", durable=durable)
    # Nor ever of a link's own.
    house.core.definitions.forward_queue("$meshq.cluster.x")
    house.core.router.demand.changed(house.queue("new"))
    house.core.pending.run()
    if not linked:
        peer.open()
    assert not peer.all(FrameType.BINDING)
    house.rest()
    house.core.pending.run()
    (frame,) = peer.all(FrameType.BINDING)
    assert header_of(frame, Binding).name == "new"
    told = [one.type for one in peer.frames if one.type in (FrameType.BINDING, FrameType.SNAPSHOT)]
    expected = [FrameType.SNAPSHOT, FrameType.BINDING] if linked else [FrameType.BINDING, FrameType.SNAPSHOT]
    assert told == expected, "it is among all queues of the node"
