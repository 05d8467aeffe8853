"""Consumers with filters at one queue: who gets what, in which order, and how often a message is looked at."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from meshq import limits
from meshq.broker.queue import _filtered_machine, _run_messages
from meshq.broker.queue._run_messages import RunMessages
from meshq.errors import UsageError
from meshq.selector import parse_filter
from tests.broker.queues import dealt, give_back, join, leave, make_queue, numbers, put, settle


def keys(*values: Any) -> list[dict[str, Any] | None]:
    """Properties of messages: one, ``k``, each."""
    return [None if value is None else {"k": value} for value in values]


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often messages were put to filters, and how often properties were decoded."""
    counted: Counter[str] = Counter()
    move, decode = RunMessages.move, _run_messages.decode_map

    def counting_move(self: RunMessages, row: int, *, properties: bool) -> None:
        counted["moved"] += 1
        move(self, row, properties=properties)

    def counting_decode(*args: Any, **keywords: Any) -> dict[str, Any]:
        counted["decoded"] += 1
        return decode(*args, **keywords)

    monkeypatch.setattr(RunMessages, "move", counting_move)
    monkeypatch.setattr(_run_messages, "decode_map", counting_decode)
    return counted


def asked(consumer: Any, counted: Counter[str]) -> None:
    """Count how often the filter of a consumer is asked."""
    verdict: Callable[[Any], bool | None] = consumer.filter.verdict

    def counting(view: Any) -> bool | None:
        counted["asked"] += 1
        return verdict(view)

    consumer.filter.verdict = counting


def test_a_consumer_gets_what_its_filter_accepts_in_order_and_the_rest_stays() -> None:
    queue = make_queue()
    put(queue, values=keys(1, 2, None, 1, 1))
    join(queue, filter="k = 1")
    assert dealt(queue) == {1: [1, 4, 5]}
    put(queue, values=keys(2, 1))
    assert dealt(queue) == {1: [7]}
    assert (queue.counts.ready, queue.counts.unacked) == (3, 4)
    join(queue, number=2)
    assert dealt(queue) == {1: [], 2: [2, 3, 6]}


def test_a_filter_is_served_before_those_that_want_everything_and_takes_no_more_than_it_has_room_for() -> None:
    queue = make_queue()
    join(queue, number=1)
    selective = join(queue, 2, number=2, filter="k = 1")
    put(queue, values=keys(1, 2, 1, 1, 2))
    assert dealt(queue) == {1: [2, 4, 5], 2: [1, 3]}
    settle(selective, 1, 1)
    put(queue, values=keys(2, 1, 1))
    assert dealt(queue) == {1: [6, 8], 2: [7]}


def test_consumers_with_one_filter_share_and_others_overlap() -> None:
    queue = make_queue()
    for number in (1, 2):
        join(queue, 2, number=number, filter="k = 1")
    join(queue, 1, number=3, filter="k > 0")
    put(queue, values=keys(*[1] * 8))
    found = dealt(queue)
    assert sorted(number for each in found.values() for number in each) == [1, 2, 3, 4, 5]
    assert [len(found[number]) for number in (1, 2, 3)] == [2, 2, 1]


def test_what_comes_back_returns_to_its_place_for_everyone_who_wants_it() -> None:
    queue = make_queue()
    first = join(queue, number=1, filter="k = 1")
    put(queue, values=keys(1, 2, 1, 1))
    assert dealt(queue) == {1: [1, 3, 4]}
    first.set_willing(False)
    assert give_back(first, 1, 1) == [1] and give_back(first, 3, 3) == [4]
    later = join(queue, 1, number=2, filter="k IN (1, 3)")
    assert dealt(queue) == {1: [], 2: [1]}
    settle(later, 1, 1)
    assert dealt(queue) == {1: [], 2: [4]}
    assert queue.counts.redelivered == 2
    leave(first)
    settle(later, 2, 2)
    assert dealt(queue) == {2: [3]}


def test_rows_of_equal_distance_are_one_grant() -> None:
    queue = make_queue()
    join(queue, filter="k = 0")
    put(queue, values=keys(*[row % 3 for row in range(30)]))
    ((_, dispatch),) = queue.dispatch()
    assert numbers(dispatch) == list(range(1, 31, 3))


def test_a_durable_message_waits_for_the_mark_and_only_what_is_wanted_asks_for_it() -> None:
    queue = make_queue(mark=0)
    join(queue, filter="k = 1")
    put(queue, values=keys(2, 2, 2))
    assert dealt(queue) == {1: []} and queue.lists.all[0].wanted_watermark == 0
    put(queue, values=keys(1, 2, 1))
    assert dealt(queue) == {1: []} and queue.lists.all[0].wanted_watermark == 6
    queue.lists.high_watermark = 4
    assert dealt(queue) == {1: [4]}
    queue.lists.high_watermark = 10
    assert dealt(queue) == {1: [6]}
    assert queue.delivered_up_to == {4: 6}


def test_a_message_that_nobody_wants_is_looked_at_once(looks: Counter[str]) -> None:
    queue = make_queue()
    consumer = join(queue, filter="k > 5")
    asked(consumer, looks)
    for _ in range(40):
        put(queue, values=keys(*[1] * 250))
    assert dealt(queue) == {1: []}
    assert looks == {"moved": 10_000, "asked": 10_000, "decoded": 10_000}
    for number in range(10_001, 10_101):
        put(queue, values=keys(6 if number % 10 == 0 else 1))
        found = dealt(queue)[1]
        assert found == ([number] if number % 10 == 0 else [])
        if found:
            settle(consumer, number // 10 - 1_000, number // 10 - 1_000)
    assert looks == dict.fromkeys(("moved", "asked", "decoded"), 10_100)


def test_nobody_looks_further_than_somebody_has_room_for(looks: Counter[str]) -> None:
    queue = make_queue()
    consumer = join(queue, 1, filter="k = 1")
    for _ in range(100):
        put(queue, values=keys(*[1] * 10))
    assert dealt(queue) == {1: [1]} and looks["moved"] == 10
    for tag in range(1, 11):
        settle(consumer, tag, tag)
        assert dealt(queue) == {1: [tag + 1]}
    assert looks["moved"] == 20
    consumer.set_willing(False)
    settle(consumer, 11, 11)
    assert dealt(queue) == {1: []} and looks["moved"] == 20


def test_properties_are_decoded_once_however_many_filters_look_and_never_for_headers(looks: Counter[str]) -> None:
    queue = make_queue()
    for number in range(1, 51):
        asked(join(queue, number=number, filter=f"k > {number} AND k < 100"), looks)
    put(queue, values=keys(*[0] * 20))
    dealt(queue)
    assert looks == {"moved": 20, "decoded": 20, "asked": 1_000}
    headers = make_queue()
    join(headers, filter="size > 1000")
    put(headers, values=keys(1, 2, 3))
    dealt(headers)
    assert looks["decoded"] == 20
    plain = make_queue()
    join(plain)
    put(plain, values=keys(1, 2, 3))
    assert dealt(plain) == {1: [1, 2, 3]} and looks["moved"] == 23


@pytest.mark.slow
def test_five_thousand_filters_on_one_property_are_looked_up(looks: Counter[str]) -> None:
    queue = make_queue()
    consumers = [join(queue, number=number, filter=f"k = 'c-{number}'") for number in range(5_000)]
    for consumer in consumers:
        asked(consumer, looks)
    wanted = [number * 7 % 5_000 for number in range(2_000)]
    for start in range(0, 2_000, 200):
        put(queue, values=keys(*[f"c-{number}" for number in wanted[start : start + 200]]))
        queue.check()
    got: dict[int, list[int]] = {}
    while dispatches := queue.dispatch():
        for consumer, dispatch in dispatches:
            got.setdefault(consumer.number, []).extend(numbers(dispatch))
    assert got == {number: [place + 1] for place, number in enumerate(wanted)}
    assert looks == {"moved": 2_000, "decoded": 2_000}
    # Another term is asked only where the value fits.
    narrow = join(queue, number=5_000, filter="k = 'c-1' AND size > 5")
    asked(narrow, looks)
    consumers[1].set_willing(False)
    put(queue, values=keys("c-2", "c-1", "c-3"))
    assert dealt(queue)[5_000] == [2_002]
    # It has looked through what was there alone.
    assert looks["moved"] == 2_000 + 2_000 + 3 and looks["asked"] == 2_000 + 1


@pytest.mark.parametrize(("kind", "expected"), [(True, [1]), (1, [2]), ("1", [3]), (b"1", []), (None, [])])
def test_values_that_python_takes_for_equal_are_told_apart_by_the_index(kind: Any, expected: list[int]) -> None:
    queue = make_queue()
    filters = {1: "k = TRUE", 2: "k = 1.0", 3: "k = '1'"}
    for number, filter in filters.items():
        join(queue, number=number, filter=filter)
    put(queue, values=[{"k": kind}])
    assert [number for number, found in dealt(queue).items() if found] == expected


def test_a_late_filter_looks_alone_up_to_where_the_others_are(
    looks: Counter[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(limits, "SCAN_MESSAGES_MAX", 10)
    queue = make_queue()
    join(queue, number=1, filter="k = 1")
    for _ in range(5):
        put(queue, values=keys(*[2] * 9, 1))
    assert dealt(queue)[1] == [10, 20, 30, 40, 50]
    join(queue, 3, number=2, filter="k = 2")
    assert [numbers(dispatch) for _, dispatch in queue.dispatch()] == [[1, 2, 3]]
    assert looks["moved"] == 60
    put(queue, values=keys(3))
    late = join(queue, number=3, filter="k = 3")
    # It is in the middle of the queue when the run there goes.
    assert queue.dispatch() == [] and queue.pending.unfinished
    queue.purge(1_000)
    assert dealt(queue)[3] == []
    put(queue, values=keys(3, 2))
    assert dealt(queue)[3] == [52]
    queue.check()
    leave(late)


def test_a_step_puts_a_bounded_number_of_messages_to_the_filters(looks: Counter[str]) -> None:
    queue = make_queue()
    join(queue, filter="k = 1")
    for _ in range(100):
        put(queue, values=keys(*[2] * 256))
    assert queue.dispatch() == [] and queue.pending.unfinished
    assert looks["moved"] == limits.SCAN_MESSAGES_MAX
    assert dealt(queue) == {1: []} and not queue.pending.unfinished
    assert looks["moved"] == 25_600


def test_a_queue_has_a_bounded_number_of_filters_that_have_to_be_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FILTERS_SCANNED_MAX", 2)
    queue = make_queue()
    queue.check_filter(parse_filter("k > 1"))
    for number, filter in enumerate(["k > 1", "k > 2", "k = 1"], 1):
        join(queue, number=number, filter=filter)
    for filter in ("k > 1", "k = 2"):
        queue.check_filter(parse_filter(filter))
    with pytest.raises(UsageError, match="its 2 different filters"):
        queue.check_filter(parse_filter("k > 3"))


def test_properties_that_cannot_be_read_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = make_queue()
    join(queue, filter="k IS NULL")
    view = put(queue, values=keys(1))
    view.run.content = view.run.content._replace(body=b"\xc1" * len(view.run.content.body))
    assert dealt(queue) == {1: [1]}


def alive(kind: type) -> int:
    gc.collect()
    return sum(type(each) is kind for each in gc.get_objects())


def test_nothing_is_kept_of_runs_and_filters_that_are_gone() -> None:
    before = alive(_filtered_machine.QueueRun), alive(_filtered_machine.FilterGroup)
    queue = make_queue()
    # A message that nobody takes stands before everything, and has come back.
    put(queue, values=keys(3))
    someone = join(queue, 1)
    assert dealt(queue) == {1: [1]}
    leave(someone)
    full = join(queue, 1, number=2, filter="k = 2")
    busy = join(queue, number=1, filter="k IN (1, 2)")
    for turn in range(500):
        put(queue, values=keys(2, 1))
        found = dealt(queue)
        assert len(found[1]) + len(found[2]) == 2
        tags = busy.next_tag - len(found[1]), busy.next_tag - 1
        if turn % 2:
            give_back(busy, *tags)
            assert dealt(queue)[1] == found[1]
            tags = tags[1] + 1, busy.next_tag - 1
        settle(busy, *tags)
    queue.check()
    # The first one, the one that the full consumer holds.
    assert alive(_filtered_machine.QueueRun) - before[0] < 2 + 64 + 2
    assert len(queue.lists.all[0].returned) <= 64 + 2
    assert queue.lists.main.watchers
    sizes = [
        (len(filter_group.runs), len(filter_group.queued), len(filter_group._heap))
        for filter_group in queue.roster.groups[0].filtered[queue.lists.main]._filter_groups.values()
    ]
    assert all(runs <= 2 and queued <= 2 and heap <= 2 * 2 + 64 for runs, queued, heap in sizes)
    leave(full)
    leave(busy)
    queue.check()
    assert alive(_filtered_machine.FilterGroup) == before[1]
    assert not queue.lists.main.watchers


def test_a_filter_that_has_no_room_to_go_on_keeps_no_runs_that_are_gone() -> None:
    before = alive(_filtered_machine.QueueRun)
    queue = make_queue()
    others = join(queue, number=1, filter="k = 2")
    for _ in range(100):
        put(queue, values=keys(2, 2, 1))
    assert len(dealt(queue)[1]) == 200
    late = join(queue, 1, number=2, filter="k = 1")
    assert dealt(queue)[2] == [3]
    settle(others, 1, 200)
    queue.purge(1_000)
    assert alive(_filtered_machine.QueueRun) - before == 1
    put(queue, values=keys(1))
    settle(late, 1, 1)
    assert dealt(queue)[2] == [301]


def test_a_filter_that_comes_later_looks_from_the_head_on_before_it_takes_what_others_have_found_for_it() -> None:
    queue = make_queue()
    join(queue, filter="k = 1")
    put(queue, values=keys(3, 2, 3))
    assert dealt(queue) == {1: []}
    late = join(queue, 0, number=2, filter="k = 2")
    put(queue, values=keys(2, 1))
    # Looked at for both, while the second has no credit.
    assert dealt(queue) == {1: [5], 2: []}
    late.window = 10
    queue.credit_changed(late)
    assert dealt(queue) == {1: [], 2: [2, 4]}
