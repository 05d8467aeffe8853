"""Worker threads."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable

import pytest
import trio

from meshq.abc import Threads
from meshq.env import WorkerThreads
from meshq.env._threads import POOL_THREADS
from meshq.testing import THREADS_CHECKS


@pytest.mark.parametrize("check", THREADS_CHECKS)
async def test_worker_threads_conform(check: Callable[[Threads], Awaitable[None]]) -> None:
    await check(WorkerThreads())


async def test_a_pool_has_its_threads_and_no_more() -> None:
    threads = WorkerThreads()
    all_in = threading.Barrier(POOL_THREADS)
    inside: list[int] = []
    most: list[int] = []
    lock = threading.Lock()

    def call() -> None:
        with lock:
            inside.append(1)
            most.append(len(inside))
        all_in.wait(10)  # passes only if as many as the pool has are in here at once
        with lock:
            inside.pop()

    async with trio.open_nursery() as nursery:
        for _ in range(2 * POOL_THREADS):
            nursery.start_soon(threads.run, call)
    assert max(most) == POOL_THREADS


async def test_a_busy_pool_holds_up_no_other() -> None:
    threads = WorkerThreads()
    done, waiting, waited = threading.Event(), threading.Semaphore(0), list[bool]()

    def wait() -> None:
        waiting.release()
        waited.append(done.wait(10))

    async with trio.open_nursery() as nursery:
        for _ in range(POOL_THREADS):
            nursery.start_soon(threads.run, wait)
        for _ in range(POOL_THREADS):
            # All threads of that pool are busy before another one is asked.
            assert await threads.run(waiting.acquire, True, 10, pool="journal")
        await threads.run(done.set, pool="journal")
    assert waited == [True] * POOL_THREADS


async def test_idle_is_false_while_another_task_could_run() -> None:
    threads = WorkerThreads()

    async def busy() -> None:
        await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        assert threads.idle()
        nursery.start_soon(busy)
        assert not threads.idle()
    assert threads.idle()
