"""The clock of a simulation sees to every sleep, and a sleep is what it is with trio."""

from __future__ import annotations

import math

import pytest
import trio

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
