"""Simulated threads, and threads that are none, keep the promises of threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from meshq.abc import Threads
from meshq.testing import THREADS_CHECKS, InlineThreads, Simulation, run_seed


@pytest.mark.parametrize("check", THREADS_CHECKS)
def test_simulated_threads_conform(check: Callable[[Threads], Awaitable[None]]) -> None:
    async def main(simulation: Simulation) -> None:
        await check(simulation.node("n").env.threads)

    for seed in range(10):
        run_seed(seed, main).check()


@pytest.mark.parametrize("check", THREADS_CHECKS)
async def test_calls_that_the_loop_makes_itself_conform(check: Callable[[Threads], Awaitable[None]]) -> None:
    await check(InlineThreads())
