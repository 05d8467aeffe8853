"""The priority lists of a queue, with their common watermark; and the runs that are not due yet.

No list has a run that is not due, and no count knows of its messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from operator import attrgetter
from typing import Final

from meshq import limits
from meshq.broker.queue._message_counts import drop_rows
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._run import QueueRun
from meshq.errors import invariant

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

    def set_branches(self, branches: Iterable[PriorityList]) -> None:
        """Have these lists behind the main list: the branches of a store-and-forward queue."""
        self.all = [self.main, *branches]

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
        delivered: dict[int, int] = {}
        for one in self.all:
            delivered[one.priority] = max(delivered.get(one.priority, 0), one.delivered_up_to(last))
        return delivered


class ScheduledRuns:
    """Runs that are not due yet, in the order in which they were stored.

    Invariant: ``messages`` is the number of live messages in the runs.
    """

    __slots__ = ("_runs", "messages")

    def __init__(self) -> None:
        self._runs: dict[QueueRun, None] = {}
        self.messages: int = 0

    def __len__(self) -> int:
        return len(self._runs)

    def __iter__(self) -> Iterator[QueueRun]:
        return iter(self._runs)

    def __reversed__(self) -> Iterator[QueueRun]:
        return reversed(self._runs)

    def __contains__(self, view: QueueRun) -> bool:
        return view in self._runs

    def add(self, view: QueueRun) -> None:
        """Add a run."""
        self._runs[view] = None
        self.messages += view.live

    def remove(self, view: QueueRun) -> None:
        """Remove a run, which is due."""
        del self._runs[view]
        self.messages -= view.live

    def leave(self, view: QueueRun, rows: range) -> bool:
        """Remove messages of a run; return True if none is left of it."""
        self.messages -= view.live
        drop_rows(view, rows)
        self.messages += view.live
        if not view.live:
            del self._runs[view]
        return not view.live

    def clear(self) -> list[QueueRun]:
        """Remove all runs; return these."""
        found, self._runs = list(self._runs), {}
        self.messages = 0
        return found

    def check(self) -> None:
        """Assert the invariant between steps."""
        live = sum(view.live for view in self._runs)
        invariant(self.messages == live, "the number of scheduled messages is that of their runs")
