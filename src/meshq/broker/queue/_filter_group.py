"""A filter group: the consumers of a queue that have the same filter, and the messages that the filter accepts."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Final

from meshq.broker.queue._consumer_state import AnyConsumer, fitting, span_bytes
from meshq.broker.queue._run import QueueRun
from meshq.selector import Filter, parse_filter

#: The filter of a consumer without one, where all are served evenly.
EVERYTHING: Final = parse_filter("TRUE")
#: A heap may keep so many unlinked runs beyond the number of runs.
_SLACK: Final = 64


def filter_of(consumer: AnyConsumer) -> Filter:
    """Return the filter of a consumer that is served by its filter."""
    return consumer.filter if consumer.filter is not None else EVERYTHING


class FilterGroup:
    """The consumers with the same filter.

    ``QueueRun.filter_groups`` has the rows that the filter accepts, for each run in ``runs``.
    """

    __slots__ = ("_heap", "_next_index", "behind", "consumers", "filter", "half", "queued", "runs", "until", "used")

    def __init__(self, filter: Filter) -> None:
        self.filter = filter
        self.consumers: list[AnyConsumer] = []
        self._next_index = 0
        # Runs with messages that the filter accepts, ready or not, by their first number.
        self.runs: dict[int, QueueRun] = {}
        # Of these runs, the ones that may have ready messages: a heap, and its content.
        self._heap: list[int] = []
        self.queued: dict[int, None] = {}
        # The run that this group scans next by itself, until it reaches the run that all groups scan together.
        self.behind: QueueRun | None = None
        # Of a run that is scanned in part: the rows that are left, and those that the filter has accepted.
        self.half: tuple[list[int], list[int]] | None = None
        self.until = 0
        #: The share that the group has had where all are served evenly, in messages for each of its consumers.
        self.used: float = 0.0

    def willing(self) -> list[AnyConsumer]:
        """Return the consumers with credit, in the order of the rotation."""
        consumers, next_index = self.consumers, self._next_index
        if next_index:
            consumers = consumers[next_index:] + consumers[:next_index]
        return [consumer for consumer in consumers if consumer.credit() > 0]

    def waits_for_memory(self) -> bool:
        """Whether a consumer gets nothing because of the memory that unacked messages keep."""
        return any(consumer.waits_for_memory for consumer in self.consumers)

    def served(self, last: AnyConsumer) -> None:
        """Advance the rotation behind the consumer that was served last."""
        self._next_index = (self.consumers.index(last) + 1) % len(self.consumers)

    def remove(self, consumer: AnyConsumer) -> None:
        """Remove a consumer."""
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self._next_index:
            self._next_index -= 1
        if self._next_index >= len(self.consumers):
            self._next_index = 0

    def push(self, first: int) -> None:
        """Note that the run with this first number may have ready messages for the group."""
        if first not in self.queued:
            self.queued[first] = None
            heappush(self._heap, first)

    def forget(self, first: int) -> None:
        """Forget a run that was unlinked."""
        del self.runs[first]
        self.queued.pop(first, None)
        if len(self._heap) > 2 * len(self.queued) + _SLACK:
            self._heap = sorted(self.queued)

    def next_rows(self) -> tuple[QueueRun, list[int]] | None:
        """Find the first run with ready messages for the group, and their rows; None if no such run is known."""
        heap = self._heap
        while heap:
            view = self.runs.get(heap[0])
            if view is not None and view.filter_groups is not None:
                if self.behind is not None and self.behind.first < view.first:
                    # An earlier run may have messages for the group: it is not scanned yet.
                    return None
                states = view.states
                rows = [row for row in view.filter_groups[self] if not states[row]]
                if rows:
                    return view, rows
            self.queued.pop(heappop(heap), None)
        return None


def stride(rows: list[int]) -> tuple[int, int]:
    """Return how many rows, from the first on, have the same distance, and the distance."""
    if len(rows) == 1:
        return 1, 1
    if rows[-1] - rows[0] == len(rows) - 1:
        return len(rows), 1
    step = rows[1] - rows[0]
    count = 2
    while count < len(rows) and rows[count] - rows[count - 1] == step:
        count += 1
    return count, step


def fitting_rows(view: QueueRun, rows: Sequence[int], credit_bytes: int) -> int:
    """Return how many rows, from the first on, fit together into ``credit_bytes``."""
    if rows and rows[-1] - rows[0] == len(rows) - 1:
        return fitting(view, rows[0], rows[-1] + 1, credit_bytes)
    total = 0
    for count, row in enumerate(rows):
        total += span_bytes(view, row, row + 1)
        if total > credit_bytes:
            return count
    return len(rows)
