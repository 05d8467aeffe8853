"""Worker threads of a simulation: time passes, the call is made inline, time passes."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import outcome
import trio

from meshq.abc import Threads

T = TypeVar("T")


@attrs.define(eq=False)
class Spending:
    """Where the time goes that a blocking call takes.

    Inside a simulated thread it is gathered, and the thread's task sleeps for it.  Elsewhere the caller blocks
    its own loop: the clock moves on at once.
    """

    advance: Callable[[float], object]
    in_thread: bool = False
    owed_s: float = 0.0

    def spend(self, seconds: float) -> None:
        """A call took this long."""
        if self.in_thread:
            self.owed_s += seconds
        elif seconds:
            self.advance(seconds)

    def take(self) -> float:
        """The seconds gathered since the last time."""
        seconds, self.owed_s = self.owed_s, 0.0
        return seconds


class SimThreads(Threads):
    """The threads of one life.

    A call waits in line for up to ``wait_s_max``, runs at one instant, and returns when the time is over that its
    disk calls took.  Calls of the pool ``"journal"`` come one after the other.  If the life ends during the
    call, the scheduler never lets its task go on; what the dead disk said comes out only when all is cleared away.
    """

    __slots__ = ("_journal", "_rng", "_spending", "wait_s_max")

    def __init__(self, rng: random.Random, spending: Spending, *, wait_s_max: float = 0.0002) -> None:
        self._rng = rng
        self._spending = spending
        self._journal = trio.CapacityLimiter(1)
        self.wait_s_max = wait_s_max

    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        with trio.CancelScope(shield=True):
            if pool == "journal":
                async with self._journal:
                    result = await self._run(function, arguments)
            else:
                result = await self._run(function, arguments)
        await trio.lowlevel.checkpoint_if_cancelled()
        value: T = result.unwrap()
        return value

    def idle(self) -> bool:
        """Either answer may be true of a loop: the seed says which one is given."""
        return self._rng.random() < 0.5

    async def _run(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> outcome.Outcome[T]:
        await self._sleep(self._rng.random() * 2 - 1)
        spending = self._spending
        spending.in_thread = True
        result = outcome.capture(function, *arguments)
        spending.in_thread = False
        seconds = spending.take()
        if seconds:
            await trio.sleep(seconds)
        else:
            await self._sleep(self._rng.random() * 2 - 1)
        return result

    async def _sleep(self, share: float) -> None:
        """Wait for this share of the longest wait; for a turn of the loop if it is negative."""
        if share > 0:
            await trio.sleep(share * self.wait_s_max)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()
