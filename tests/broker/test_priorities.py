"""Priorities: what is urgent goes first, equals keep their order, and a restart changes nothing of it."""

from __future__ import annotations

import random

import pytest

from meshq.broker.log._high_watermarks import WATERMARK_BLOCK
from meshq.broker.queue._queue_machine import Queue
from meshq.wire import FLAG_RETURN, KIND_PROPERTIES, Envelope, encode_map
from tests.broker.kit import House, RawClient, make_house, with_ids
from tests.broker.logs import FakeLog


def urgent(*priorities: int) -> list[Envelope]:
    """Envelopes of messages with these priorities."""
    return [Envelope(priority << 8, b"", b"", b"") for priority in priorities]


def named(*priorities: int) -> list[bytes]:
    """Bodies that say which message it is, and how urgent."""
    return [b"%d:%d" % (index, priority) for index, priority in enumerate(priorities)]


def next_life(house: House) -> House:
    log = house.log.after_crash()
    return make_house(log, records=log.recovered())


def ordered(priorities: list[int]) -> list[bytes]:
    """What a consumer must get: the most urgent first, equals in the order in which they were sent."""
    bodies = named(*priorities)
    return [bodies[index] for index in sorted(range(len(priorities)), key=lambda index: (-priorities[index], index))]


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("together", [True, False])
def test_the_most_urgent_go_first_and_equals_keep_their_order(durable: bool, together: bool) -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    priorities = [4, 0, 9, 4, 9, 1, 4, 7, 0, 9]
    bodies = named(*priorities)
    if together:
        client.put(sender, *bodies, envelopes=urgent(*priorities), durable=durable)
    else:
        for body, envelope in zip(bodies, urgent(*priorities), strict=True):
            client.put(sender, body, envelopes=[envelope], durable=durable)
    assert client.confirmed[-1] == (sender, len(priorities))
    reader = client.consume()
    house.rest()
    assert client.bodies(reader) == ordered(priorities)
    house.check()


def test_an_urgent_message_overtakes_what_waits_and_not_what_was_handed_out() -> None:
    house = make_house()
    client = house.client()
    sender, reader = client.produce(), client.consume(window=2)
    client.put(sender, b"a", b"b", b"c", b"d")
    client.put(sender, b"now", envelopes=urgent(9))
    assert client.bodies(reader) == [b"a", b"b"]
    client.settle(reader, (1, 2))
    assert client.bodies(reader) == [b"a", b"b", b"now", b"c"]


def test_what_comes_back_returns_to_its_place_among_its_equals() -> None:
    house = make_house()
    client = house.client()
    sender, reader = client.produce(), client.consume(window=3)
    client.put(sender, b"u1", b"u2", envelopes=urgent(9, 9))
    client.put(sender, b"a", b"b")
    assert client.bodies(reader) == [b"u1", b"u2", b"a"]
    client.settle(reader, (1, 1), (3, 3), flags=FLAG_RETURN)
    client.settle(reader, (2, 2))
    assert client.bodies(reader)[3:] == [b"u1", b"a", b"b"]
    house.check()


def test_a_consumer_with_a_filter_gets_what_is_urgent_first_too() -> None:
    house = make_house()
    client = house.client()
    sender = client.produce()
    rows = [(4, 1), (9, 2), (9, 1), (0, 1), (4, 2), (7, 1)]
    envelopes = [
        Envelope(priority << 8 | KIND_PROPERTIES, b"", b"", encode_map({"k": value})) for priority, value in rows
    ]
    client.put(sender, *(b"%d" % index for index in range(len(rows))), envelopes=envelopes)
    ones = client.consume(filter="k = 1")
    rest = client.consume()
    assert client.bodies(ones) == [b"2", b"5", b"0", b"3"]
    assert client.bodies(rest) == [b"1", b"4"]
    house.check()


def test_a_large_urgent_message_is_not_overtaken_by_small_ones_for_whoever_waits_for_it() -> None:
    house = make_house()
    client = house.client()
    sender, reader = client.produce(), client.consume(window_bytes=100)
    client.put(sender, b"x" * 60)
    client.put(sender, b"u" * 90, envelopes=urgent(9))
    client.put(sender, b"y" * 20)
    assert client.bodies(reader) == [b"x" * 60]
    client.settle(reader, (1, 1))
    assert client.bodies(reader)[1:] == [b"u" * 90]
    client.settle(reader, (2, 2))
    assert client.bodies(reader)[2:] == [b"y" * 20]


def test_order_counts_and_marks_survive_a_crash_for_each_priority() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    priorities = [4, 9, 0, 9, 4, 4]
    client.put(sender, *named(*priorities), envelopes=urgent(*priorities))
    reader = client.consume(window=2)
    house.rest()
    assert client.bodies(reader) == [b"1:9", b"3:9"]
    client.settle(reader, (1, 1))
    house.rest()
    assert client.bodies(reader)[2:] == [b"0:4"]

    house = next_life(house)
    client = house.client()
    reader = client.consume()
    house.rest()
    assert client.bodies(reader) == [b"3:9", b"0:4", b"4:4", b"5:4", b"2:0"]
    # What of a priority nobody had asked for yet is not said to have been delivered.
    counts = {message.body: message.delivery_count for message in client.got(reader)}
    assert counts[b"3:9"] == counts[b"0:4"] == 2 and counts[b"2:0"] == 1
    house.check()


def test_a_mark_of_one_priority_says_nothing_of_another() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    client.put(sender, *[b"x"] * 200)
    client.put(sender, b"now", envelopes=urgent(9))
    reader = client.consume(window=1)
    house.rest()
    assert client.bodies(reader) == [b"now"]
    queue = house.queue()
    marks = {priority_list.priority: priority_list.high_watermark for priority_list in queue.lists.all}
    assert marks[9] == 201 + WATERMARK_BLOCK and marks[4] == 0
    house = next_life(house)
    assert [view.maybe for view in house.queue().runs()] == [1, 0]


def test_after_a_crash_no_more_than_a_block_of_what_waited_behind_a_slow_consumer_looks_delivered() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    reader = client.consume(window=1)
    for _ in range(80):
        client.put(sender, *[b"x"] * 256)
    for tag in range(1, 101):
        client.settle(reader, (tag, tag))
    assert house.queue().counts.acknowledged == 100 and house.queue().counts.ready == 80 * 256 - 101
    house = next_life(house)
    marked = sum(view.maybe for view in house.queue().runs())
    # And the run that was placed when the watermark was moved.
    assert 101 <= marked <= 101 + WATERMARK_BLOCK + 256


def test_duplicate_ids_are_judged_whatever_the_priority() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    envelopes = [one._replace(kind=one.kind & ~(0xF << 8) | 9 << 8) for one in with_ids("a", "b", "a")]
    client.put(sender, b"1", b"2", b"3", envelopes=envelopes)
    client.put(sender, b"4", envelopes=with_ids("b"))
    house = next_life(house)
    client = house.client()
    client.put(client.produce(producer=b"another-producer"), b"5", envelopes=with_ids("a"))
    reader = client.consume()
    house.rest()
    assert client.bodies(reader) == [b"1", b"2"]


def test_a_purge_takes_every_priority_and_numbers_are_not_given_again() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    client.put(sender, b"a", b"b", b"c", envelopes=urgent(0, 4, 9))
    assert client.call("purge_queue", name="q") == {"removed": 3}
    house = next_life(house)
    assert house.queue().counts.ready == 0 and house.queue().last >= 3
    assert house.core.memory.used_bytes == 0


@pytest.mark.parametrize("seed", range(6))
def test_any_mixture_arrives_in_order_over_lives(seed: int) -> None:
    rng = random.Random(seed)
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    account: list[tuple[int, int]] = []
    got: list[tuple[int, int]] = []
    for life in range(4):
        for _ in range(rng.randrange(1, 8)):
            priorities = [rng.choice([0, 3, 4, 4, 4, 9]) for _ in range(rng.randrange(1, 40))]
            first = len(account)
            bodies = [b"%d" % (first + index) for index in range(len(priorities))]
            account += [(priority, first + index) for index, priority in enumerate(priorities)]
            client.put(sender, *bodies, envelopes=urgent(*priorities))
        got += take(house, client, account, rng.randrange(0, 60))
        house.check()
        house = next_life(house)
        client = house.client()
        sender = client.produce(producer=b"life%012d" % life)
    got += take(house, client, account, 10_000)
    assert sorted(got) == sorted(account)
    assert_empty(house.queue())


def take(house: House, client: RawClient, account: list[tuple[int, int]], count: int) -> list[tuple[int, int]]:
    """Receive and acknowledge up to ``count`` messages; each must be the most urgent, oldest one."""
    if not count:
        return []
    reader = client.consume(window=count)
    house.rest()
    found = [account[int(message.body)] for message in client.got(reader)][:count]
    assert [(-priority, index) for priority, index in found] == sorted((-p, index) for p, index in found)
    if found:
        client.settle(reader, (1, len(found)))
    client.leave(reader)
    house.rest()
    return found


def assert_empty(queue: Queue) -> None:
    assert (queue.counts.ready, queue.counts.unacked, queue.lists.live_runs) == (0, 0, 0)
