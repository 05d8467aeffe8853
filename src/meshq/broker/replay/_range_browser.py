"""Ranged browsing: the messages of a queue in the order of their numbers, from a number on, and none is taken.

A browse from ``lo`` to ``hi`` is the same each time as long as nothing of the range leaves the queue, so whoever lost
its connection goes on behind the last number.  One without an end follows the queue.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from meshq.broker.cursors._cursor_machine import check_owner
from meshq.broker.queue._browser import Browser, BrowseSink, QueueToBrowse
from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._run import QueueRun
from meshq.broker.records._row_ranges import pieces
from meshq.errors import CursorLostError, MeshqError
from meshq.limits import SCAN_MESSAGES_MAX
from meshq.selector import Filter
from meshq.wire import refusal_of


class RangeBrowser(Browser):
    """A browse of the numbers from ``lo`` up to, and without, ``hi``; ``hi`` 0: it has no end.

    ``owner``: the name of a cursor and a fence: the browse ends with that ownership; fence 0: it is anybody's.
    """

    __slots__ = ("_at", "_hi", "_places", "owner")

    def __init__(
        self,
        queue: QueueToBrowse,
        consumer: AnyConsumer,
        filter: Filter | None,
        sink: BrowseSink,
        numbers: tuple[int, int],
        *,
        owner: tuple[str, int] = ("", 0),
    ) -> None:
        super().__init__(queue, consumer, filter, sink)
        self._at, self._hi = numbers
        self.owner: tuple[str, int] = owner
        # By list the first run with a number that was not looked at; None: there is none yet.
        self._places: dict[PriorityList, QueueRun | None] = {}

    def begin(self) -> None:
        """Begin at the first number, unless the owner has lost the cursor since it was asked for."""
        queue = self._queue
        if self.owner[1]:
            try:
                check_owner(queue.roster.cursor, queue.name, self.owner)
            except CursorLostError as error:
                self.lose(error)
                return
        queue.begin_browse(self)

    def lose(self, error: MeshqError) -> None:
        """End the browse, and tell its session why."""
        self.sink.lose_consumer(self.consumer, refusal_of(error).number, str(error))

    def end(self) -> None:
        """End the browse."""
        for priority_list in self._places:
            priority_list.cursors.pop(self, None)
        self._places = {}
        super().end()

    def unlinked(self, view: QueueRun) -> None:
        """Go on to the next run if one at which the browse stands is gone."""
        priority_list = view.priority_list
        if priority_list is not None and self._places.get(priority_list) is view:
            self._places[priority_list] = view.next

    def look(self) -> list[Dispatch]:
        """Return the next dispatches, as far as the credit goes."""
        shown: list[Dispatch] = []
        looks = SCAN_MESSAGES_MAX
        self.unfinished = False
        while not (self._hi and self._at >= self._hi):
            view = self._next()
            if view is None or (self._hi and view.first >= self._hi):
                # A browse with an end begins when all of its numbers are visible.
                self._at = max(self._at, self._hi)
                break
            if self.consumer.credit() <= 0:
                break
            if looks <= 0:
                self.unfinished = True
                break
            if view.run.paged:
                self._queue.pending.fault_in(view)
                break
            self._row = max(0, self._at - view.first)
            rows, seen, work = self._rows(view, looks)
            looks -= work
            if self._hi:
                rows = rows[: _below(rows, self._hi - view.first)]
            count = self._fitting(view, rows)
            shown += [self._show(view, part) for part in pieces(rows[:count])]
            if count < len(rows):
                self._at = view.first + rows[count]
                break
            self._at = view.first + seen
        self.ended = bool(self._hi) and self._at >= self._hi
        return shown

    def _next(self) -> QueueRun | None:
        """The run with the lowest number that was not looked at."""
        best: QueueRun | None = None
        for priority_list in self._queue.lists.all:
            view = self._place(priority_list)
            if view is not None and (best is None or view.first < best.first):
                best = view
        return best

    def _place(self, priority_list: PriorityList) -> QueueRun | None:
        """The first run of a list with a number that was not looked at."""
        view = self._places.get(priority_list)
        if view is None:
            view = first_behind(priority_list, self._at)
            priority_list.cursors[self] = None
        while view is not None and view.first + len(view.states) <= self._at:
            view = view.next
        self._places[priority_list] = view
        return view


def first_behind(priority_list: PriorityList, number: int) -> QueueRun | None:
    """Return the first run of a list that ends behind a number."""
    view = priority_list.head
    if view is None or view.first + len(view.states) > number:
        return view
    view, found = priority_list.tail, None
    while view is not None and view.first + len(view.states) > number:
        found, view = view, view.previous
    return found


def _below(rows: Sequence[int], limit: int) -> int:
    """How many of the rows, in order, are below a limit."""
    return bisect_left(rows, limit)
