"""The clock of a simulation sees to every sleep, and a sleep is what it is with trio."""

from __future__ import annotations

import math
import threading
from collections.abc import Awaitable, Callable

import pytest
import trio
from trio.testing import MockClock

from meshq.testing import Simulation, run_seed


def story_of(main: object) -> list[object]:
    """What a main task returns as its story."""
    result = run_seed(1, main)  # type: ignore[arg-type]
    story: list[object] = result.check().value
    return story


def test_those_who_sleep_wake_in_time_and_trio_has_its_own_sleep_back_afterwards() -> None:
    before = trio.sleep, trio.sleep_until

    async def main(simulation: Simulation) -> list[float]:
        assert (trio.sleep, trio.sleep_until) != before
        woken: list[float] = []

        async def sleeper(seconds: float) -> None:
            await trio.sleep(seconds)
            woken.append(trio.current_time())

        async with trio.open_nursery() as nursery:
            for seconds in (0.5, 0.25, 2.0, 0.25):
                nursery.start_soon(sleeper, seconds)
        await trio.sleep_until(1.0)  # is over
        return [*woken, trio.current_time()]

    assert story_of(main) == [0.25, 0.25, 0.5, 2.0, 2.0]
    assert (trio.sleep, trio.sleep_until) == before


def test_a_sleep_that_is_cancelled_ends_at_once_and_its_time_is_not_waited_for() -> None:
    async def main(simulation: Simulation) -> list[float]:
        with trio.move_on_after(0.5):
            await trio.sleep(3)
        times = [trio.current_time()]
        with trio.move_on_after(0.5):
            await trio.sleep(math.inf)
        turns = simulation.scheduler.turns
        await trio.sleep(7)
        # Nobody is woken at 3 s.
        return [*times, trio.current_time(), simulation.scheduler.turns - turns]

    assert story_of(main) == [0.5, 8.0, 1]


def test_a_sleep_that_is_over_is_a_checkpoint() -> None:
    async def main(simulation: Simulation) -> list[str]:
        story: list[str] = []
        with trio.CancelScope() as scope:
            scope.cancel()
            await trio.sleep_until(0)
            story.append("slept")
        return [*story, "cancelled" if scope.cancelled_caught else "not"]

    assert story_of(main) == ["cancelled"]


def test_who_is_cancelled_in_the_instant_in_which_the_sleep_ends_does_not_go_on() -> None:
    async def main(simulation: Simulation) -> list[str]:
        story: list[str] = []

        async def sleeper() -> None:
            await trio.sleep(1)
            story.append("went on")

        async with trio.open_nursery() as nursery:
            nursery.cancel_scope.deadline = 1.0
            nursery.start_soon(sleeper)
        return story

    assert story_of(main) == []


def test_who_has_slept_too_long_because_others_blocked_the_loop_wakes_before_they_are_done() -> None:
    async def main(simulation: Simulation) -> list[str]:
        story: list[str] = []

        async def sleeper() -> None:
            await trio.sleep(1)
            story.append("woken")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(sleeper)
            await trio.sleep(0.5)
            simulation.clock.advance(1)
            for _ in range(3):
                await trio.lowlevel.checkpoint()
            story.append("done")
        return story

    assert story_of(main) == ["woken", "done"]


@pytest.mark.parametrize("seconds", [-1.0, math.nan])
def test_no_time_to_sleep_is_refused_as_trio_refuses_it(seconds: float) -> None:
    async def main(simulation: Simulation) -> list[object]:
        with pytest.raises(ValueError):
            await trio.sleep(seconds)
        return []

    assert story_of(main) == []


def test_what_was_bound_in_a_simulation_sleeps_in_the_next_one_and_outside_of_all() -> None:
    bound: list[Callable[[float], Awaitable[None]]] = []

    async def main(simulation: Simulation) -> list[float]:
        bound.extend([trio.sleep, trio.sleep_until])  # as a module that is imported here
        await bound[0](1)
        await bound[1](3)
        return [trio.current_time()]

    async def real() -> None:
        start = trio.current_time()
        with trio.move_on_after(10) as scope:
            await bound[0](1)
            await bound[1](start + 3)
        assert (scope.cancelled_caught, trio.current_time() - start) == (False, 3)

    assert [story_of(main), story_of(main)] == [[3.0], [3.0]]
    trio.run(real, clock=MockClock(autojump_threshold=0))


def test_a_run_in_another_thread_sleeps_by_its_own_clock_and_is_no_part_of_the_trace() -> None:
    ready, done, tokens, go = threading.Event(), threading.Event(), [], trio.Event()

    async def other() -> None:
        tokens.append(trio.lowlevel.current_trio_token())
        ready.set()
        await go.wait()
        with trio.move_on_after(3):
            await trio.sleep(1)
            done.set()

    def in_thread() -> None:
        trio.run(other, clock=MockClock(autojump_threshold=0))

    async def main(simulation: Simulation) -> list[object]:
        before = simulation.scheduler.turns
        tokens[0].run_sync_soon(go.set)
        return [done.wait(5), simulation.scheduler.turns - before]

    thread = threading.Thread(target=in_thread, daemon=True)
    thread.start()
    assert ready.wait(5)
    assert story_of(main) == [True, 0]
    thread.join(5)
    assert not thread.is_alive()
