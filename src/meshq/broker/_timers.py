"""What is to be done later, by the wall clock: what is due goes in the order of its times.

Nothing here looks at a clock.  Whoever has one asks for ``next_ms``, and calls ``run`` when it has come.
"""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush

from meshq import limits


class Timers:
    """Calls to be made, by their times."""

    __slots__ = ("_count", "_heap", "on_sooner")

    def __init__(self) -> None:
        # Time, how many came before it, what to call: equal times go in the order in which they came.
        self._heap: list[tuple[int, int, Callable[[], None]]] = []
        self._count = 0
        #: Called when something is due earlier than everything before.
        self.on_sooner: Callable[[], None] = _nobody

    def __len__(self) -> int:
        return len(self._heap)

    @property
    def next_ms(self) -> int | None:
        """When the first of them is due; None: there is none."""
        return self._heap[0][0] if self._heap else None

    def at(self, due_ms: int, call: Callable[[], None]) -> None:
        """Call this when it is due."""
        heap = self._heap
        sooner = not heap or due_ms < heap[0][0]
        self._count += 1
        heappush(heap, (due_ms, self._count, call))
        if sooner:
            self.on_sooner()

    def run(self, now_ms: int, budget: int = limits.STEP_MESSAGES_MAX) -> bool:
        """Do what is due, at most ``budget`` calls; returns whether some are left that are due."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            if not budget:
                return True
            budget -= 1
            heappop(heap)[2]()
        return False


def _nobody() -> None:
    """For a callback that nobody has set."""
