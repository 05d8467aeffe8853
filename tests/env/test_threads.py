"""Worker threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest

from meshq.abc import Threads
from meshq.env import WorkerThreads
from meshq.testing._conformance_threads import THREADS_CHECKS


@pytest.mark.parametrize("check", THREADS_CHECKS)
async def test_worker_threads_conform(check: Callable[[Threads], Awaitable[None]]) -> None:
    await check(WorkerThreads())
