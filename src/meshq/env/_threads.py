"""Worker threads, a bounded pool for each kind of work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import trio

from meshq.abc import Threads

T = TypeVar("T")

#: The pools whose calls are left to their threads when the caller is cancelled: those whose names begin so.
LEFT_POOLS = "discovery"

#: The journal's calls are made one after the other: their order is the order on disk.
JOURNAL_THREADS = 1
#: Threads of any other pool.  They wait for the disk, so more of them than processors; a disk does not get
#: faster beyond a few.
POOL_THREADS = 8


class WorkerThreads(Threads):
    """trio's worker threads.  A thread hop costs about 45 µs, so give it a batch."""

    __slots__ = ("_limiters",)

    def __init__(self) -> None:
        # A limiter belongs to one run of trio, this object to none: hence a variable of the run.
        self._limiters: trio.lowlevel.RunVar[dict[str, trio.CapacityLimiter]]
        self._limiters = trio.lowlevel.RunVar("meshq worker threads")

    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        left = pool.startswith(LEFT_POOLS)
        result = await trio.to_thread.run_sync(
            function, *arguments, limiter=self._limiter(pool), abandon_on_cancel=left
        )
        # trio gives the result even to a cancelled caller; the contract says it is lost, here as in a simulation.
        await trio.lowlevel.checkpoint_if_cancelled()
        return result

    def idle(self) -> bool:
        # trio does not count tasks that are scheduled for the current turn of the loop and have not run yet; a caller
        # that must see them passes through a checkpoint first.
        return trio.lowlevel.current_statistics().tasks_runnable == 0

    def _limiter(self, pool: str) -> trio.CapacityLimiter:
        try:
            limiters = self._limiters.get()
        except LookupError:
            limiters = {}
            self._limiters.set(limiters)
        limiter = limiters.get(pool)
        if limiter is None:
            limiter = trio.CapacityLimiter(JOURNAL_THREADS if pool == "journal" else POOL_THREADS)
            limiters[pool] = limiter
        return limiter
