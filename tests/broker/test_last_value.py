"""Queues that keep only the newest message of each value, and what somebody holds."""

from __future__ import annotations

import random
from typing import Any

import pytest

from meshq import AddressSettings, limits
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.records import SETTLED, decode_settled
from meshq.wire import FLAG_RETURN, KIND_PROPERTIES, Envelope, FrameType, encode_map, encode_run
from tests.broker.kit import House, make_house
from tests.broker.logs import FakeLog
from tests.broker.queues import dealt, give_back, join, leave, make_queue, put, settle

SETTINGS = {"q": AddressSettings(default_last_value_key="k")}


def make_last(key: str = "k") -> Queue:
    queue = make_queue()
    queue.keep_last_values(key)
    return queue


def keys(*values: Any) -> list[dict[str, Any] | None]:
    return [None if value is None else {"k": value} for value in values]


def named(*values: Any) -> list[Envelope]:
    return [Envelope(4 << 8 | KIND_PROPERTIES, b"", b"", encode_map({"k": value})) for value in values]


def next_life(house: House) -> House:
    log = house.log.after_crash()
    return make_house(log, records=log.recovered(), settings=SETTINGS)


def test_of_each_value_the_newest_is_kept_and_what_has_none_is_ordinary() -> None:
    queue = make_last()
    put(queue, values=keys(1, 2, None, 1, None))
    put(queue, values=keys(2, 3))
    queue.check()
    assert queue.counts.removed["replaced"] == 2 and queue.counts.ready == 5
    join(queue)
    assert dealt(queue) == {1: [3, 4, 5, 6, 7]}


def test_values_of_different_types_are_different() -> None:
    queue = make_last()
    put(queue, values=keys(1, 1.0, True, "1", b"1"))
    assert queue.counts.ready == 5
    put(queue, values=keys(True, "1"))
    assert queue.counts.ready == 5 and queue.counts.removed["replaced"] == 2


def test_what_somebody_holds_stays_until_it_is_settled_or_comes_back() -> None:
    queue = make_last()
    reader = join(queue, 2)
    put(queue, values=keys(1, 2))
    assert dealt(queue) == {1: [1, 2]}
    put(queue, values=keys(1, 2, 1))
    queue.check()
    assert (queue.counts.ready, queue.counts.unacked, queue.counts.removed["replaced"]) == (2, 2, 1)
    settle(reader, 1, 1)
    give_back(reader, 2, 2)
    queue.check()
    assert (queue.counts.unacked, queue.counts.removed["replaced"]) == (0, 2)
    assert dealt(queue) == {1: [4, 5]}


def test_what_comes_back_while_nothing_newer_is_there_stays() -> None:
    queue = make_last()
    reader = join(queue)
    put(queue, values=keys(1))
    dealt(queue)
    give_back(reader, 1, 1)
    queue.check()
    assert dealt(queue) == {1: [1]}
    put(queue, values=keys(1))
    assert dealt(queue) == {1: [2]}
    settle(reader, 3, 3)
    give_back(reader, 2, 2)
    queue.check()
    assert dealt(queue) == {1: [1]} and queue.counts.removed["replaced"] == 0


def test_the_newest_counts_whatever_its_priority_or_group_and_while_it_waits_to_come_again() -> None:
    queue = make_last()
    put(queue, values=keys(1), priority=9)
    put(queue, values=keys(1, 2), groups=["a", "a"])
    assert queue.counts.ready == 2 and queue.counts.removed["replaced"] == 1
    reader = join(queue)
    assert dealt(queue) == {1: [2, 3]}
    (span,) = reader.take(1, 1)
    queue.give_back(span, counted=True, waits=True)
    assert queue.counts.delayed == 1
    put(queue, values=keys(1))
    queue.check()
    assert queue.counts.delayed == 0 and queue.counts.removed["replaced"] == 2
    assert dealt(queue) == {1: [4]}


def test_a_purge_forgets_the_values_and_the_table_is_as_small_as_the_queue() -> None:
    queue = make_last()
    put(queue, values=keys(1, 2))
    queue.purge(100)
    put(queue, values=keys(1))
    queue.check()
    reader = join(queue)
    for tag in range(1, 300):
        dealt(queue)
        settle(reader, tag, tag)
        put(queue, values=keys(tag))
    assert queue.last_values is not None and len(queue.last_values._there) == 1


def test_replaced_messages_are_gone_from_the_disk_and_from_memory_too() -> None:
    house = make_house(FakeLog(), settings=SETTINGS)
    client = house.client()
    sender = client.produce()
    for number in range(40):
        client.put(sender, b"%d" % number, b"x%d" % number, envelopes=named(number % 2, 7))
    house.rest()
    queue = house.queue()
    assert (queue.counts.ready, queue.counts.removed["replaced"], queue.lists.live_runs) == (3, 77, 2)
    assert house.core.router.statistics(queue)["replaced"] == 77
    # Two runs are left, and nothing else takes memory.
    assert house.core.memory.used_bytes < 3_000
    house = next_life(house)
    assert house.queue().counts.ready == 3 and house.queue().counts.removed["replaced"] == 0
    client = house.client()
    reader = client.consume()
    house.rest()
    assert client.bodies(reader) == [b"38", b"39", b"x39"]
    client.settle(reader, (1, 3))
    house.rest()
    assert house.core.memory.used_bytes == 0 and house.queue().lists.live_runs == 0
    house.check()


def test_a_crash_before_the_journal_was_told_changes_nothing() -> None:
    house = make_house(FakeLog(), settings=SETTINGS)
    client = house.client()
    sender = client.produce()
    client.put(sender, b"old", b"other", envelopes=named(1, 2))
    house.auto = False
    client.put(sender, b"new", envelopes=named(1))
    # The new one is on disk, and the end of the old one is not.
    house.log.sync()
    house = next_life(house)
    queue = house.queue()
    assert queue.counts.ready == 2
    client = house.client()
    reader = client.consume()
    house.rest()
    assert client.bodies(reader) == [b"other", b"new"]
    client.settle(reader, (1, 2))
    house.rest()
    house.check()
    assert house.core.memory.used_bytes == 0
    house = next_life(house)
    assert house.queue().lists.live_runs == 0


def test_what_an_application_hands_back_goes_if_there_is_something_newer() -> None:
    house = make_house(FakeLog(), settings=SETTINGS)
    client = house.client()
    sender, reader = client.produce(), client.consume(window=1)
    client.put(sender, b"1", envelopes=named("a"))
    house.rest()
    client.put(sender, b"2", envelopes=named("a"))
    client.put(sender, b"3", envelopes=named("a"))
    house.rest()
    client.settle(reader, (1, 1), flags=FLAG_RETURN)
    house.rest()
    assert client.bodies(reader) == [b"1", b"3"]
    house.check()
    client.leave(reader)
    house.rest()
    assert house.queue().counts.ready == 1 and house.queue().counts.removed["replaced"] == 2


def test_a_run_that_loses_its_last_messages_by_both_ways_at_once_is_settled_in_order() -> None:
    house = make_house(FakeLog(), settings=SETTINGS)
    client = house.client()
    sender, reader = client.produce(), client.consume(filter="k IS NULL")
    client.put(sender, b"0", durable=False)
    house.rest()
    client.settle(reader, (1, 1))
    client.put(sender, b"old", b"plain", envelopes=[*named(1), Envelope(4 << 8, b"", b"", b"")])
    house.rest()
    assert client.bodies(reader) == [b"0", b"plain"]
    records = len(house.log.records)
    # The newer one and the acknowledgement arrive together.
    newer = encode_run([b"new"], named(1))
    client.send(FrameType.SEND, channel=sender, first=4, count=1, table=newer.table, body=newer.body, flush=False)
    client.settle(reader, (2, 2))
    house.rest()
    dead: set[int] = set()
    for record in house.log.records[records:]:
        assert not dead & set(record.refs), "a note speaks of what is alive"
        dead |= set(record.deletes)
    assert dead
    assert house.queue().lists.live_runs == 1
    house.check()
    assert next_life(house).queue().lists.live_runs == 0


def test_a_key_that_is_set_while_the_node_runs_holds_at_once_and_in_the_next_life() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    for number in range(4):
        client.put(sender, b"%d" % number, envelopes=named(number % 2))
    assert house.queue().counts.ready == 4
    client.call("set_address_settings", pattern="q", default_last_value_key="k")
    house.rest()
    assert (house.queue().counts.ready, house.queue().pending.outdated) == (2, [])
    log = house.log.after_crash()
    house = make_house(log, records=log.recovered())
    client = house.client()
    client.put(client.produce(producer=b"another-producer"), b"4", envelopes=named(0))
    house.rest()
    reader = client.consume()
    house.rest()
    assert client.bodies(reader) == [b"3", b"4"]


def test_a_queue_without_a_key_decodes_no_property(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshq.broker.queue._run_messages.decode_map", None)
    queue = make_queue()
    reader = join(queue)
    put(queue, values=keys(1, 1))
    assert dealt(queue) == {1: [1, 2]}
    settle(reader, 1, 2)


@pytest.mark.parametrize("before", [None, "other"])
def test_what_is_there_when_the_setting_comes_is_replaced_once(before: str | None) -> None:
    house = make_house(FakeLog(), settings={"q": AddressSettings(default_last_value_key=before)})
    client = house.client()
    sender = client.produce()
    for _ in range(5):
        client.put(sender, b"x", b"y", envelopes=named("a", "b"))
    client.call("set_address_settings", pattern="q", default_last_value_key="k")
    house.rest()
    house.check()
    client.put(sender, b"x", b"y", envelopes=named("a", "b"))
    house.check()
    found = house.queue()
    assert (found.counts.ready, found.counts.delayed, found.counts.removed["replaced"]) == (2, 0, 10)
    client.settle(client.consume(), (1, 2))
    house.rest()
    assert house.core.memory.used_bytes == 0 and next_life(house).queue().counts.ready == 0


def test_a_setting_that_replaces_a_whole_queue_is_told_in_records_of_a_bounded_size() -> None:
    house = make_house(FakeLog())
    client = house.client()
    sender = client.produce()
    for _ in range(3 * limits.STEP_MESSAGES_MAX // 100):
        client.put(sender, *[b"x"] * 100, envelopes=named(*["a"] * 100))
    client.call("set_address_settings", pattern="q", default_last_value_key="k")
    house.rest()
    house.check()
    told = [len(decode_settled(record.payload)) for record in house.log.records if record.kind == SETTLED]
    assert max(told) <= limits.STEP_MESSAGES_MAX < sum(told)
    later = next_life(house).queue()
    assert (house.queue().counts.ready, later.counts.ready, later.counts.removed["replaced"]) == (1, 1, 0)


@pytest.mark.parametrize("stored", [True, False])
@pytest.mark.parametrize("durable", [True, False])
def test_what_is_moved_to_where_it_is_comes_back_once(stored: bool, durable: bool) -> None:
    house = make_house(FakeLog() if stored else None, settings=SETTINGS)
    client = house.client()
    client.put(client.produce(), b"1", b"2", b"3", envelopes=named("a", None, "b"), durable=durable)
    assert client.call("move_messages", name="q", address="q") == {"moved": 3}
    house.check()
    assert (house.queue().counts.ready, house.queue().counts.added) == (3, 6)
    reader = client.consume()
    if stored:
        house.rest()
    assert client.bodies(reader) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("seed", range(20))
def test_any_history_keeps_what_the_rule_says(seed: int) -> None:
    dice = random.Random(seed)
    queue = make_last()
    # By number: value, and who holds it under which tag.
    there: dict[int, int | None] = {}
    held: dict[int, tuple[Any, int]] = {}
    replaced = 0

    def newest(number: int) -> bool:
        return not any(value == there[number] and other > number for other, value in there.items())

    for step in range(300):
        kind = dice.random()
        if kind < 0.35:
            values = [dice.choice([None, 1, 2, 3]) for _ in range(dice.choice([1, 1, 5]))]
            view = put(queue, values=keys(*values), priority=dice.choice([4, 4, 9]))
            there.update({view.first + row: value for row, value in enumerate(values)})
            gone = [n for n, value in there.items() if value is not None and n not in held and not newest(n)]
        elif kind < 0.75 and held:
            number = dice.choice(list(held))
            consumer, tag = held.pop(number)
            gone = []
            if dice.random() < 0.5:
                assert settle(consumer, tag, tag) == [number]
                del there[number]
            else:
                assert give_back(consumer, tag, tag) == [number]
                gone = [number] if there[number] is not None and not newest(number) else []
        elif kind < 0.8 and len(queue.roster.consumers) < 3:
            join(queue, dice.choice([1, 4]), number=step)
            gone = []
        elif kind < 0.83 and queue.roster.consumers:
            consumer = dice.choice(queue.roster.consumers)
            mine = [number for number, (holder, _) in held.items() if holder is consumer]
            leave(consumer)
            for number in mine:
                del held[number]
            gone = [number for number in mine if there[number] is not None and not newest(number)]
        else:
            gone = []
        for number in gone:
            del there[number]
        replaced += len(gone)
        queue.pending.outdated.clear()
        while dispatches := queue.dispatch():
            for consumer, dispatch in dispatches:
                for index, row in enumerate(range(dispatch.start, dispatch.stop, dispatch.step)):
                    held[dispatch.view.first + row] = consumer, dispatch.tag + index
        queue.check()
        found = {view.first + row for view in queue.runs() for row, state in enumerate(view.states) if state != 2}
        assert found == set(there) and queue.counts.removed["replaced"] == replaced
    assert replaced > 30
