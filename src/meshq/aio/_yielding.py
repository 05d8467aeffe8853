"""Calls that find everything here still let the other tasks of their loop run."""

from __future__ import annotations

import asyncio

from meshq import limits


class YieldCounter:
    """Counts calls, or messages, since the last time that others could run."""

    __slots__ = ("_calls",)

    def __init__(self) -> None:
        self._calls = 0

    def due(self, count: int = 1) -> bool:
        """So much more was done; returns whether it is time to let others run."""
        self._calls += count
        return self._calls >= limits.CHECKPOINT_MESSAGES

    async def others(self) -> None:
        """Let others run."""
        self._calls = 0
        await asyncio.sleep(0)
