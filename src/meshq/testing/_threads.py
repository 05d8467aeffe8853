"""Worker threads that are none: in a simulation calls take time, in a plain test they are made at once."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import attrs
import outcome
import trio

from meshq.abc import Threads
from meshq.testing._clock import VirtualClock
from meshq.testing._scheduler import uncancelled

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

    __slots__ = ("_clock", "_journal_busy", "_journal_line", "_rng", "_spending", "wait_s_max")

    def __init__(
        self, rng: random.Random, clock: VirtualClock, spending: Spending, *, wait_s_max: float = 0.0002
    ) -> None:
        self._rng = rng
        self._clock = clock
        self._spending = spending
        self._journal_busy = False
        #: Who waits for the thread of the journal, in the order of coming.
        self._journal_line: deque[trio.lowlevel.Task] = deque()
        self.wait_s_max = wait_s_max

    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        await trio.lowlevel.checkpoint_if_cancelled()
        if pool == "journal":
            await self._enter_journal()
            result = await self._run(function, arguments)
            self._leave_journal()
        else:
            result = await self._run(function, arguments)
        await trio.lowlevel.checkpoint_if_cancelled()
        value: T = result.unwrap()
        return value

    async def _enter_journal(self) -> None:
        if self._journal_busy:
            self._journal_line.append(trio.lowlevel.current_task())
            await uncancelled()
        self._journal_busy = True

    def _leave_journal(self) -> None:
        if self._journal_line:
            trio.lowlevel.reschedule(self._journal_line.popleft())
        else:
            self._journal_busy = False

    def idle(self) -> bool:
        """Either answer may be true of a loop: the seed says which one is given."""
        return self._rng.random() < 0.5

    async def _run(self, function: Callable[..., T], arguments: tuple[Any, ...]) -> outcome.Outcome[T]:
        """Nothing in here can be cancelled, as a call in a thread can't be."""
        await self._wait(self._rng.random() * 2 - 1)
        spending = self._spending
        spending.in_thread = True
        result = outcome.capture(function, *arguments)
        spending.in_thread = False
        seconds = spending.take()
        if seconds:
            await self._clock.wait(seconds)
        else:
            await self._wait(self._rng.random() * 2 - 1)
        return result

    async def _wait(self, share: float) -> None:
        """Wait for this share of the longest wait; for a turn of the loop if it is negative."""
        if share > 0:
            await self._clock.wait(share * self.wait_s_max)
        else:
            await trio.lowlevel.cancel_shielded_checkpoint()


class InlineThreads(Threads):
    """Worker threads of a test: each call is made by the loop itself, between two of its turns.

    ``idle`` answers whether no task could run now; without it the answer is always no.
    """

    def __init__(self, idle: Callable[[], bool] = lambda: False) -> None:
        self._idle = idle

    async def run(self, function: Callable[..., T], *arguments: Any, pool: str = "default") -> T:
        await trio.lowlevel.checkpoint()
        result = outcome.capture(function, *arguments)
        await trio.lowlevel.cancel_shielded_checkpoint()
        await trio.lowlevel.checkpoint_if_cancelled()
        value: T = result.unwrap()
        return value

    def idle(self) -> bool:
        return self._idle()
