"""What is to be done later, by the wall clock: what is due goes in the order of its times.

Nothing here looks at a clock.  Whoever has one asks for ``next_ms``, and calls ``run`` when it has come.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from meshq import limits

if TYPE_CHECKING:
    from meshq.broker.queue._run import QueueRun

#: Calls about runs that are gone may stay in the heap, but not many more than half of it.
_SLACK: Final = 64


class Timer:
    """A call about a run; it is dropped when the run goes, and doesn't keep its content until then."""

    __slots__ = ("call", "view")

    def __init__(self, view: QueueRun, call: Callable[[], None]) -> None:
        self.view = view
        #: None: it was cancelled.
        self.call: Callable[[], None] | None = call


class Timers:
    """Calls to be made, by their times."""

    __slots__ = ("_count", "_dead", "_heap", "on_sooner")

    def __init__(self) -> None:
        # Time, how many came before it, what to call: equal times go in the order in which they came.
        self._heap: list[tuple[int, int, Timer]] = []
        self._count = 0
        self._dead = 0
        #: Called when something is due earlier than everything before.
        self.on_sooner: Callable[[], None] = _nobody

    def __len__(self) -> int:
        return len(self._heap) - self._dead

    @property
    def next_ms(self) -> int | None:
        """When the first of them is due, or was before it was cancelled; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def at(self, due_ms: int, view: QueueRun, call: Callable[[], None]) -> None:
        """Call this when it is due, unless the run is gone by then."""
        timer = Timer(view, call)
        if view.timers is None:
            view.timers = {}
        view.timers[timer] = None
        heap = self._heap
        sooner = not heap or due_ms < heap[0][0]
        self._count += 1
        heappush(heap, (due_ms, self._count, timer))
        if sooner:
            self.on_sooner()

    def cancel(self, view: QueueRun) -> None:
        """The run is gone."""
        timers, view.timers = view.timers, None
        for timer in timers or ():
            timer.call = None
            self._dead += 1
        if self._dead > len(self._heap) // 2 + _SLACK:
            self._heap = [entry for entry in self._heap if entry[2].call is not None]
            heapify(self._heap)
            self._dead = 0

    def run(self, now_ms: int, budget: int = limits.STEP_MESSAGES_MAX) -> bool:
        """Do what is due, at most ``budget`` calls; returns whether some are left that are due."""
        while self._heap and self._heap[0][0] <= now_ms:
            if not budget:
                return True
            _, _, timer = heappop(self._heap)
            if timer.call is None:
                self._dead -= 1
                continue
            budget -= 1
            if timer.view.timers is not None:
                del timer.view.timers[timer]
            timer.call()
        return False


def _nobody() -> None:
    """For a callback that nobody has set."""
