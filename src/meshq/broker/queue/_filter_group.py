"""A lane: the consumers of a queue that have one filter, and where the messages stand that it accepts."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import Final

from meshq.broker.queue._consumer_state import ConsumerState, span_bytes
from meshq.broker.queue._run import QueueRun
from meshq.selector import Filter

#: Numbers of runs that are gone may stay in a heap, but not many more than there are runs.
_SLACK: Final = 64


class FilterGroup:
    """The consumers with one filter.

    ``QueueRun.lanes`` has the rows that the filter accepts, for each run in ``runs``.
    """

    __slots__ = ("_heap", "_turn", "behind", "consumers", "filter", "half", "queued", "runs", "until")

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.consumers: list[ConsumerState] = []
        self._turn = 0
        # Runs with messages that the filter accepts, ready or not, by their first number.
        self.runs: dict[int, QueueRun] = {}
        # Of these, the ones that may have some that are ready: a heap, and what stands in it.
        self._heap: list[int] = []
        self.queued: dict[int, None] = {}
        # The run that it looks at next for itself, until it has come to where all lanes look together.
        self.behind: QueueRun | None = None
        # Of that, if it has begun: the rows that are left, and those that the filter has accepted.
        self.half: tuple[list[int], list[int]] | None = None
        self.until = 0

    def willing(self) -> list[ConsumerState]:
        """Its consumers with room, whose turn it is first."""
        consumers, turn = self.consumers, self._turn
        if turn:
            consumers = consumers[turn:] + consumers[:turn]
        return [consumer for consumer in consumers if consumer.room() > 0]

    def served(self, last: ConsumerState) -> None:
        """Whose turn it was."""
        self._turn = (self.consumers.index(last) + 1) % len(self.consumers)

    def remove(self, consumer: ConsumerState) -> None:
        """A consumer leaves."""
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self._turn:
            self._turn -= 1
        if self._turn >= len(self.consumers):
            self._turn = 0

    def push(self, first: int) -> None:
        """The run with this first number may have ready messages for it."""
        if first not in self.queued:
            self.queued[first] = None
            heappush(self._heap, first)

    def forget(self, first: int) -> None:
        """The run is gone."""
        del self.runs[first]
        self.queued.pop(first, None)
        if len(self._heap) > 2 * len(self.queued) + _SLACK:
            self._heap = sorted(self.queued)

    def next_rows(self) -> tuple[QueueRun, list[int]] | None:
        """The first run with ready messages for it, and their rows; None if none is known."""
        heap = self._heap
        while heap:
            view = self.runs.get(heap[0])
            if view is not None and view.lanes is not None:
                if self.behind is not None and self.behind.first < view.first:
                    # Something may stand before it.
                    return None
                states = view.states
                rows = [row for row in view.lanes[self] if not states[row]]
                if rows:
                    return view, rows
            self.queued.pop(heappop(heap), None)
        return None


def stride(rows: list[int]) -> tuple[int, int]:
    """How many of these rows, from the first on, have the same distance, and which."""
    if len(rows) == 1:
        return 1, 1
    step = rows[1] - rows[0]
    count = 2
    while count < len(rows) and rows[count] - rows[count - 1] == step:
        count += 1
    return count, step


def fitting_rows(view: QueueRun, rows: list[int], room_bytes: int) -> int:
    """How many of these rows, from the first on, fit together into ``room_bytes``."""
    total = 0
    for count, row in enumerate(rows):
        total += span_bytes(view, row, row + 1)
        if total > room_bytes:
            return count
    return len(rows)
