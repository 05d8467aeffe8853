"""A cursor and the holes of its queue, without a broker: leases, fences, places, and why a number has no message."""

from __future__ import annotations

import math
import random
from typing import Any

import attrs
import pytest

from meshq.broker.cursors._cursor_machine import (
    ANY_LAG,
    CursorFacts,
    CursorMachine,
    CursorRequest,
    refuse_if_held,
)
from meshq.broker.cursors._holes_machine import EXPIRED, VOLATILE, Hole, HoleLog, holes_between
from meshq.errors import CursorHeldError, CursorLostError, UsageError

FACTS = CursorFacts(
    queue=7, queue_name="q", name="c", epoch=3, start=5, since=5, processed=5, pinned=5, lease_ms=1_000, max_lag=10
)


def cursor(now_ms: float = 0.0, **changed: object) -> CursorMachine:
    """A cursor that was just made, or restored with these facts."""
    return CursorMachine(attrs.evolve(FACTS, **changed), now_ms, floor=0)  # type: ignore[arg-type]


def taken(machine: CursorMachine, token: str, holder: str, lease_ms: int, now_ms: float, max_lag: int = 10) -> bool:
    """Take the cursor, with the next fence."""
    wanted = CursorRequest(name="c", token=token, holder=holder, lease_ms=lease_ms, max_lag=max_lag)
    return machine.take(wanted, machine.facts.fence + 1, now_ms)


def test_one_owner_has_the_lease_and_the_next_one_a_higher_fence_when_it_has_run_out() -> None:
    machine = cursor()
    assert taken(machine, "a", "first", 1_000, 0) and machine.facts.fence == 1
    assert not taken(machine, "b", "second", 1_000, 999) and machine.facts.holder == "first"
    machine.renew(1, 999)
    assert not taken(machine, "b", "second", 1_000, 1_998)
    assert taken(machine, "b", "second", 500, 1_999)
    assert (machine.facts.fence, machine.facts.holder, machine.facts.lease_ms) == (2, "second", 500)
    with pytest.raises(CursorLostError, match="second") as caught:
        machine.renew(1, 2_000)
    assert caught.value.reason == "taken"


def test_the_same_owner_gets_the_same_fence_again_and_a_released_cursor_is_free_at_once() -> None:
    machine = cursor()
    assert taken(machine, "a", "first", 1_000, 0) and taken(machine, "a", "first", 1_000, 10)
    assert (machine.facts.fence, machine.lease_until_ms) == (1, 1_010)
    facts = machine.facts
    assert taken(machine, "a", "first", 1_000, 10) and machine.facts is facts, "there is nothing to write down"
    assert taken(machine, "a", "first", 1_000, 10, max_lag=3) and machine.facts.max_lag == 3
    machine.release(1)
    with pytest.raises(CursorLostError) as caught:
        machine.renew(1, 20)
    assert caught.value.reason == "released"
    assert taken(machine, "b", "second", 1_000, 20) and machine.facts.fence == 2


def test_a_lease_that_ran_out_is_renewed_as_long_as_nobody_has_taken_the_cursor() -> None:
    machine = cursor()
    taken(machine, "a", "first", 1_000, 0)
    machine.look(5_000)
    assert not machine.held
    machine.renew(1, 5_000)
    assert machine.held and machine.lease_until_ms == 6_000


def test_an_owner_keeps_its_lease_over_a_restart_of_the_node() -> None:
    machine = cursor(9_000, token="a", holder="first", fence=4)
    assert machine.held and not taken(machine, "b", "second", 1_000, 9_999)
    machine.renew(4, 9_999)


def test_a_place_only_rises_and_stays_below_the_high_mark() -> None:
    machine = cursor()
    taken(machine, "a", "first", 1_000, 0)
    machine.check_ack(1, 8, 9)
    machine.acknowledged(8)
    before = machine.facts
    assert (before.processed, before.pinned) == (8, 8)
    machine.acknowledged(6)
    assert machine.facts is before
    with pytest.raises(UsageError, match="high mark 9, not 10"):
        machine.check_ack(1, 10, 9)
    with pytest.raises(CursorLostError):
        machine.check_ack(2, 8, 9)
    machine.pin(1, 9, 9, 10)
    assert [number for number in range(12) if machine.keeps(number)] == [5, 6, 7, 8]


def test_it_lags_once_and_is_abandoned_only_without_a_running_lease() -> None:
    machine = cursor()
    taken(machine, "a", "first", 1_000, 0)
    assert [machine.lags(waiting, 10) for waiting in (7, 8, 9, 11, 3, 8)] == [False, True, False, False, False, True]
    assert not machine.is_abandoned(11, 10, 999)
    assert not machine.is_abandoned(10, 10, 1_000) and machine.is_abandoned(11, 10, 1_000)
    assert not machine.lags(1_000_000, 0) and not machine.is_abandoned(1_000_000, 0, 1_000)


def test_its_maximum_is_that_of_its_owner_and_otherwise_that_of_the_address() -> None:
    assert cursor().max_lag(3) == cursor().max_lag(math.inf) == 10
    assert cursor(max_lag=0).max_lag(3) == 3
    assert cursor(max_lag=0).max_lag(math.inf) == 0
    assert cursor(max_lag=ANY_LAG).max_lag(3) == 0


def test_a_queue_without_a_cursor_is_free_and_one_with_a_cursor_names_it() -> None:
    refuse_if_held(None, "nothing goes")
    machine = cursor()
    taken(machine, "a", "session 3", 1_000, 0)
    with pytest.raises(CursorHeldError, match=r"'c' \(held by session 3\) has the queue 'q': nothing") as caught:
        refuse_if_held(machine, "nothing goes")
    assert (caught.value.queue, caught.value.name, caught.value.holder) == ("q", "c", "session 3")


def test_numbers_that_leave_no_trace_are_written_down_once_for_a_block() -> None:
    machine = cursor()
    assert machine.uncovered(high=10, last=12, given=100) == Hole(10, 101, VOLATILE)
    machine.holes.note([Hole(10, 101, VOLATILE)], 1)
    assert machine.uncovered(high=50, last=100, given=100) is None
    assert machine.uncovered(high=101, last=101, given=200) == Hole(101, 201, VOLATILE)


def between(lo: int, hi: int, *args: Any, **facts: Any) -> list[Hole]:
    """All holes of a range."""
    return list(holes_between(lo, hi, *args, **facts))


def test_each_number_without_a_message_has_one_reason() -> None:
    log = HoleLog()
    log.note([Hole(12, 13, EXPIRED), Hole(13, 15, EXPIRED)], 1)
    log.note([Hole(10, 30, VOLATILE)], 2)
    present = [(8, 9), (16, 17), (22, 23)]
    found = between(2, 26, present, log, processed=(3, 5), since=7, floor=20)
    assert found == [
        Hole(2, 3, "consumed"),
        Hole(3, 5, "acknowledged"),
        Hole(5, 7, "consumed"),
        Hole(7, 8, "reserved"),
        Hole(9, 10, "reserved"),
        Hole(10, 12, "lost"),
        Hole(12, 15, "expired"),
        Hole(15, 16, "lost"),
        Hole(17, 20, "lost"),
        # This life of the node has lost nothing.
        Hole(20, 22, "reserved"),
        Hole(23, 26, "reserved"),
    ]
    assert between(8, 9, present, log, processed=(3, 5), since=7, floor=20) == []
    assert between(9, 9, present, log, processed=(3, 5), since=7, floor=20) == []


def test_what_is_written_down_of_holes_goes_with_the_numbers_below_the_place() -> None:
    log = HoleLog()
    log.note([Hole(1, 3, EXPIRED), Hole(5, 6, EXPIRED)], 11)
    log.note([Hole(3, 4, EXPIRED)], 12)
    assert log.of_kind(EXPIRED) == [(1, 4), (5, 6)]
    assert log.forget_below(4) == [12] and log.of_kind(EXPIRED) == [(5, 6)]
    assert log.forget_below(6) == [11] and len(log) == 0
    log.note([Hole(7, 9, EXPIRED)], 0)
    log.note([Hole(9, 10, EXPIRED)], 0)
    # Without a journal there is nothing to forget.
    assert len(log) == 1 and log.of_kind(EXPIRED) == [(7, 10)]
    assert log.forget_all() == [] and len(log) == 0


def test_holes_that_come_in_any_order_are_as_few_ranges_as_can_be() -> None:
    log, rng = HoleLog(), random.Random(3)
    numbers: set[int] = set()
    for position in range(1, 300):
        lo = rng.randrange(400)
        numbers.update(range(lo, hi := lo + rng.randrange(6)))
        log.note([Hole(lo, hi, EXPIRED)], position)
        starts = [one for one in sorted(numbers) if one - 1 not in numbers]
        ends = [one + 1 for one in sorted(numbers) if one + 1 not in numbers]
        assert log.of_kind(EXPIRED) == list(zip(starts, ends, strict=True))


def test_holes_that_came_one_by_one_are_said_by_few_records_when_they_have_become_neighbours() -> None:
    log = HoleLog()
    for number in range(1, 60):
        log.note([Hole(number, number + 1, EXPIRED)], number)
        assert not log.scattered
    for number in range(60, 100):
        log.note([Hole(number, number + 1, EXPIRED)], number)
    assert log.scattered and log.all() == [Hole(1, 100, EXPIRED)] and len(log.forget_all()) == 99
    # Each of these is needed.
    for number in range(1, 100, 2):
        log.note([Hole(number, number + 1, EXPIRED)], number)
    assert not log.scattered
