"""Queues that take only some messages: what each gets, what is stored of it, and what survives."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.broker import Core
from meshq.errors import DamagedError, UsageError
from meshq.selector import parse_filter
from meshq.store import JournalRecord
from meshq.wire import BY_NAME, KIND_PROPERTIES, Envelope, encode_map
from tests.broker.kit import PRODUCER, FakeLog, House, make_core, make_house, with_ids
from tests.broker.peers import RawPeer

#: By the length of their bodies.
SHORT, LONG = "size < 3", "size >= 3"


def queue(core: Core, name: str, filter: str | None = None, routing: str = "multicast", address: str = "news") -> None:
    condition = parse_filter(filter) if filter else None
    core.definitions.create_queue(name, address=address, routing=routing, durable=True, filter=condition)


def again(house: House) -> House:
    return House(make_core(house.log.after_crash(), records=house.log.recovered()))


def contents(house: House) -> dict[str, list[bytes]]:
    """What is in every queue."""
    client = house.client()
    return {name: client.bodies(client.consume(name)) for name in list(house.core.router.queues)}


def test_each_queue_gets_what_it_takes_and_what_none_takes_is_counted() -> None:
    house = make_house(FakeLog())
    queue(house.core, "short", SHORT)
    queue(house.core, "x", "size = 5")
    client = house.client()
    channel = client.produce("news")
    client.put(channel, b"1", b"long", b"2", b"longer", b"12345")
    client.put(channel, b"long again")
    assert client.confirmed == [(channel, 5), (channel, 6)]
    assert house.core.ingress.unrouted == 3
    # Numbers of a queue have no gaps.
    assert (house.queue("short").last, house.queue("x").last) == (2, 1)
    house = again(house)
    assert contents(house) == {"short": [b"1", b"2"], "x": [b"12345"]}
    assert house.queue("short").spec.filter == parse_filter(SHORT)
    house.check()


def test_an_anycast_message_goes_to_one_of_those_that_take_it_and_settled_ones_stay_so() -> None:
    house = make_house(FakeLog())
    for name, text in (("a", SHORT), ("b", LONG), ("c", None)):
        queue(house.core, name, text, "anycast", "work")
    client = house.client()
    sent = [b"%d" % number if number % 2 else b"long %d" % number for number in range(12)]
    client.put(client.produce("work"), *sent)
    channels = {name: client.consume(name) for name in "abc"}
    got = {name: client.bodies(channel) for name, channel in channels.items()}
    assert sorted(body for bodies in got.values() for body in bodies) == sorted(sent)
    assert all(len(body) < 3 for body in got["a"]) and all(len(body) >= 3 for body in got["b"])
    assert all(got.values())
    for channel in channels.values():
        client.settle(channel, (1, 1))
    house = again(house)
    left = contents(house)
    assert left == {name: bodies[1:] for name, bodies in got.items()}
    house.check()


def test_one_queue_of_an_address_by_name_takes_what_it_takes() -> None:
    house = make_house(FakeLog())
    queue(house.core, "short", SHORT)
    client = house.client()
    client.put(client.produce("news::short"), b"1", b"long")
    client.put(client.produce("news::short", b"other-----------"), b"long")
    assert contents(house) == {"short": [b"1"]} and house.core.ingress.unrouted == 2


@pytest.mark.parametrize("crash", [False, True])
def test_what_no_queue_took_is_no_repeat_when_it_is_sent_again(crash: bool) -> None:
    house = make_house(FakeLog())
    queue(house.core, "short", SHORT)
    envelopes = with_ids("a", "b", "c")
    client = house.client()
    client.put(client.produce("news"), b"1", b"long", b"2", envelopes=envelopes)
    queue(house.core, "long", LONG)
    if crash:
        house = again(house)
        client = house.client()
    client.put(client.produce("news", PRODUCER[::-1]), b"1", b"long", b"2", envelopes=envelopes)
    assert house.core.ingress.duplicates == 2
    assert contents(house) == {"short": [b"1", b"2"], "long": [b"long"]}
    house = again(house)
    client = house.client()
    client.put(client.produce("news", b"third producer 1"), b"1", b"long", b"2", envelopes=envelopes)
    assert house.core.ingress.duplicates == 3


def test_a_queue_keeps_its_filter_and_another_one_is_refused() -> None:
    house = make_house(FakeLog())
    queue(house.core, "short", SHORT)
    queue(house.core, "all")
    house = again(house)
    client = house.client()
    for name, other in (("short", LONG), ("short", None), ("all", SHORT)):
        with pytest.raises(UsageError, match="exists with filter="):
            queue(house.core, name, other)
    queue(house.core, "short", f" {SHORT} ")
    assert client.call("create_queue", name="short", address="news", routing="multicast", filter=SHORT) is not None
    client.call("create_queue", name="x", filter="size = = 1")
    assert client.code == BY_NAME["bad_filter"].number
    client.call("create_queue", name="$meshq.x", filter=SHORT)
    assert client.code == BY_NAME["usage"].number
    found = client.call("queue", name="short")
    assert found is not None and found["filter"] == SHORT


def test_an_address_has_so_many_queues_with_filters(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILTERED_QUEUES_PER_ADDRESS_MAX", 1)
    core = make_core()
    queue(core, "short", SHORT)
    with pytest.raises(UsageError, match="has its 1 queues with filters"):
        queue(core, "long", LONG)
    queue(core, "all")
    core.remove(core.router.queues["short"])
    queue(core, "long", LONG)


@pytest.mark.slow
def test_the_record_of_a_run_has_room_for_every_other_message_in_every_queue_with_a_filter() -> None:
    house = make_house(FakeLog())
    queue(house.core, "all")
    for number in range(limits.FILTERED_QUEUES_PER_ADDRESS_MAX):
        # Rows of no common distance, so that each two are a part of their own.
        queue(house.core, f"q{number}", f"a <> {number + 1} AND a IN (0, 1, 3, 4, 6, 7, 9, 10)")
    client = house.client()
    envelopes = [Envelope(KIND_PROPERTIES | 4 << 8, b"", b"", encode_map({"a": number % 11})) for number in range(256)]
    client.put(client.produce("news"), *[b"x"] * 256, envelopes=envelopes)
    assert client.confirmed and len(house.log.records[-1].payload) < limits.RECORD_BYTES_MAX - limits.BODY_BYTES_MAX
    house = again(house)
    assert house.queue("all").counts.added == 256 and house.queue("q300").counts.added > 180


def test_a_filter_in_the_journal_that_is_none_is_damage() -> None:
    house = make_house(FakeLog())
    queue(house.core, "short", "size < 3")
    records = [
        JournalRecord(record.position, record.kind, record.payload.replace(b"size < 3", b"size <<3"))
        for record in house.log.recovered()
    ]
    with pytest.raises(DamagedError, match="a filter that can be read"):
        make_core(records=records)


def test_what_another_node_deals_to_a_queue_that_does_not_take_it_is_counted() -> None:
    house = make_house(FakeLog())
    queue(house.core, "q", SHORT, "anycast", "q")
    peer = RawPeer(house)
    peer.shake()
    channel = peer.open()
    peer.forward(channel, 1, b"1", b"long", b"2", queues=[house.queue("q").number])
    peer.forward(channel, 4, b"long", queues=[house.queue("q").number])
    # A queue that is gone: by the address, and what the queues there take.
    peer.forward(channel, 5, b"long", b"3", queues=[99])
    assert contents(house) == {"q": [b"1", b"2", b"3"]}
    assert house.core.ingress.unrouted == 3 and house.core.ingress.links
    house.check()
