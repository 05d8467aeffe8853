"""Yields: calls that never wait still let other tasks of their loop run."""

from __future__ import annotations

import asyncio

from meshq import limits


class YieldCounter:
    """The number of calls or messages since other tasks could run."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls = 0

    def due(self, count: int = 1) -> bool:
        """Add ``count``; return whether other tasks are to run now."""
        self._calls += count
        return self._calls >= limits.CHECKPOINT_MESSAGES

    async def let_others_run(self) -> None:
        """Let other tasks run."""
        self._calls = 0
        await asyncio.sleep(0)
