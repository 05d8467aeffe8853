"""What comes back, what expires, what nobody can take: again, later, elsewhere or never, in this life and the next."""

from __future__ import annotations

import math
from typing import Any

import pytest

from meshq import limits
from meshq.broker.records import COUNTED, PLACED, decode_placed
from meshq.settings import AddressSettings
from meshq.wire import (
    BY_NAME,
    COUNTER_MAX,
    FLAG_REJECT,
    FLAG_RETURN,
    FLAG_UNCOUNTED,
    KIND_CONTROL,
    KIND_HEADERS,
    Deliver,
    Envelope,
    FrameType,
    encode_map,
    encode_ranges,
)
from tests.broker.kit import House, RawClient, make_house, with_ids
from tests.broker.logs import FakeLog
from tests.broker.test_delays import WallClock


class Shop:
    """A house with a clock, a client, a sender to ``q`` and a reader of it; over several lives."""

    def __init__(self, log: FakeLog | None = None, *, window: int = 1_000, **settings: Any) -> None:
        self.wall = WallClock()
        self.settings = {"q": AddressSettings(**settings)}
        self.window = window
        self.begin(make_house(log or FakeLog(), settings=self.settings, now_ms=self.wall))

    def begin(self, house: House) -> None:
        self.house = house
        self.client = house.client()
        self.sender = self.client.produce(producer=b"life%012d" % house.log.last)
        self.reader = self.client.consume(window=self.window)
        house.rest()

    def next_life(self, cut: int | None = None) -> None:
        log = self.house.log.after_crash(cut)
        self.begin(make_house(log, records=log.recovered(), settings=self.settings, now_ms=self.wall))
        self.pass_time(0)

    def pass_time(self, ms: int) -> None:
        self.wall.move(self.house, ms)
        self.house.rest()

    def send(self, *bodies: bytes, ttl_ms: int = 0, durable: bool = True, **options: Any) -> None:
        envelopes = [Envelope(4 << 8 | KIND_CONTROL | KIND_HEADERS, b"", encode_map({"x": ttl_ms}), b"")] * len(bodies)
        self.client.put(self.sender, *bodies, envelopes=envelopes if ttl_ms else None, durable=durable, **options)
        self.house.rest()

    def settle(self, *tags: int, flags: int = FLAG_RETURN, stamp: int = 0) -> None:
        table = encode_ranges([(tag, tag) for tag in tags])
        self.client.send(FrameType.SETTLE, flags=flags, channel=self.reader, count=len(tags), table=table, stamp=stamp)
        self.house.rest()
        self.house.check()

    @property
    def got(self) -> list[tuple[bytes, int]]:
        """Bodies and delivery counts, in the order in which they came."""
        return [(message.body, message.delivery_count) for message in self.client.got(self.reader)]

    def there(self, queue: str) -> list[tuple[bytes, tuple[str, ...]]]:
        """What another queue holds, taken by a new consumer, and where it was before."""
        client: RawClient = self.house.client()
        channel = client.consume(queue)
        self.house.rest()
        found = []
        for frame in client.all(FrameType.DELIVER):
            if frame.channel == channel:
                origin = Deliver.decode(frame.header).origin
                found += [(message.body, origin) for message in client.got(channel)[len(found) :][: frame.count]]
        client.close()
        self.house.rest()
        return found

    def count(self, name: str, queue: str = "q") -> int:
        found: int = self.house.core.router.statistics(self.house.queue(queue))[name]
        return found


DEAD = {"dead_letter_address": "dead"}


@pytest.mark.parametrize("flags", [FLAG_RETURN, FLAG_RETURN | FLAG_UNCOUNTED])
def test_no_delay_is_longer_than_a_user_may_ask_for_and_the_longest_holds_over_a_restart(flags: int) -> None:
    most = limits.TIME_S_MAX * 1_000
    shop = Shop()
    shop.send(b"a")
    # The stamp is one more than the delay: 0 says that there is none.
    shop.settle(1, flags=FLAG_RETURN, stamp=most + 1)
    assert (shop.client.all_closed(), shop.count("delayed")) == (False, 1)
    shop.next_life()
    assert (shop.got, shop.count("delayed")) == ([], 1)
    shop.pass_time(most - 1)
    assert shop.got == []
    shop.pass_time(1)
    assert shop.got == [(b"a", 2)]
    for stamp in (most + 2, COUNTER_MAX):
        shop.settle(shop.client.got(shop.reader)[-1].tag, flags=flags, stamp=stamp)
        assert shop.client.good_bye().code == BY_NAME["too_large"].number
        assert f"allowed: {most}" in shop.client.good_bye().text
        shop.next_life()
        assert [body for body, _ in shop.got] == [b"a"] and shop.count("delayed") == 0


def test_what_is_rejected_goes_to_the_dead_letters_and_says_where_it_was() -> None:
    shop = Shop(**DEAD)
    shop.send(b"a", b"b", b"c")
    shop.settle(2, flags=FLAG_REJECT)
    assert shop.there("dead") == [(b"b", ("q", "q", "rejected"))]
    assert (shop.count("rejected"), shop.count("delivering")) == (1, 2)
    shop.next_life()
    assert [body for body, _ in shop.got] == [b"a", b"c"]
    assert shop.there("dead") == [(b"b", ("q", "q", "rejected"))]


def test_without_an_address_for_them_what_is_rejected_is_gone() -> None:
    shop = Shop()
    shop.send(b"a", b"b")
    shop.settle(1, flags=FLAG_REJECT)
    assert shop.house.core.router.queues.keys() == {"q"}
    shop.next_life()
    assert [body for body, _ in shop.got] == [b"b"]


def test_a_message_is_delivered_so_often_and_then_taken_away() -> None:
    shop = Shop(**DEAD, max_delivery_attempts=3)
    shop.send(b"a", b"b")
    for tag in (1, 3, 4):
        assert shop.count("dead_lettered") == 0
        shop.settle(tag)
    assert shop.got == [(b"a", 1), (b"b", 1), (b"a", 2), (b"a", 3)]
    assert shop.count("dead_lettered") == 1
    assert shop.there("dead") == [(b"a", ("q", "q", "attempts"))]


def test_without_an_address_for_them_messages_come_again_however_often() -> None:
    shop = Shop(max_delivery_attempts=2)
    shop.send(b"a")
    for tag in range(1, 6):
        shop.settle(tag)
    assert shop.got[-1] == (b"a", 6) and shop.count("dead_lettered") == 0


def test_deliveries_are_counted_over_lives() -> None:
    shop = Shop(**DEAD, max_delivery_attempts=3)
    shop.send(b"a", b"b", b"c")
    shop.settle(1)
    shop.settle(4)
    assert shop.got[-1] == (b"a", 3)
    shop.next_life()
    # Two came back for sure, and what was out may have been handed over.
    assert dict(shop.got) == {b"a": 3, b"b": 2, b"c": 2}
    # Only what is sure takes a message away.
    shop.settle(2)
    shop.settle(4)
    assert shop.got[-1] == (b"b", 4) and shop.count("dead_lettered") == 0
    shop.next_life()
    shop.settle(2)
    assert shop.count("dead_lettered") == 1
    shop.settle(1)
    assert shop.there("dead") == [(b"b", ("q", "q", "attempts")), (b"a", ("q", "q", "attempts"))]


def test_one_record_at_a_time_says_how_often_messages_of_a_run_came() -> None:
    shop = Shop()
    shop.send(*(b"%d" % number for number in range(50)))
    for tag in range(1, 41):
        shop.settle(tag)
    log = shop.house.log
    counted = [record.position for record in log.records if record.kind == COUNTED]
    killed = {target for record in log.records for target in record.deletes}
    assert len([position for position in counted if position not in killed]) == 1
    shop.settle(*range(41, 91), flags=0)
    assert shop.house.queue().lists.live_runs == 0
    shop.send(b"next")
    killed = {target for record in log.records for target in record.deletes}
    assert all(position in killed for position in counted)


@pytest.mark.parametrize(
    ("delay", "multiplier", "most", "waits_ms"),
    [
        (1.0, 1.0, math.inf, [1_000, 1_000, 1_000, 1_000]),
        (0.5, 2.0, math.inf, [500, 1_000, 2_000, 4_000]),
        (0.5, 3.0, 2.0, [500, 1_500, 2_000, 2_000]),
        (0.5, 1_000.0, 0.25, [250, 250, 250, 250]),
        (0.0, 2.0, math.inf, [0, 0, 0, 0]),
    ],
)
def test_what_comes_back_waits_longer_each_time(
    delay: float, multiplier: float, most: float, waits_ms: list[int]
) -> None:
    shop = Shop(redelivery_delay=delay, redelivery_delay_multiplier=multiplier, max_redelivery_delay=most)
    shop.send(b"a")
    for tag, wait_ms in enumerate(waits_ms, 1):
        shop.settle(tag)
        if wait_ms:
            shop.pass_time(wait_ms - 1)
            assert len(shop.got) == tag and shop.count("delayed") == 1
            shop.pass_time(1)
        assert shop.got[-1] == (b"a", tag + 1) and shop.count("delayed") == 0


def test_whoever_gives_it_back_may_say_how_long_it_waits() -> None:
    shop = Shop(redelivery_delay=5.0)
    shop.send(b"a", b"b", b"c")
    shop.settle(1, stamp=301)
    shop.settle(2, stamp=1)
    shop.settle(3)
    assert shop.got[3:] == [(b"b", 2)]
    shop.pass_time(300)
    assert shop.got[4:] == [(b"a", 2)]
    shop.pass_time(4_700)
    assert shop.got[5:] == [(b"c", 2)]


def test_what_waits_returns_to_its_place_and_others_go_on_meanwhile() -> None:
    shop = Shop(window=1)
    shop.send(b"a", b"b", b"c", b"d")
    shop.settle(1, stamp=101)
    assert shop.got[1:] == [(b"b", 1)]
    shop.pass_time(100)
    shop.settle(2, flags=0)
    assert shop.got[2:] == [(b"a", 2)]


@pytest.mark.parametrize("durable", [True, False])
def test_what_waits_waits_on_over_a_crash(durable: bool) -> None:
    shop = Shop()
    shop.send(b"a", b"b", durable=durable)
    shop.settle(1, stamp=1_001)
    shop.settle(2, flags=0)
    shop.wall.now += 400
    shop.next_life()
    assert shop.got == []
    shop.pass_time(599)
    assert shop.got == []
    shop.pass_time(1)
    assert shop.got == ([(b"a", 2)] if durable else [])


def test_what_waits_is_not_granted_with_the_run_that_it_is_in() -> None:
    shop = Shop()
    shop.send(b"a", b"b", b"c")
    shop.settle(2, stamp=1_001)
    shop.next_life()
    assert [body for body, _ in shop.got] == [b"a", b"c"]
    shop.house.check()
    shop.pass_time(1_000)
    assert shop.got[2:] == [(b"b", 2)]


def test_what_another_holds_is_not_granted_with_the_run_that_it_is_in() -> None:
    house = make_house()
    client = house.client()
    sender = client.produce()
    choosy = client.consume(filter="priority = 4", rank=133, window=1)
    client.put(sender, b"a", b"b")
    reader = client.consume()
    assert (client.bodies(choosy), client.bodies(reader)) == ([b"a"], [b"b"])
    house.check()


@pytest.mark.parametrize("together", [True, False])
def test_what_waits_over_a_crash_does_not_go_along_with_the_rest_of_its_run_or_another_one(together: bool) -> None:
    shop = Shop()
    for bodies in [(b"a", b"b")] if together else [(b"a",), (b"b",)]:
        shop.send(*bodies)
    shop.settle(1, stamp=1_001)
    shop.next_life()
    shop.house.check()
    assert shop.got == [(b"b", 2)]
    shop.pass_time(1_000)
    assert shop.got == [(b"b", 2), (b"a", 2)]


def test_a_purge_takes_what_waits_and_it_never_comes() -> None:
    shop = Shop()
    shop.send(b"a", b"b")
    shop.settle(1, stamp=101)
    shop.settle(2, flags=0)
    assert shop.client.call("purge_queue", name="q") == {"removed": 1}
    shop.pass_time(100)
    assert len(shop.got) == 2 and shop.house.core.memory.used_bytes == 0
    assert len(shop.house.core.timers) == 0


@pytest.mark.parametrize("held", [False, True])
def test_what_has_expired_goes_where_the_address_says_and_is_never_delivered(held: bool) -> None:
    shop = Shop(window=1, expiry_address="old")
    shop.send(b"first")
    shop.send(b"short", ttl_ms=100)
    shop.send(b"long", ttl_ms=10_000)
    shop.pass_time(99)
    if held:
        shop.settle(1, flags=0)
        assert shop.got[-1] == (b"short", 1)
    shop.pass_time(1)
    if held:
        assert shop.count("expired") == 0, "whoever has it keeps it"
        shop.settle(2)
    else:
        shop.settle(1, flags=0)
    assert shop.got[-1] == (b"long", 1)
    assert shop.count("expired") == 1
    assert shop.there("old") == [(b"short", ("q", "q", "expired"))]
    # It is there for good.
    shop.settle(len(shop.got), flags=0)
    shop.pass_time(20_000)
    shop.next_life()
    assert shop.there("old") == [(b"short", ("q", "q", "expired"))]


def test_without_an_address_for_them_expired_messages_are_gone() -> None:
    shop = Shop(window=1)
    shop.send(b"first")
    shop.send(b"a", b"b", ttl_ms=100)
    shop.pass_time(100)
    assert shop.count("expired") == 2
    shop.next_life()
    assert [body for body, _ in shop.got] == [b"first"]


@pytest.mark.parametrize("late_ms", [0, 60_000])
def test_a_time_to_live_goes_on_while_the_node_is_down(late_ms: int) -> None:
    shop = Shop(window=1, expiry_address="old")
    shop.send(b"first")
    shop.send(b"a", ttl_ms=1_000)
    shop.wall.now += 999 + late_ms
    shop.next_life()
    shop.settle(1, flags=0)
    assert [body for body, _ in shop.got] == ([b"first", b"a"] if not late_ms else [b"first"])
    assert shop.there("old") == ([(b"a", ("q", "q", "expired"))] if late_ms else [])


def test_nobody_gets_what_has_expired_even_if_the_alarm_is_late() -> None:
    shop = Shop(window=1, expiry_address="old")
    shop.send(b"first")
    shop.send(b"a", ttl_ms=100)
    shop.wall.now += 100
    shop.settle(1, flags=0)
    assert [body for body, _ in shop.got] == [b"first"]
    assert [body for body, _ in shop.there("old")] == [b"a"]


def test_messages_of_one_run_expire_each_at_its_time_also_those_that_came_back_meanwhile() -> None:
    shop = Shop(window=3)
    ttls = (100, 300, 200, 0, 50)
    envelopes = [
        Envelope(4 << 8 | (KIND_CONTROL | KIND_HEADERS if ttl else 0), b"", encode_map({"x": ttl}) if ttl else b"", b"")
        for ttl in ttls
    ]
    shop.client.put(shop.sender, *(b"%d" % ttl for ttl in ttls), envelopes=envelopes)
    shop.house.rest()
    shop.pass_time(50)
    assert shop.count("expired") == 1
    shop.client.leave(shop.reader, 1)
    shop.pass_time(50)
    assert shop.count("expired") == 2
    shop.pass_time(100)
    assert shop.count("expired") == 3
    shop.pass_time(100)
    assert (shop.count("expired"), shop.count("ready")) == (4, 1)
    shop.house.check()


def test_a_message_that_is_gone_keeps_nothing_until_it_would_have_expired() -> None:
    shop = Shop()
    for _ in range(300):
        shop.send(b"a", ttl_ms=3_600_000)
    shop.settle(*range(1, 301), flags=0)
    assert shop.house.core.memory.used_bytes == 0
    assert len(shop.house.core.timers) == 0 and len(shop.house.core.timers._expiries._heap) < 100


def test_what_would_go_to_its_own_address_is_gone_or_comes_again() -> None:
    shop = Shop(dead_letter_address="q", expiry_address="q", max_delivery_attempts=1)
    shop.send(b"a", b"b")
    shop.settle(1, flags=FLAG_REJECT)
    shop.settle(2)
    assert shop.got[2:] == [(b"b", 2)]
    assert (shop.count("rejected"), shop.count("dead_lettered"), shop.count("ready")) == (1, 0, 0)


def test_a_crash_finds_a_dead_letter_in_one_place() -> None:
    shop = Shop(**DEAD)
    shop.send(b"a", b"b", b"c")
    shop.there("dead")
    shop.house.auto = False
    before = shop.house.log.last
    shop.client.settle(shop.reader, (1, 3), flags=FLAG_REJECT)
    after = shop.house.log.last
    for cut in range(before, after + 1):
        log = shop.house.log.after_crash(cut)
        later = make_house(log, records=log.recovered(), settings=shop.settings, now_ms=shop.wall)
        live = [
            later.core.router.queues[name].counts.ready if name in later.core.router.queues else 0
            for name in ("q", "dead")
        ]
        assert sum(live) == 3, cut
        later.check()


def test_a_dead_letter_outlives_the_run_that_it_was_in_and_the_other_way_round() -> None:
    shop = Shop(**DEAD)
    shop.send(b"a", b"b")
    shop.settle(1, flags=FLAG_REJECT)
    (record,) = [record for record in shop.house.log.records if record.kind == PLACED]
    assert [row.position for row in decode_placed(record.payload).settled] == list(record.refs)
    shop.settle(2, flags=0)
    shop.next_life()
    assert shop.house.queue().lists.live_runs == 0 and shop.there("dead") == [(b"a", ("q", "q", "rejected"))]

    shop = Shop(**DEAD)
    shop.send(b"a", b"b")
    shop.settle(1, flags=FLAG_REJECT)
    client = shop.house.client()
    dead = client.consume("dead")
    shop.house.rest()
    client.settle(dead, (1, 1))
    shop.house.rest()
    shop.next_life()
    assert [body for body, _ in shop.got] == [b"b"] and shop.there("dead") == []


def test_on_a_full_disk_what_can_not_be_moved_stays_and_is_tried_again() -> None:
    shop = Shop(**DEAD, expiry_address="old", window=1)
    shop.send(b"a", b"b")
    shop.send(b"c", ttl_ms=500)
    shop.house.log.full = True
    shop.settle(1, flags=FLAG_REJECT)
    assert (shop.count("rejected"), shop.count("delayed")) == (0, 1)
    shop.pass_time(500)
    assert shop.count("expired") == 0
    shop.house.log.full = False
    shop.pass_time(1_000)
    assert shop.count("expired") == 1
    shop.settle(2, flags=0)
    assert shop.got[-1] == (b"a", 2)
    tags = [message.tag for message in shop.client.got(shop.reader)]
    shop.settle(tags[-1], flags=FLAG_REJECT)
    assert [body for body, _ in shop.there("dead")] == [b"a"]


def test_a_dead_letter_keeps_its_id_its_priority_and_no_duplicate_id_of_the_new_address() -> None:
    shop = Shop(**DEAD)
    envelope = with_ids("same")[0]._replace(kind=1 | 9 << 8)
    shop.client.put(shop.sender, b"a", envelopes=[envelope])
    shop.house.rest()
    number = shop.client.got(shop.reader)[0].number
    shop.settle(1, flags=FLAG_REJECT)
    client = shop.house.client()
    dead = client.produce("dead", producer=b"another-producer")
    client.put(dead, b"b", envelopes=with_ids("same"))
    shop.next_life()
    client = shop.house.client()
    reader = client.consume("dead")
    shop.house.rest()
    found = client.got(reader)
    assert [message.body for message in found] == [b"a", b"b"] and found[0].number == number


def test_the_session_of_a_client_that_dies_counts_as_a_delivery_and_what_was_only_prefetched_does_not() -> None:
    shop = Shop(**DEAD, max_delivery_attempts=1)
    shop.send(b"a", b"b", b"c")
    shop.client.leave(shop.reader, 2)
    shop.house.rest()
    assert (shop.count("dead_lettered"), shop.count("ready")) == (1, 2)
    assert [body for body, _ in shop.there("dead")] == [b"a"]


@pytest.mark.parametrize("how", ["a queue of that name is elsewhere", "the queue there wants others"])
def test_a_dead_letter_that_no_queue_takes_stays_where_it_is(how: str) -> None:
    shop = Shop(**DEAD)
    if how == "the queue there wants others":
        shop.client.call("create_queue", name="dead", filter="priority = 9")
    else:
        shop.client.call("create_queue", name="dead", address="elsewhere")
    shop.send(b"a")
    shop.settle(1, flags=FLAG_REJECT)
    assert (shop.count("rejected"), shop.count("delayed")) == (0, 1)
    shop.pass_time(1_000)
    assert shop.got[1:] == [(b"a", 2)]
    shop.house.check()
