"""What another node may say to a core, and what it is told."""

from __future__ import annotations

import itertools

import pytest

from meshq import limits
from meshq.address import NOTIFICATIONS
from meshq.settings import AddressSettings
from meshq.wire import BY_NUMBER, COUNTER_MAX, Binding, Forward, FrameType, LinkOpening, header_of
from tests.broker.kit import House, RawClient, make_core, make_house, with_ids
from tests.broker.logs import FakeLog
from tests.broker.peers import LINK, RawPeer, bind, peer_of

OTHER_LINK = b"one more link 16"


def house_with_queue(log: FakeLog | None = None) -> House:
    house = make_house(log or FakeLog())
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    return house


def refusal(client: RawClient) -> str:
    return BY_NUMBER[client.good_bye().code].name


def all_bodies(house: House, name: str = "q") -> list[bytes]:
    client = house.client()
    found = client.bodies(client.consume(name))
    client.drop()
    return found


def test_a_link_begins_with_all_queues_and_an_end_of_them() -> None:
    house = house_with_queue()
    house.core.definitions.create_queue("n", address="news", routing="multicast", durable=False)
    house.core.definitions.forward_queue("$meshq.cluster.mesh.there")
    house.client().consume("q")
    peer = peer_of(house)
    channel = peer.open()
    kinds = [frame.type for frame in peer.frames if frame.channel == channel]
    assert kinds == [FrameType.BINDING, FrameType.BINDING, FrameType.SNAPSHOT]
    assert [(one.name, one.address, one.routing, one.consumers) for one in peer.bindings()] == [
        ("q", "q", "anycast", 1),
        ("n", "news", "multicast", 0),
    ]


def test_a_node_without_queues_says_so() -> None:
    peer = peer_of(make_house(FakeLog()))
    peer.open()
    assert len(peer.all(FrameType.SNAPSHOT)) == 1
    assert peer.bindings() == []


def test_a_queue_that_changes_is_described_as_it_is_at_the_end_of_the_turn() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    peer.open()
    del peer.frames[:]
    client = house.client()
    channel = client.consume("q")
    client.consume("q")
    client.leave(channel)
    client.call("create_queue", name="r")
    client.call("delete_queue", name="q")
    seen = [(one.queue, one.name, one.consumers, one.gone) for one in peer.bindings()]
    assert seen == [(1, "q", 1, False), (1, "q", 2, False), (1, "q", 1, False), (2, "r", 0, False), (1, "", 0, True)]


def test_a_store_and_forward_queue_is_described_to_nobody() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    peer.open()
    house.core.definitions.forward_queue("$meshq.cluster.mesh.there")
    house.core.pending.run()
    assert [one.name for one in peer.bindings()] == ["q"]


def test_a_queue_of_notifications_is_described_to_nobody() -> None:
    house = house_with_queue()
    early = peer_of(house)
    early.open()
    house.core.definitions.subscription(NOTIFICATIONS, "desk", kind="single", durable=True, filter=None)
    house.core.pending.run()
    late = peer_of(house)
    late.open()
    assert [[one.name for one in peer.bindings()] for peer in (early, late)] == [["q"], ["q"]]


@pytest.mark.slow
@pytest.mark.parametrize("length", [1_000, 20])
def test_a_queue_is_described_with_its_filters_as_long_as_a_header_holds_them(length: int) -> None:
    name, text = "q" * limits.ADDRESS_BYTES_MAX, "%s = '{:05d}'"
    text %= "a" * (length - len(text.format(0)) + 2)
    house = make_house(FakeLog())
    house.core.definitions.create_queue(name, address=None, routing="anycast", durable=True)
    house.core.router.queues[name].number = COUNTER_MAX
    client, told = house.client(), []
    for number in range(limits.HEADER_BYTES_MAX // length):
        client.consume(name, filter=text.format(number))
        peer = peer_of(house)
        peer.open()
        (frame,) = peer.all(FrameType.BINDING)
        assert len(frame.header) <= limits.HEADER_BYTES_MAX
        told.append(len(header_of(frame, Binding).filters))
        peer.drop()
    holds = (limits.HEADER_BYTES_MAX - 2 * len(name) - 256) // (length + 3)
    assert told == [count if count <= holds else 0 for count in range(1, len(told) + 1)]


@pytest.mark.parametrize("durable", [True, False])
def test_a_forwarded_run_is_stored_once_and_confirmed_each_time_it_comes(durable: bool) -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    for _ in range(3):
        peer.forward(channel, 1, b"1", b"2", b"3", durable=durable)
    assert peer.confirmed == [(channel, 3)] * 3
    assert house.queue().counts.added == 3


def test_of_a_run_that_is_known_in_part_the_rest_is_stored() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, b"1", b"2", b"3")
    peer.forward(channel, 2, b"2", b"3", b"4", b"5", number=2)
    assert all_bodies(house) == [b"1", b"2", b"3", b"4", b"5"]
    assert peer.confirmed == [(channel, 3), (channel, 5)]


def test_numbers_of_a_link_may_rise_by_more_than_one() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, b"1", b"4", b"7", step=3, stride=2)
    assert peer.confirmed == [(channel, 7)]
    peer.forward(channel, 4, b"4", b"7", b"10", b"13", step=3, stride=2, number=7)
    client = house.client()
    got = client.got(client.consume("q"))
    assert [(one.body, one.sequence, one.number) for one in got] == [
        (b"1", 1, 1),
        (b"4", 2, 7),
        (b"7", 3, 13),
        (b"10", 4, 19),
        (b"13", 5, 25),
    ]


def test_a_run_that_comes_in_another_session_or_life_is_known_by_the_links_number() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    peer.forward(peer.open(), 1, b"1", b"2")
    again = peer_of(house)
    again.forward(again.open(), 1, b"1", b"2")
    assert house.queue().counts.added == 2
    log = house.log.after_crash()
    later = make_house(log, records=log.recovered())
    once_more = peer_of(later)
    channel = once_more.open()
    once_more.forward(channel, 2, b"2", b"3", number=2)
    assert once_more.confirmed == [(channel, 3)]
    assert all_bodies(later) == [b"1", b"2", b"3"]


def test_a_run_that_comes_over_another_link_is_another_one() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    for link in (LINK, OTHER_LINK):
        peer.forward(peer.open(link), 1, b"1")
    assert house.queue().counts.added == 2


def test_a_message_that_comes_back_is_no_duplicate() -> None:
    # A to B to A to B: the same producer, number and duplicate id each time, and a new number of the link.
    here, there = house_with_queue(), house_with_queue()
    sender = here.client()
    sender.put(sender.produce("q"), b"x", envelopes=with_ids("the id"))
    peers = {id(house): peer_of(house) for house in (here, there)}
    channels = {key: peer.open() for key, peer in peers.items()}
    numbers = {key: itertools.count(1) for key in peers}
    for house in (there, here, there):
        key = id(house)
        peers[key].forward(channels[key], next(numbers[key]), b"x", envelopes=with_ids("the id"))
    assert (here.queue().counts.added, there.queue().counts.added) == (2, 2)
    assert here.core.ingress.duplicates == there.core.ingress.duplicates == 0
    # A client's repeat is one all the same, there and here.
    again = here.client()
    again.put(again.produce("q", b"another producer"), b"x", envelopes=with_ids("the id"))
    assert (here.queue().counts.added, here.core.ingress.duplicates) == (2, 1)


def test_the_ids_of_a_forwarded_run_are_unknown_after_a_restart_too() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    peer.forward(peer.open(), 1, b"x", envelopes=with_ids("the id"))
    log = house.log.after_crash()
    later = make_house(log, records=log.recovered())
    client = later.client()
    client.put(client.produce("q"), b"x", envelopes=with_ids("the id"))
    assert later.queue().counts.added == 2


def test_what_is_for_a_queue_that_is_gone_is_routed_by_its_address() -> None:
    house = make_house(FakeLog())
    for name in ("one", "two", "three"):
        house.core.definitions.create_queue(name, address="work", routing="anycast", durable=True)
    peer = peer_of(house)
    channel = peer.open()
    house.client().call("delete_queue", name="one")
    peer.forward(channel, 1, b"1", b"2", b"3", queues=(1,), address="work")
    assert sorted(all_bodies(house, "two") + all_bodies(house, "three")) == [b"1", b"2", b"3"]
    assert house.core.ingress.unrouted == 0
    assert peer.confirmed == [(channel, 3)]


def test_what_is_for_a_queue_that_is_gone_makes_the_queue_of_its_address_if_that_is_allowed() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    house.client().call("delete_queue", name="q")
    peer.forward(channel, 1, b"1")
    assert house.queue().number == 2
    assert all_bodies(house) == [b"1"]


@pytest.mark.parametrize("makes", [True, False])
def test_what_is_for_a_queue_that_is_gone_goes_where_other_nodes_have_one(*, makes: bool) -> None:
    house = make_house(FakeLog(), settings={"#": AddressSettings(auto_create_queues=makes)})
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    there = bind(house, consumers=0)
    peer = peer_of(house)
    channel = peer.open()
    house.client().call("delete_queue", name="q")
    assert "q" in house.core.router.addresses and "q" not in house.core.router.queues
    peer.forward(channel, 1, b"1", b"2", b"3")
    peer.forward(channel, 2, b"2", b"3")
    assert peer.confirmed == [(channel, 3), (channel, 3)]
    assert (there.counts.ready, house.core.ingress.unrouted) == (3, 0)
    later = make_house(records=house.log.recovered())
    assert (later.queue(there.name).counts.ready, later.core.ingress.unrouted) == (3, 0)
    later.check()


def test_what_is_for_nobody_and_may_make_no_queue_is_counted_as_unrouted_and_the_link_goes_on() -> None:
    house = make_house(FakeLog(), settings={"#": AddressSettings(auto_create_queues=False)})
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    house.core.definitions.create_queue("r", address=None, routing="anycast", durable=True)
    peer = peer_of(house)
    channel = peer.open()
    house.client().call("delete_queue", name="q")
    peer.forward(channel, 1, b"1", b"2")
    peer.forward(channel, 3, b"3", queues=(9,), address="never heard of")
    peer.forward(channel, 4, b"4", queues=(2,), address="r")
    assert not peer.all_closed()
    assert peer.confirmed == [(channel, 2), (channel, 3), (channel, 4)]
    assert house.core.ingress.unrouted == 3
    assert all_bodies(house, "r") == [b"4"]


def test_what_a_multicast_queue_should_have_goes_with_it_and_to_no_other_queue() -> None:
    house = make_house(FakeLog())
    for name in ("one", "two", "three"):
        house.core.definitions.create_queue(name, address="news", routing="multicast", durable=True)
    peer = peer_of(house)
    channel = peer.open()
    house.client().call("delete_queue", name="one")
    # The share of "two" has gone to another node's queue of that name.
    peer.forward(channel, 1, b"1", queues=(1, 3), address="news")
    peer.forward(channel, 2, b"2", queues=(1,), address="news")
    assert (all_bodies(house, "two"), all_bodies(house, "three")) == ([], [b"1"])
    assert house.core.ingress.unrouted == 1


def test_a_queue_that_is_named_twice_gets_a_message_once() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    peer.forward(peer.open(), 1, b"1", queues=(1, 1))
    assert all_bodies(house) == [b"1"]


def test_a_number_of_a_queue_on_another_address_is_no_way_into_it() -> None:
    house = house_with_queue()
    house.core.definitions.create_queue("secret", address=None, routing="anycast", durable=True)
    peer = peer_of(house)
    peer.forward(peer.open(), 1, b"1", queues=(2,), address="q")
    assert (all_bodies(house, "secret"), all_bodies(house)) == ([], [b"1"])


@pytest.mark.parametrize(
    ("first", "changed"),
    [
        (0, {}),
        (1, {"queues": ()}),
        (1, {"step": 0}),
        (1, {"stride": 0}),
        (1, {"step": 2**16}),
        (1, {"step": 2**8, "stride": 2**8}),
        (COUNTER_MAX, {}),
        (1, {"number": COUNTER_MAX}),
        (1, {"address": ""}),
        (1, {"address": "a\nb"}),
        (1, {"address": "a::b"}),
        (1, {"address": "$meshq.cluster.mesh.there", "queues": (2,)}),
    ],
)
def test_a_run_with_wrong_numbers_or_names_breaks_the_protocol(first: int, changed: dict[str, object]) -> None:
    house = house_with_queue()
    house.core.definitions.forward_queue("$meshq.cluster.mesh.there")
    peer = peer_of(house)
    peer.forward(peer.open(), first, b"1", b"2", **changed)  # type: ignore[arg-type]
    assert refusal(peer) == "bad_header"
    assert [queue.counts.added for queue in house.core.router.queues.values()] == [0, 0]
    assert house.sessions.by_number == {}


def test_queues_may_be_named_in_parts_and_the_run_is_stored_once_all_are() -> None:
    house = make_house(FakeLog())
    for number in range(1, 6):
        house.core.definitions.create_queue(f"n{number}", address="news", routing="multicast", durable=True)
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, b"1", b"2", queues=(1, 2), address="news", more=True)
    peer.forward(channel, 1, b"1", b"2", queues=(3, 4), address="news", more=True)
    assert (peer.confirmed, house.queue("n1").counts.added) == ([], 0)
    peer.forward(channel, 1, b"1", b"2", queues=(5,), address="news")
    assert peer.confirmed == [(channel, 2)]
    assert [house.queue(f"n{number}").counts.added for number in range(1, 6)] == [2] * 5
    # Another session begins again with the first part.
    peer.forward(channel, 3, b"3", queues=(1,), address="news", more=True, number=3)
    again = peer_of(house)
    channel = again.open()
    again.forward(channel, 3, b"3", queues=(1,), address="news", more=True, number=3)
    again.forward(channel, 3, b"3", queues=(2,), address="news", number=3)
    assert [house.queue(f"n{number}").counts.added for number in range(1, 6)] == [3, 3, 2, 2, 2]


@pytest.mark.parametrize(("first", "bodies"), [(3, (b"1", b"2")), (1, (b"1",))])
def test_between_the_parts_of_a_run_nothing_else_comes(first: int, bodies: tuple[bytes, ...]) -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, b"1", b"2", more=True)
    peer.forward(channel, first, *bodies)
    assert refusal(peer) == "bad_number"
    assert house.queue().counts.added == 0


@pytest.mark.parametrize("named", [2, 3])
def test_a_run_is_for_no_more_queues_than_an_address_has(named: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "ALL_QUEUES_PER_ADDRESS_MAX", 2)
    peer = peer_of(house_with_queue())
    channel = peer.open()
    for queue in range(1, named):
        peer.forward(channel, 1, b"1", queues=(queue,), more=True)
    if named > 2:
        peer.forward(channel, 1, b"1", queues=(named,))
        assert refusal(peer) == "bad_number"
    else:
        peer.forward(channel, 1, b"1", queues=(named,))
        assert peer.confirmed == [(channel, 1)]


def test_a_link_is_opened_once_on_its_channel() -> None:
    peer = peer_of(house_with_queue())
    peer.open()
    peer.channels -= 1
    peer.open()
    assert refusal(peer) == "bad_channel"


def test_a_link_has_a_name() -> None:
    peer = peer_of(house_with_queue())
    peer.open(bytes(16))
    assert refusal(peer) == "bad_header"


def test_a_run_on_no_link_breaks_the_protocol() -> None:
    peer = peer_of(house_with_queue())
    peer.forward(3, 1, b"1")
    assert refusal(peer) == "bad_channel"


@pytest.mark.parametrize("frame_type", [FrameType.LINK, FrameType.FORWARD])
def test_a_client_is_not_a_node(frame_type: FrameType) -> None:
    house = house_with_queue()
    client = house.client()
    header = (
        LinkOpening(link=LINK, node_id=LINK, instance=LINK, node_name="x")
        if frame_type is FrameType.LINK
        else Forward(address="q", producer=LINK, number=1, queues=(1,))
    )
    client.send(frame_type, header, channel=1, first=1)
    assert refusal(client) == "illegal_frame"
    assert house.queue().counts.added == 0


def test_what_the_disk_has_no_room_for_comes_again_in_another_session() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    peer.forward(channel, 1, b"1")
    house.log.full = True
    peer.forward(channel, 2, b"2", number=2)
    assert peer.all_closed()
    house.log.full = False
    # Its frame was counted as received: whoever resumed would go on behind it.
    assert not peer.resume().resumed
    peer.channels = 0
    again = peer.open()
    peer.forward(again, 2, b"2", b"3", number=2)
    assert all_bodies(house) == [b"1", b"2", b"3"]


def test_a_node_that_sends_more_than_it_was_granted_breaks_the_protocol() -> None:
    house = House(make_core(FakeLog(), memory=1 << 20))
    house.core.definitions.create_queue("q", address=None, routing="anycast", durable=True)
    peer = peer_of(house)
    channel = peer.open()
    stored = 0
    while not peer.closed:
        stored += 1
        assert stored < 100, "whatever it sends is taken"
        granted = house.core.memory.limit_bytes > house.core.memory.used_bytes
        peer.forward(channel, stored, bytes(100_000), number=stored)
    assert refusal(peer) == "no_credit"
    assert not granted
    assert house.queue().counts.added == stored - 1


def test_a_node_that_sends_on_as_it_was_granted_is_granted_more() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    reader = house.client()
    found = reader.consume("q")
    for number in range(1, 101):
        peer.forward(channel, number, bytes(100_000), number=number)
        reader.settle(found, (number, number))
    assert peer.confirmed[-1] == (channel, 100)
    assert house.core.memory.reserved_bytes >= 0


def test_what_comes_on_a_link_that_has_begun_anew_is_left_to_the_new_one() -> None:
    house = house_with_queue()
    old, new = peer_of(house), peer_of(house)
    before = old.open()
    channel = new.open()
    old.forward(before, 1, b"old")
    assert (old.confirmed, old.closed, house.queue().counts.added) == ([], False, 0)
    new.forward(channel, 1, b"new")
    assert new.confirmed == [(channel, 1)]
    assert all_bodies(house) == [b"new"]


def test_a_node_that_stops_neither_confirms_nor_refuses_what_comes() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    channel = peer.open()
    house.core.closing.begin("it stops")
    peer.forward(channel, 1, b"1")
    assert (peer.confirmed, house.queue().counts.added) == ([], 0)


def test_two_nodes_of_one_id_are_both_named() -> None:
    house = house_with_queue()
    peer = peer_of(house)
    peer.open(node_id=b"n" * 16, connector="tcp://elsewhere:1")
    assert refusal(peer) == "duplicate_node"
    for word in ("'node'", "'there'", "tcp://elsewhere:1"):
        assert word in peer.good_bye().text
    assert [one.node_name for one in house.host.strangers] == ["there"]


def test_a_peer_is_a_client_too() -> None:
    house = house_with_queue()
    peer: RawPeer = peer_of(house)
    peer.put(peer.produce("q"), b"x")
    assert house.queue().counts.added == 1
