"""Messages that are not due yet: stored, counted, seen by nobody; visible at their time, in this life or the next."""

from __future__ import annotations

import pytest

from meshq.broker.records import DUE, decode_due
from meshq.wire import KIND_CONTROL, KIND_HEADERS, Envelope, encode_map
from tests.broker.kit import House, RawClient, make_house
from tests.broker.logs import FakeLog

START = 1_000_000


class WallClock:
    """The wall clock, ms."""

    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> int:
        return self.now

    def move(self, house: House, ms: int) -> None:
        """It is later, and the node has noticed."""
        self.now += ms
        while house.core.clock_moved():
            pass
        house.after_frame()


def late(*delays_ms: int, priority: int = 4) -> list[Envelope]:
    """Envelopes of messages with these delays; 0: none."""
    return [
        Envelope(
            priority << 8 | (KIND_CONTROL | KIND_HEADERS if delay else 0),
            b"",
            encode_map({"d": delay}) if delay else b"",
            b"",
        )
        for delay in delays_ms
    ]


@pytest.fixture
def wall() -> WallClock:
    return WallClock()


def house_of(wall: WallClock, log: FakeLog | None) -> House:
    return make_house(log, now_ms=wall)


def next_life(house: House, wall: WallClock) -> House:
    log = house.log.after_crash()
    return make_house(log, records=log.recovered(), now_ms=wall)


def open_both(house: House) -> tuple[RawClient, int, int]:
    client = house.client()
    return client, client.produce(), client.consume()


@pytest.mark.parametrize("durable", [True, False])
def test_a_message_is_seen_when_its_delay_is_over_and_not_before(wall: WallClock, durable: bool) -> None:
    house = house_of(wall, FakeLog())
    client, sender, reader = open_both(house)
    client.put(sender, b"later", envelopes=late(500), durable=durable)
    assert client.confirmed == [(sender, 1)]
    wall.move(house, 499)
    assert client.bodies(reader) == []
    statistics = client.call("queue", name="q")
    assert statistics is not None and (statistics["scheduled"], statistics["ready"]) == (1, 0)
    wall.move(house, 1)
    assert client.bodies(reader) == [b"later"]
    house.check()


def test_messages_of_one_frame_wait_each_for_its_own_time_and_those_without_for_none(wall: WallClock) -> None:
    house = house_of(wall, None)
    client, sender, reader = open_both(house)
    client.put(sender, b"300", b"0", b"100", b"0", b"300", envelopes=late(300, 0, 100, 0, 300))
    assert client.bodies(reader) == [b"0", b"0"]
    wall.move(house, 100)
    assert client.bodies(reader) == [b"0", b"0", b"100"]
    wall.move(house, 200)
    assert client.bodies(reader) == [b"0", b"0", b"100", b"300", b"300"]
    sequences = [message.sequence for message in client.got(reader)]
    assert sequences == sorted(set(sequences)), "numbers are given in the order in which messages appear"


def test_what_becomes_due_late_stands_behind_what_was_sent_meanwhile(wall: WallClock) -> None:
    house = house_of(wall, FakeLog())
    client = house.client()
    sender = client.produce()
    client.put(sender, b"late", envelopes=late(10))
    client.put(sender, b"first")
    wall.move(house, 10)
    client.put(sender, b"third")
    house = next_life(house, wall)
    client, _, reader = open_both(house)
    house.rest()
    assert client.bodies(reader) == [b"first", b"late", b"third"]


@pytest.mark.parametrize("passed", [0, 400, 5_000])
def test_a_delay_goes_on_over_a_crash(wall: WallClock, passed: int) -> None:
    house = house_of(wall, FakeLog())
    client = house.client()
    client.put(client.produce(), b"a", b"b", envelopes=late(1_000, 2_000))
    wall.now += passed
    house = next_life(house, wall)
    client, _, reader = open_both(house)
    wall.move(house, 0)
    assert client.bodies(reader) == ([] if passed < 1_000 else [b"a", b"b"])
    wall.move(house, max(0, 1_000 - passed))
    assert client.bodies(reader)[:1] == [b"a"]
    wall.move(house, 1_000)
    assert client.bodies(reader) == [b"a", b"b"]
    assert all(message.delivery_count == 1 for message in client.got(reader))
    house.check()


def test_a_crash_between_due_and_the_disk_shows_the_message_once_under_one_number(wall: WallClock) -> None:
    house = house_of(wall, FakeLog())
    client = house.client()
    client.put(client.produce(), b"late", envelopes=late(10))
    house.auto = False
    wall.move(house, 10)
    assert [record.kind for record in house.log.records].count(DUE) == 1
    assert house.queue().counts.ready == 0, "its number is not on the disk yet"
    for cut in (house.log.durable, house.log.last):
        log = house.log.after_crash(cut)
        later = make_house(log, records=log.recovered(), now_ms=wall)
        client, _, reader = open_both(later)
        wall.move(later, 0)
        later.rest()
        assert client.bodies(reader) == [b"late"]
        later.check()


def test_the_record_of_what_is_due_names_the_rows_and_goes_with_the_run(wall: WallClock) -> None:
    house = house_of(wall, FakeLog())
    client, sender, reader = open_both(house)
    client.put(sender, b"0", b"1", b"2", b"3", envelopes=late(5, 0, 5, 0))
    wall.move(house, 5)
    row = decode_due(next(record.payload for record in house.log.records if record.kind == DUE))
    assert (row.start, row.stop, row.step, row.first) == (0, 3, 2, 3)
    client.settle(reader, (1, 4))
    house.rest()
    assert house.core.memory.used_bytes == 0
    later = next_life(house, wall)
    assert later.queue().counts.ready == 0 and not later.queue().scheduled


def test_a_purge_takes_what_is_not_due_and_it_never_comes(wall: WallClock) -> None:
    house = house_of(wall, FakeLog())
    client, sender, reader = open_both(house)
    client.put(sender, b"late", envelopes=late(10))
    assert client.call("purge_queue", name="q") == {"removed": 1}
    wall.move(house, 10)
    assert client.bodies(reader) == [] and house.core.memory.used_bytes == 0
    house = next_life(house, wall)
    wall.move(house, 10)
    assert house.queue().counts.ready == 0 and not house.queue().scheduled


def test_a_queue_that_is_deleted_takes_what_is_not_due_along(wall: WallClock) -> None:
    house = house_of(wall, FakeLog())
    client = house.client()
    client.put(client.produce(), b"late", envelopes=late(10))
    client.call("delete_queue", name="q")
    wall.move(house, 10)
    assert house.core.memory.used_bytes == 0
    assert next_life(house, wall).core.memory.used_bytes == 0


def test_delays_and_priorities_go_together(wall: WallClock) -> None:
    house = house_of(wall, FakeLog())
    client = house.client()
    sender = client.produce()
    client.put(sender, b"urgent", envelopes=late(10, priority=9))
    client.put(sender, b"usual")
    wall.move(house, 10)
    reader = client.consume()
    house.rest()
    assert client.bodies(reader) == [b"urgent", b"usual"]


@pytest.mark.parametrize(
    "headers", [{"d": -1}, {"d": "1"}, {"x": 1.5}, {"g": ""}, {"g": 7}, {"c": "only"}, {"d": 2**60}, {"g": "x" * 256}]
)
def test_headers_that_the_broker_must_read_and_can_not_break_the_protocol(
    wall: WallClock, headers: dict[str, object]
) -> None:
    house = house_of(wall, FakeLog())
    client = house.client()
    sender = client.produce()
    placed = house.log.last
    kind = 4 << 8 | KIND_CONTROL | KIND_HEADERS
    client.put(sender, b"x", envelopes=[Envelope(kind, b"", encode_map(headers), b"")])
    assert client.all_closed() and house.log.last == placed


def test_what_messages_ask_for_holds_over_a_restart_though_their_queue_was_defined_anew_after_them(
    wall: WallClock,
) -> None:
    house = house_of(wall, FakeLog())
    client, sender, _ = open_both(house)
    client.put(sender, b"later", b"urgent", b"usual", envelopes=[*late(500), *late(0, priority=9), *late(0)])
    client.call("pause_queue", name="q")
    client.call("resume_queue", name="q")
    house = next_life(house, wall)
    client, _, reader = open_both(house)
    wall.move(house, 499)
    assert client.bodies(reader) == [b"urgent", b"usual"]
    wall.move(house, 1)
    assert client.bodies(reader) == [b"urgent", b"usual", b"later"]
