"""Tasks of asyncio that wait for something that another thread does."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class CrossThreadWakeup:
    """Rung by any thread, with the lock of whatever is waited for; it wakes everybody."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        """Wake whoever waits."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            # A loop that is closed has nobody who waits.
            with suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_wake, future)

    def expect(self) -> asyncio.Future[None]:
        """With the lock: from now on a ring is for this task, too; ``wait`` has to follow."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        return future

    async def wait(self, future: asyncio.Future[None], deadline: float | None = None) -> None:
        """Return at the next ring, or at ``deadline`` by the loop's clock."""
        timer = None if deadline is None else future.get_loop().call_at(deadline, _wake, future)
        try:
            await future
        finally:
            self._waiting.pop(future, None)
            if timer is not None:
                timer.cancel()


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
