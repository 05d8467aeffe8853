"""Timers of runs: calls that are due later, in the order of their times.

There are two clocks.  A message expires at a time of day, by the wall clock.  A delay, and a further attempt, counts
the time that has passed, and does not depend on the wall clock.  Nothing here waits: the node asks for ``wait_ms`` and
calls ``run`` after that time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Final, NamedTuple, Protocol

from meshq import limits

#: Calls about runs that are gone may stay in the heap, but not many more than half of it.
_SLACK: Final = 64


class DueTime(NamedTuple):
    """When something may be had again, ms: of this life (``TimerService.elapsed_ms``), or ``by_wall`` since 1970."""

    time_ms: float
    by_wall: bool = False


#: There is no such time.
NEVER: Final = DueTime(math.inf)


class TimedRun(Protocol):
    """A run of a queue, as far as its timers are concerned."""

    #: The calls that are due later; None: there are none.
    timers: dict[Timer, None] | None


class Timer:
    """A call about a run; it is dropped when the run goes, and doesn't keep its content until then."""

    __slots__ = ("call", "timers", "view")

    def __init__(self, timers: TimerHeap, view: TimedRun, call: Callable[[], None]) -> None:
        self.timers = timers
        self.view = view
        #: None: it was cancelled.
        self.call: Callable[[], None] | None = call


class TimerHeap:
    """Calls to be made, by their times on one clock."""

    __slots__ = ("_count", "_dead", "_heap", "_wake")

    def __init__(self, wake: Callable[[], None] | None) -> None:
        # Time, how many came before it, what to call: equal times go in the order in which they came.
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0
        self._dead = 0
        # Called when something is due earlier than everything before.
        self._wake = wake

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    @property
    def next_ms(self) -> float | None:
        """When the first of them is due, or was before it was cancelled; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def at(self, due_ms: float, view: TimedRun, call: Callable[[], None]) -> None:
        """Call this when it is due, unless the run is gone by then."""
        timer = Timer(self, view, call)
        if view.timers is None:
            view.timers = {}
        view.timers[timer] = None
        heap = self._heap
        sooner = not heap or due_ms < heap[0][0]
        self._count += 1
        heappush(heap, (due_ms, self._count, timer))
        if sooner and self._wake is not None:
            self._wake()

    def dropped(self) -> None:
        """A call is not to be made any more."""
        self._dead += 1
        if self._dead > len(self._heap) // 2 + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
            self._dead = 0

    def run(self, now_ms: float, budget: int) -> int:
        """Run the timers that are due, at most ``budget``; return how much of the budget is left."""
        while budget and self._heap and self._heap[0][0] <= now_ms:
            _, _, timer = heappop(self._heap)
            if timer.call is None:
                self._dead -= 1
                continue
            budget -= 1
            if timer.view.timers is not None:
                del timer.view.timers[timer]
            timer.call()
        return budget


class TimerService:
    """Calls to be made at times of day, and after so much time.

    ``wake`` is called when something is due earlier than everything before; None: who runs the timers looks at
    ``wait_ms`` often enough.
    """

    __slots__ = ("_delays", "_elapsed_ms", "_expiries", "_now_ms")

    def __init__(
        self, now_ms: Callable[[], int], elapsed_ms: Callable[[], float], wake: Callable[[], None] | None = None
    ) -> None:
        self._now_ms = now_ms
        self._elapsed_ms = elapsed_ms
        self._delays = TimerHeap(wake)
        self._expiries = TimerHeap(wake)

    def __len__(self) -> int:
        return len(self._delays) + len(self._expiries)

    @property
    def now_ms(self) -> int:
        """The time of day, ms since 1970."""
        return self._now_ms()

    @property
    def elapsed_ms(self) -> float:
        """The time that has passed since some moment before this life began, ms."""
        return self._elapsed_ms()

    @property
    def wait_ms(self) -> float | None:
        """How long until something is due; None: there is nothing."""
        delay, expiry = self._delays.next_ms, self._expiries.next_ms
        waits = [due - now for due, now in ((delay, self._elapsed_ms()), (expiry, self._now_ms())) if due is not None]
        return min(waits, default=None)

    def at(self, due: DueTime, view: TimedRun, call: Callable[[], None]) -> None:
        """Call this when it is due, unless the run is gone by then."""
        # A sum may miss by a hair what the clock, which counts whole microseconds, can show.
        (self._expiries if due.by_wall else self._delays).at(round(due.time_ms, 3), view, call)

    def time_of_day(self, due: DueTime) -> int:
        """When it is due as far as can be said for a later life, ms since 1970; 0: at no time of its own."""
        if due.time_ms == math.inf:
            return 0
        return max(1, math.ceil(due.time_ms if due.by_wall else due.time_ms - self._elapsed_ms() + self._now_ms()))

    def left_ms(self, due: DueTime) -> int:
        """How long it is until then, ms; 0: that time has come."""
        if due.time_ms == math.inf:
            return 0
        now = self._now_ms() if due.by_wall else self._elapsed_ms()
        return max(0, math.ceil(round(due.time_ms - now, 3)))

    def run(self, budget: int = limits.STEP_MESSAGES_MAX) -> bool:
        """Run the timers that are due, at most ``budget``; return True if any may be left."""
        budget = self._delays.run(self._elapsed_ms(), budget)
        return not self._expiries.run(self._now_ms(), budget)

    def expire(self, budget: int = limits.STEP_MESSAGES_MAX) -> bool:
        """Run the timers that are due by the time of day, at most ``budget``; return True if any may be left."""
        due = self._expiries.next_ms
        if due is None or due > self._now_ms():
            return False
        return not self._expiries.run(self._now_ms(), budget)


def cancel_timers(view: TimedRun) -> None:
    """Cancel the timers of a run that is gone."""
    timers, view.timers = view.timers, None
    for timer in timers or ():
        timer.call = None
        timer.timers.dropped()
