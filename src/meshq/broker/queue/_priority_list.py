"""The messages of one priority in a queue: runs in placing order, and where to find the ones that are ready.

A linked list of runs.  ``fresh`` points at the first run with rows that were never granted; rows that come back are
found through a small heap of their runs, and since everything granted stands before everything fresh, serving the
heap first restores the order.

A durable message may be granted only up to ``mark``: the number up to which the journal knows that messages may
have been delivered.  That is how a broker that was killed marks what comes again, and nothing but a block more.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from meshq.broker.queue._run import HELD, PARKED, READY, QueueRun
from meshq.errors import invariant

if TYPE_CHECKING:
    from meshq.broker.queue._browser import Browser
    from meshq.broker.queue._filtered_machine import FilteredConsumers

#: Runs that are gone may stay in the heap of those with returned rows, but not many more than half of it.
_RETURNED_SLACK: Final = 64


class PriorityList:
    """One priority of one queue."""

    __slots__ = (
        "_dead_returned", "absent", "browsers", "durable", "filtered", "fresh", "grouped_runs", "head", "live_runs",
        "mark", "mark_wanted", "parked", "priority", "reached", "ready", "returned", "tail",
    )  # fmt: skip

    def __init__(self, priority: int, *, durable: bool, mark: float = 0) -> None:
        self.priority = priority
        #: Whether the queue is, so that marks matter.
        self.durable = durable
        self.head: QueueRun | None = None
        self.tail: QueueRun | None = None
        self.fresh: QueueRun | None = None
        #: Messages that may be granted as soon as somebody has room, and those that only the owner of their group gets.
        self.ready = 0
        self.parked = 0
        #: Runs with messages of groups.
        self.grouped_runs = 0
        self.live_runs = 0
        #: Durable messages up to this number may be granted, and the number up to which somebody would like to.
        self.mark = mark
        self.mark_wanted = 0
        #: The highest number granted to a consumer with a filter, or to the owner of a group.
        self.reached = 0
        #: Whoever looks after the consumers with filters, if there are any, by the priority of these.
        self.filtered: dict[int, FilteredConsumers] = {}
        #: Those who look at what is here.
        self.browsers: dict[Browser, None] = {}
        #: The next run to be granted from, if its content is not here.
        self.absent: QueueRun | None = None
        #: Runs with rows that came back, by their first number; a heap.
        self.returned: list[tuple[int, QueueRun]] = []
        self._dead_returned = 0

    @property
    def stuck(self) -> bool:
        """Somebody would be granted something, once the mark has moved."""
        return self.mark_wanted > self.mark

    def append(self, view: QueueRun) -> None:
        """A run becomes visible.  Runs are appended in the order of their numbers."""
        tail = self.tail
        invariant(tail is None or tail.first < view.first, "runs become visible in placing order")
        view.level = self
        view.previous = tail
        if tail is None:
            self.head = view
        else:
            tail.next = view
        self.tail = view
        if self.fresh is None:
            self.fresh = view
        if self.filtered:
            for filtered in self.filtered.values():
                filtered.appended(view)
        self.live_runs += 1
        if view.groups is not None:
            self.grouped_runs += 1
        self.ready += view.live

    def next_span(self) -> tuple[QueueRun, int, int, bool] | None:
        """The next rows that may be granted and stand side by side: run, start, stop, whether they are fresh."""
        while self.returned:
            view = self.returned[0][1]
            span = view.ready_span(0, view.fresh) if view.live else None
            if span is not None:
                if view.run.paged:
                    self.absent = view
                    return None
                return view, *span, False
            heappop(self.returned)
            view.returned = False
            if not view.live:
                self._dead_returned -= 1
        view_or_none = self.fresh
        while view_or_none is not None:
            view = view_or_none
            rows = len(view.states)
            span = view.ready_span(view.fresh, rows) if view.live else None
            if span is not None:
                start, stop = span
                if view.run.durable and self.durable and view.first + stop - 1 > self.mark:
                    self.mark_wanted = max(self.mark_wanted, view.first + stop - 1)
                    stop = start + max(0, int(self.mark) - view.first - start + 1)
                    if stop <= start:
                        self.fresh = view
                        return None
                self.fresh = view
                if view.run.paged:
                    self.absent = view
                    return None
                return view, start, stop, True
            view.fresh = rows
            view_or_none = view.next
        self.fresh = None
        return None

    def came_back(self, view: QueueRun) -> None:
        """Rows of a run are ready again."""
        if not view.returned:
            view.returned = True
            heappush(self.returned, (view.first, view))
        if view.lanes:
            for filtered in self.filtered.values():
                filtered.returned(view)

    def unlink(self, view: QueueRun) -> None:
        """A run has no messages left."""
        before, after = view.previous, view.next
        if before is None:
            self.head = after
        else:
            before.next = after
        if after is None:
            self.tail = before
        else:
            after.previous = before
        if self.fresh is view:
            self.fresh = after
        if self.absent is view:
            self.absent = None
        self.live_runs -= 1
        if view.groups is not None:
            self.grouped_runs -= 1
        if self.filtered:
            for filtered in self.filtered.values():
                filtered.unlinked(view)
        if self.browsers:
            for browser in self.browsers:
                browser.unlinked(view)
        if view.returned:
            # Where nobody takes what comes back, what is gone must not be kept for its place in the heap.
            self._dead_returned += 1
            if 2 * self._dead_returned > len(self.returned) + _RETURNED_SLACK:
                self.returned = [entry for entry in self.returned if entry[1].live]
                heapify(self.returned)
                self._dead_returned = 0

    def runs(self) -> list[QueueRun]:
        """The runs, in order."""
        found = []
        view = self.head
        while view is not None:
            found.append(view)
            view = view.next
        return found

    def granted(self, last: int) -> int:
        """No message above this number may ever have been delivered; ``last``: the queue's last number."""
        return max(self.reached, self._granted_in_order(last))

    def _granted_in_order(self, last: int) -> int:
        view = self.fresh
        if view is None:
            return self.tail.first + len(self.tail.states) - 1 if self.tail is not None else last
        number = view.first + view.fresh - 1
        # What an earlier life may have delivered stands at the front.
        while view is not None and view.maybe:
            number = max(number, view.first + view.maybe - 1)
            view = view.next
        return number

    def check(self) -> None:
        """Assert what must hold between steps."""
        ready = parked = first = 0
        for view in self.runs():
            invariant(view.level is self, "a run stands in one list")
            invariant(view.first > first, "runs stand in the order of their numbers")
            first = view.first
            held = view.states.count(HELD)
            invariant(view.live >= view.states.count(READY) + held, "a run's live count is that of its states")
            invariant(
                view.returned or view.states.find(READY, 0, view.fresh) < 0,
                "a ready row before the fresh ones is found through the heap",
            )
            ready += view.states.count(READY)
            parked += view.states.count(PARKED)
        invariant((ready, parked) == (self.ready, self.parked), "what is ready, or parked, is what the states say")
        invariant(
            self._dead_returned == sum(not view.live for _, view in self.returned),
            "what is gone in the heap is counted",
        )
        for filtered in self.filtered.values():
            filtered.check()


def level_of(view: QueueRun) -> PriorityList:
    """The list that a visible run stands in."""
    level = view.level
    assert level is not None
    return level
