"""The messages of one priority in a queue: a linked list of runs in placing order.

``fresh`` points at the first run with rows that were never dispatched.  Returned rows are found through a small heap of
their runs.  All dispatched rows stand before all fresh rows, so serving the heap first restores the order.

A durable message may be dispatched only up to ``high_watermark``: the journal knows that messages up to this number may
have been delivered.  So a broker that was killed marks messages as redelivered, and at most a block too many.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final, Protocol

from meshq.broker.queue._run import PARKED, READY, UNACKED, QueueRun
from meshq.errors import invariant

#: The heap of returned runs may keep unlinked runs: half of the heap, and so many more.
_RETURNED_SLACK: Final = 64


class RunCursor(Protocol):
    """Points at a run of a list."""

    def unlinked(self, view: QueueRun) -> None:
        """Go on to the next run if the cursor points at this run, which has no messages left."""


class QueueWatcher(RunCursor, Protocol):
    """Hears of new, returned and unlinked runs of a list."""

    def appended(self, view: QueueRun) -> None:
        """Note that a run became visible."""

    def returned(self, view: QueueRun) -> None:
        """Note that messages of a run are ready again, some of which were put to filters."""


class PriorityList:
    """A priority of one queue."""

    __slots__ = (
        "_dead_returned", "absent", "cursors", "durable", "fresh", "grouped_runs", "head", "high_watermark",
        "live_runs", "parked", "priority", "reached", "ready", "returned", "tail", "wanted_watermark", "watchers",
    )  # fmt: skip

    def __init__(self, priority: int, *, durable: bool, high_watermark: float = 0) -> None:
        self.priority: int = priority
        #: Whether the queue is durable; otherwise the watermark does not matter.
        self.durable: bool = durable
        self.head: QueueRun | None = None
        self.tail: QueueRun | None = None
        self.fresh: QueueRun | None = None
        #: Messages that any consumer with credit may get, and messages that only the owner of their group may get.
        self.ready: int = 0
        self.parked: int = 0
        #: Runs with messages of groups.
        self.grouped_runs: int = 0
        self.live_runs: int = 0
        #: Durable messages up to this number may be dispatched; and the number that a dispatch has asked for.
        self.high_watermark: float = high_watermark
        self.wanted_watermark: int = 0
        #: The highest number dispatched to a consumer with a filter, or to the owner of a group.
        self.reached: int = 0
        #: The consumers with filters, of one priority each; and the browses that stand in this list.
        self.watchers: dict[QueueWatcher, None] = {}
        self.cursors: dict[RunCursor, None] = {}
        #: The next run to dispatch from, if its content is on the disk only.
        self.absent: QueueRun | None = None
        #: Runs with returned rows, by their first number; a heap.
        self.returned: list[tuple[int, QueueRun]] = []
        self._dead_returned = 0

    @property
    def waits_for_watermark(self) -> bool:
        """Whether a dispatch waits for a higher watermark."""
        return self.wanted_watermark > self.high_watermark

    def append(self, view: QueueRun) -> None:
        """Make a run visible.  Runs are appended in the order of their numbers."""
        tail = self.tail
        view.priority_list = self
        if tail is None:
            self.head = view
        else:
            invariant(tail.first < view.first, "runs become visible in placing order")
            view.previous = tail
            tail.next = view
        self.tail = view
        if self.fresh is None:
            self.fresh = view
        if self.watchers:
            for watcher in self.watchers:
                watcher.appended(view)
        self.live_runs += 1
        if view.groups is not None:
            self.grouped_runs += 1
        self.ready += view.live

    def next_span(self) -> tuple[QueueRun, int, int, bool] | None:
        """Find the next rows to dispatch that stand side by side: run, start, stop, and whether the rows are fresh."""
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
                if view.run.durable and self.durable and view.first + stop - 1 > self.high_watermark:
                    self.wanted_watermark = max(self.wanted_watermark, view.first + stop - 1)
                    stop = start + max(0, int(self.high_watermark) - view.first - start + 1)
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
        """Note that rows of a run are ready again."""
        if not view.returned:
            view.returned = True
            heappush(self.returned, (view.first, view))
        if view.filter_groups:
            for watcher in self.watchers:
                watcher.returned(view)

    def unlink(self, view: QueueRun) -> None:
        """Remove a run that has no messages left."""
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
        if self.watchers:
            for watcher in self.watchers:
                watcher.unlinked(view)
        if self.cursors:
            for cursor in self.cursors:
                cursor.unlinked(view)
        if view.returned:
            # Without consumers nothing is popped: unlinked runs must not stay in memory for their places in the heap.
            self._dead_returned += 1
            if 2 * self._dead_returned > len(self.returned) + _RETURNED_SLACK:
                self.returned = [entry for entry in self.returned if entry[1].live]
                heapify(self.returned)
                self._dead_returned = 0

    def refill(self, views: Sequence[QueueRun]) -> None:
        """Have just these runs of the list, or of other ones, in order.

        What stands before a run that was dispatched goes first, as if it had been dispatched, too.
        """
        begun = max((index for index, view in enumerate(views) if view.fresh), default=0)
        for view in views[:begun]:
            view.fresh = len(view.states)
            view.returned = view.returned or READY in view.states
        self.head = self.tail = self.fresh = self.absent = None
        self.ready = self.live_runs = self.parked = self._dead_returned = 0
        for view in views:
            view.previous = view.next = None
            self.append(view)
            self.ready += view.states.count(READY) - view.live
        # All runs before the first one with rows that were never dispatched have none.
        self.fresh = next((view for view in views if view.fresh < len(view.states)), None)
        self.returned = [(view.first, view) for view in views if view.returned]
        heapify(self.returned)

    def leave(self, views: Sequence[QueueRun]) -> None:
        """Remove some runs of the list; the others and their order stay as before."""
        for view in views:
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
            self.ready -= view.states.count(READY)
        if any(view.returned for view in views):
            gone = set(views)
            self.returned = [entry for entry in self.returned if entry[1] not in gone]
            heapify(self.returned)

    def runs(self) -> list[QueueRun]:
        """The runs, in order."""
        found = []
        view = self.head
        while view is not None:
            found.append(view)
            view = view.next
        return found

    def delivered_up_to(self, last: int) -> int:
        """Return the highest number that may have been delivered; ``last``: the queue's last number."""
        return max(self.reached, self._delivered_in_order(last))

    def _delivered_in_order(self, last: int) -> int:
        view = self.fresh
        if view is None:
            return self.tail.first + len(self.tail.states) - 1 if self.tail is not None else last
        number = view.first + view.fresh - 1
        # Messages that an earlier life may have delivered stand at the front.
        while view is not None and view.maybe:
            number = max(number, view.first + view.maybe - 1)
            view = view.next
        return number

    def check(self) -> None:
        """Assert the invariants between steps."""
        ready = parked = first = 0
        for view in self.runs():
            invariant(view.priority_list is self, "a run stands in one list")
            invariant(view.first > first, "runs stand in the order of their numbers")
            first = view.first
            unacked = view.states.count(UNACKED)
            invariant(view.live >= view.states.count(READY) + unacked, "a run's live count is that of its states")
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


def list_of(view: QueueRun) -> PriorityList:
    """The list that a visible run stands in."""
    priority_list = view.priority_list
    assert priority_list is not None
    return priority_list


def divide(source: PriorityList, key: Callable[[QueueRun], str], keys: Iterable[str]) -> dict[str, PriorityList]:
    """Move the runs with each of some keys to a list of their own, by key; the order of all is kept.

    ``source`` has neither groups nor watchers.  However many keys there are, its runs are looked at once.
    """
    invariant(not source.watchers and not source.grouped_runs, "a list without groups and filters is divided")
    moved: dict[str, list[QueueRun]] = {one: [] for one in keys}
    view = source.head
    while view is not None:
        if (views := moved.get(key(view))) is not None:
            views.append(view)
        view = view.next
    source.leave([view for views in moved.values() for view in views])
    found = {}
    for one, views in moved.items():
        added = PriorityList(source.priority, durable=source.durable, high_watermark=source.high_watermark)
        added.reached = source.reached
        added.refill(views)
        found[one] = added
    return found
