"""The canary: the private names of trio on which the scheduler stands still mean what they meant."""

from __future__ import annotations

import random

import pytest
import trio

from meshq.testing import _scheduler
from meshq.testing._scheduler import LIFE, Life, Scheduler, SimClock, missing_names, scheduled_by

ADVICE = f"trio {trio.__version__} has changed inside: read testing/_scheduler.py and mend it"


def test_trio_still_has_the_private_names_that_the_scheduler_uses() -> None:
    assert missing_names() == [], ADVICE


def test_a_missing_name_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_scheduler, "NEEDED", ((trio, "no_such_name"), *_scheduler.NEEDED))
    assert missing_names() == ["trio.no_such_name"]


def unexpected() -> None:
    """The run can't go on."""
    raise AssertionError("the run goes on")


def new_clock() -> SimClock:
    """A clock of a run that nobody judges."""
    return SimClock(on_deadlock=lambda: False, on_limit=unexpected)


class Recorder(Scheduler):
    """Notes each batch as trio hands it over."""

    def __init__(self, rng: random.Random, clock: SimClock) -> None:
        super().__init__(rng, clock, on_stuck=unexpected)
        self.batches: list[list[str]] = []

    def shuffle(self, x: list[trio.lowlevel.Task]) -> None:
        assert isinstance(x, list), ADVICE
        assert all(isinstance(task, trio.lowlevel.Task) for task in x), ADVICE
        self.batches.append([task.name.rpartition(".")[2] for task in x])
        super().shuffle(x)


def test_trio_still_asks_for_the_order_of_each_batch_and_runs_what_is_left_in_it() -> None:
    clock = new_clock()
    scheduler = Recorder(random.Random(0), clock)
    ran: list[str] = []
    life = Life("n", 1)

    async def one() -> None:
        ran.append("one")

    async def two() -> None:
        ran.append("two")

    async def main() -> None:
        scheduler.stop(life)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(one)
            token = LIFE.set(life)
            nursery.start_soon(two)
            LIFE.reset(token)
            await trio.sleep(1)
            assert ran == ["one"], ADVICE
            assert [task.name.rpartition(".")[2] for task in life.held] == ["two"], ADVICE
            scheduler.resume(life)
            await trio.sleep(1)
            assert ran == ["one", "two"], ADVICE
            scheduler.kill(life)
            scheduler.resume(life)
            assert not life.running

    with scheduled_by(scheduler):
        trio.run(main, clock=clock)
    assert ["one", "two"] in scheduler.batches, ADVICE
    assert clock.now == 2


def test_the_order_within_a_batch_differs_by_seed() -> None:
    def order(seed: int) -> tuple[int, ...]:
        ran: list[int] = []
        clock = new_clock()

        async def task(number: int) -> None:
            ran.append(number)

        async def main() -> None:
            async with trio.open_nursery() as nursery:
                for number in range(4):
                    nursery.start_soon(task, number)

        with scheduled_by(Scheduler(random.Random(seed), clock, on_stuck=unexpected)):
            trio.run(main, clock=clock)
        return tuple(ran)

    orders = [order(seed) for seed in range(60)]
    assert orders == [order(seed) for seed in range(60)]
    assert len(set(orders)) > 15


def test_outside_the_block_trio_is_as_it_was() -> None:
    before = _scheduler._run._r, _scheduler._run._ALLOW_DETERMINISTIC_SCHEDULING
    with scheduled_by(Scheduler(random.Random(0), new_clock(), on_stuck=unexpected)):
        assert _scheduler._run._r is not before[0]
    assert (_scheduler._run._r, _scheduler._run._ALLOW_DETERMINISTIC_SCHEDULING) == before


def test_the_clock_waits_for_those_who_wait_for_idleness() -> None:
    from trio.testing import wait_all_tasks_blocked

    async def main() -> float:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.sleep, 5)
            await wait_all_tasks_blocked()
            return trio.current_time()

    clock = new_clock()
    with scheduled_by(Scheduler(random.Random(0), clock, on_stuck=unexpected)):
        assert trio.run(main, clock=clock) == 0
    assert clock.now == 5


def test_alarms_ring_in_the_order_of_time_then_of_asking_and_only_when_nothing_is_runnable() -> None:
    clock, rang = new_clock(), []

    async def main() -> None:
        clock.call_at(2.0, lambda: rang.append("late"))
        clock.call_at(1.0, lambda: rang.append("first"))
        clock.call_at(1.0, lambda: rang.append("second"))
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        assert rang == []
        await trio.sleep(1.5)
        assert rang == ["first", "second"]
        await clock.wait(1.0)
        assert rang == ["first", "second", "late"]
        assert trio.current_time() == 2.5

    with scheduled_by(Scheduler(random.Random(0), clock, on_stuck=unexpected)):
        trio.run(main, clock=clock)


def test_a_wait_on_the_clock_takes_no_notice_of_cancellation() -> None:
    clock = new_clock()

    async def main() -> None:
        with trio.move_on_after(1) as scope:
            await clock.wait(3)
            assert trio.current_time() == 3
            await trio.lowlevel.checkpoint()
        assert scope.cancelled_caught

    with scheduled_by(Scheduler(random.Random(0), clock, on_stuck=unexpected)):
        trio.run(main, clock=clock)
