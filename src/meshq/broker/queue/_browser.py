"""Browsing: a consumer sees the messages of a queue, ready or unacked, in the order of delivery, and takes none.

A browse ends with the message that was last in the queue when it began.  A browser points at a run, and the run's list
tells it when the run is unlinked; so it needs no copy of the queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from meshq import limits
from meshq.broker.queue._consumer_state import AnyConsumer, DeliverySink, Dispatch, span_bytes
from meshq.broker.queue._filter_group import fitting_rows
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._priority_lists import PriorityLists
from meshq.broker.queue._run import GONE, QueueRun
from meshq.broker.queue._run_messages import accepted
from meshq.broker.queue._unfinished_work import UnfinishedWork
from meshq.broker.records._row_ranges import pieces
from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker.queue._consumer_roster import ConsumerRoster


class BrowseSink(DeliverySink, Protocol):
    """The session of a browse."""

    def lose_consumer(self, consumer: AnyConsumer, code: int, text: str) -> None:
        """End the consumer of the browse; code 0: the browse has shown everything."""


class QueueToBrowse(Protocol):
    """A queue, as far as a browse knows it."""

    name: str
    lists: PriorityLists
    pending: UnfinishedWork
    roster: ConsumerRoster

    def begin_browse(self, browser: Browser) -> None:
        """Let a browse look at each dispatch of the queue."""

    def end_browse(self, browser: Browser) -> None:
        """Let a browse look no more, if it has begun."""


class Browser:
    """A browse.  ``consumer`` has the window and the tags, and is not among the consumers that the queue serves."""

    __slots__ = (
        "_ahead", "_filter", "_priority_list", "_queue", "_row", "_until", "_view", "consumer", "ended", "sink",
        "unfinished",
    )  # fmt: skip

    def __init__(self, queue: QueueToBrowse, consumer: AnyConsumer, filter: Filter | None, sink: BrowseSink) -> None:
        self._queue = queue
        self.consumer: AnyConsumer = consumer
        self.sink: BrowseSink = sink
        self._filter = filter
        #: Everything was shown.
        self.ended: bool = False
        #: There is more to look at, and it was enough for one step.
        self.unfinished: bool = False
        # The lists that come later, the list and run that it stands in, and the row.
        self._ahead: list[PriorityList] = []
        self._priority_list: PriorityList | None = None
        self._view: QueueRun | None = None
        self._row = 0
        # The last message that is shown.
        self._until = 0

    def begin(self) -> None:
        """Begin at the head of the queue, as it is now."""
        queue = self._queue
        tails = [priority_list.tail for priority_list in queue.lists.all if priority_list.tail is not None]
        self._until = max((tail.first + len(tail.states) - 1 for tail in tails), default=0)
        self._ahead = queue.lists.all[::-1]
        queue.begin_browse(self)
        self._next_list()

    def end(self) -> None:
        """End the browse."""
        self.consumer.unsettled()
        self._queue.end_browse(self)
        if self._priority_list is not None:
            self._priority_list.cursors.pop(self, None)
        self._priority_list = self._view = None

    def _next_list(self) -> None:
        if self._priority_list is not None:
            del self._priority_list.cursors[self]
        self._priority_list = self._ahead.pop() if self._ahead else None
        if self._priority_list is not None:
            self._priority_list.cursors[self] = None
            self._view, self._row = self._priority_list.head, 0

    def settled(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Free the credit of messages that the application has seen.

        Raises:
            RemoteProtocolError: a tag was not given, or was settled before.
        """
        for first, last in ranges:
            self.consumer.take(first, last)

    def unlinked(self, view: QueueRun) -> None:
        """A run of its list is gone."""
        if self._view is view:
            self._view, self._row = view.next, 0

    def look(self) -> list[Dispatch]:
        """Return the next dispatches, as far as the credit goes."""
        shown: list[Dispatch] = []
        looks = limits.SCAN_MESSAGES_MAX
        self.unfinished = False
        while self._priority_list is not None:
            view = self._view
            if view is None or view.first > self._until:
                self._next_list()
                continue
            if self.consumer.credit() <= 0:
                break
            if looks <= 0:
                self.unfinished = True
                break
            if view.run.paged:
                self._queue.pending.fault_in(view)
                break
            rows, seen, work = self._rows(view, looks)
            looks -= work
            count = self._fitting(view, rows)
            shown += [self._show(view, part) for part in pieces(rows[:count])]
            if count < len(rows):
                self._row = rows[count]
                break
            if seen < len(view.states):
                self._row = seen
                continue
            self._view, self._row = view.next, 0
        self.ended = self._priority_list is None
        return shown

    def _rows(self, view: QueueRun, looks: int) -> tuple[Sequence[int], int, int]:
        """Scan the run from the current row on: the accepted rows, the row where the scan ended, and the work."""
        states, filter = view.states, self._filter
        if filter is None and view.live == len(states):
            # All of them, and nothing is done for each.
            return range(self._row, len(states)), len(states), len(states)
        rows = [row for row in range(self._row, len(states)) if states[row] != GONE]
        if filter is None or not rows:
            return rows, len(states), len(states)
        found, seen, work = accepted(view.run, filter, rows, looks)
        return found, rows[seen] if seen < len(rows) else len(states), work

    def _fitting(self, view: QueueRun, rows: Sequence[int]) -> int:
        consumer = self.consumer
        count = fitting_rows(view, rows[: consumer.credit()], consumer.window_bytes - consumer.unacked_bytes)
        # One message always fits.
        return 1 if rows and not count and not consumer.unacked else count

    def _show(self, view: QueueRun, rows: range) -> Dispatch:
        consumer = self.consumer
        dispatch = Dispatch(view, rows.start, rows.stop, rows.step, consumer.next_tag)
        dispatch.size_bytes = span_bytes(view, dispatch.start, dispatch.stop, dispatch.step)
        consumer.record_dispatch(dispatch)
        return dispatch
