"""Wakeups of asyncio tasks by other threads."""

from __future__ import annotations

import asyncio
from contextlib import suppress


class CrossThreadWakeup:
    """A wakeup of all waiting tasks, from any thread that holds the lock of the condition."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: dict[asyncio.Future[None], None] = {}

    def wake(self) -> None:
        """Wake all waiting tasks."""
        waiting, self._waiting = self._waiting, {}
        for future in waiting:
            # A closed loop has no waiting task.
            with suppress(RuntimeError):
                future.get_loop().call_soon_threadsafe(_wake, future)

    def expect(self) -> asyncio.Future[None]:
        """With the lock: register this task for the next ``wake``; a call of ``wait`` has to follow."""
        future = asyncio.get_running_loop().create_future()
        self._waiting[future] = None
        return future

    async def wait(self, future: asyncio.Future[None], deadline: float | None = None) -> None:
        """Wait for ``wake``, or until ``deadline`` by the loop's clock."""
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
