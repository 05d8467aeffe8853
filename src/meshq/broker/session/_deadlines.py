"""Deadlines of detached sessions, which may be resumed before: the soonest is found without a search."""

from __future__ import annotations

import heapq
from typing import Final

#: Entries that are over may be so many, and as many again as there are deadlines, before they are thrown out.
STALE_MAX: Final = 64


class Deadlines:
    """A deadline for each of some numbers, on any rising clock."""

    __slots__ = ("_heap", "_of")

    def __init__(self) -> None:
        # The deadline of each number that has one.
        self._of: dict[int, float] = {}
        # Every deadline that was set, the soonest first; what ``_of`` says otherwise is over.
        self._heap: list[tuple[float, int]] = []

    def __len__(self) -> int:
        return len(self._of)

    def set(self, number: int, at: float) -> None:
        """Give a number a deadline, in place of any."""
        self._of[number] = at
        heapq.heappush(self._heap, (at, number))
        if len(self._heap) > 2 * len(self._of) + STALE_MAX:
            self._heap = [(when, one) for one, when in self._of.items()]
            heapq.heapify(self._heap)

    def forget(self, number: int) -> None:
        """Take the deadline of a number away, if it has one."""
        self._of.pop(number, None)

    def soonest(self) -> float | None:
        """The next deadline; None if there is none."""
        heap, of = self._heap, self._of
        while heap and of.get(heap[0][1]) != heap[0][0]:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def due(self, now: float) -> list[int]:
        """The numbers whose time is up, the soonest first; they have no deadline any more."""
        found: list[int] = []
        while (at := self.soonest()) is not None and at <= now:
            number = heapq.heappop(self._heap)[1]
            del self._of[number]
            found.append(number)
        return found
