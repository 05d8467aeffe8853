"""The priority lists of a queue, from the highest priority down, and their common watermark and runs."""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import Final

from meshq import limits
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._run import QueueRun

_PRIORITY: Final = attrgetter("priority")


class PriorityLists:
    """All priority lists of one queue; ``main`` is that of the default priority, and always there."""

    __slots__ = ("_by_priority", "_durable", "all", "main")

    def __init__(self, *, durable: bool) -> None:
        self._durable = durable
        self.main: PriorityList = PriorityList(limits.PRIORITY_DEFAULT, durable=durable)
        self._by_priority = {self.main.priority: self.main}
        #: From the highest priority down.
        self.all: list[PriorityList] = [self.main]

    def get(self, priority: int) -> PriorityList | None:
        """Return the list of a priority; None: there is none yet."""
        return self._by_priority.get(priority)

    def add(self, priority: int) -> PriorityList:
        """Add the list of another priority."""
        high_watermark = self.main.high_watermark if self.main.high_watermark == math.inf else 0
        added = PriorityList(priority, durable=self._durable, high_watermark=high_watermark)
        self._by_priority[priority] = added
        self.all = sorted(self._by_priority.values(), key=_PRIORITY, reverse=True)
        return added

    @property
    def high_watermark(self) -> float:
        """The highest number of a durable message of default priority that may be dispatched."""
        return self.main.high_watermark

    @high_watermark.setter
    def high_watermark(self, high_watermark: float) -> None:
        for priority_list in self.all:
            priority_list.high_watermark = high_watermark

    @property
    def live_runs(self) -> int:
        """Runs, or parts of runs, in the lists."""
        return sum(priority_list.live_runs for priority_list in self.all)

    def walk(self) -> Iterator[QueueRun]:
        """Iterate over the runs in order; the run that was yielded last may be unlinked."""
        for priority_list in self.all:
            view = priority_list.head
            while view is not None:
                following = view.next
                yield view
                view = following

    def runs(self) -> list[QueueRun]:
        """Return the runs, from the highest priority down, and in order."""
        return list(self.walk())

    def delivered_up_to(self, last: int) -> dict[int, int]:
        """By priority: the highest number that may have been delivered, in this life or an earlier one; ``last``: the
        queue's last number."""
        return {priority_list.priority: priority_list.delivered_up_to(last) for priority_list in self.all}
