"""The run of one simulated test, from the start of trio to its end."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial

import outcome
import trio
from trio.testing import MockClock

from meshq.errors import UsageError
from meshq.testing._conditions import (
    drop_what_was_abandoned,
    logging_as_it_was,
    passwords_hashed_once,
    without_collector,
)
from meshq.testing._scheduler import AbandonedError, scheduled_by
from meshq.testing.kit._world import SimulatedWorld


def clock_of(fixtures: Mapping[str, object]) -> MockClock:
    """Return the clock among the values of a test's fixtures, or a new one; it jumps by itself.

    Raises:
        UsageError: the test has a clock that can't jump.
    """
    clocks = [value for value in fixtures.values() if isinstance(value, trio.abc.Clock)]
    clock = clocks[0] if clocks else MockClock()
    if not isinstance(clock, MockClock):
        raise UsageError(f"a simulated test needs a trio.testing.MockClock, and no {type(clock).__name__}")
    # It does not go on by itself: the world moves it.
    clock.rate, clock.autojump_threshold = 0.0, math.inf
    return clock


def run_in_world(
    world: SimulatedWorld,
    test: Callable[[], Awaitable[object]],
    instruments: Sequence[trio.abc.Instrument] = (),
) -> None:
    """Run a test in a world of its own; its error is raised as it was, without the frames before the test."""
    __tracebackhide__ = True
    with without_collector(), logging_as_it_was(), passwords_hashed_once(), scheduled_by(world.scheduler):
        run = outcome.capture(partial(trio.run, world.run, test, clock=world.clock, instruments=tuple(instruments)))
    if isinstance(run, outcome.Error):
        if not isinstance(run.error.__cause__, AbandonedError):
            run.unwrap()
        # A task of a dead node swallows its cancellation; the test was over before.
        del run
        drop_what_was_abandoned(world.failure)
    world.verdict()
