"""Simulated threads keep the promises of threads."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable

import pytest

from meshq.abc import Threads
from meshq.testing._conformance_threads import THREADS_CHECKS, check_threads
from meshq.testing._scheduler import Life
from meshq.testing._threads import SimThreads, Spending


def make_threads() -> Threads:
    return SimThreads(Life("node", 1), random.Random(0), Spending(lambda seconds: None))


@pytest.mark.parametrize("check", THREADS_CHECKS)
async def test_simulated_threads_conform(check: Callable[[Threads], Awaitable[None]]) -> None:
    await check(make_threads())


async def test_the_suite_runs_as_one_call() -> None:
    await check_threads(make_threads)
