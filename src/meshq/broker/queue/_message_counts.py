"""The state of each message in a queue, and the counts that follow from the states.

Only this file changes a state byte.  The last functions change runs that are not visible yet, so that no count
knows of their messages.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch, RowSpan
from meshq.broker.queue._priority_list import PriorityList, list_of
from meshq.broker.queue._run import (
    DELAYED,
    DELAYED_ROWS,
    GONE,
    GONE_ROWS,
    PARKED,
    READY,
    READY_ROWS,
    UNACKED,
    UNACKED_ROWS,
    QueueRun,
)
from meshq.broker.records._row_ranges import pieces
from meshq.errors import invariant

#: The ways in which messages leave a queue without an acknowledgement.
REMOVED: Final = ("rejected", "purged", "expired", "dead_lettered", "moved", "redistributed", "replaced")


class MessageCounts:
    """The numbers of messages of one queue, by state and by the way of leaving the queue.

    Invariant (Q8): ``added = acknowledged + removed + ready + unacked + delayed``, and each of the last three is what
    the states of the visible runs say.
    """

    __slots__ = (
        "_news", "acked_in_transaction", "acknowledged", "added", "delayed", "high", "ready", "redelivered", "removed",
        "unacked",
    )  # fmt: skip

    def __init__(self) -> None:
        #: Messages that may be dispatched, those of groups included.
        self.ready: int = 0
        self.unacked: int = 0
        #: Unacked messages that an undecided transaction acknowledges; no consumer has these.
        self.acked_in_transaction: int = 0
        #: Returned messages that wait before they may be dispatched again.
        self.delayed: int = 0
        self.added: int = 0
        self.acknowledged: int = 0
        self.removed: dict[str, int] = dict.fromkeys(REMOVED, 0)
        self.redelivered: int = 0
        #: The high mark: every message with a number below it was visible, and no other message.
        self.high: int = 1
        # Whether messages became ready since ``take_news``.
        self._news = False

    def take_news(self) -> bool:
        """Return whether messages became ready since the last call."""
        news, self._news = self._news, False
        return news

    # -- what comes in

    def appended(self, view: QueueRun) -> None:
        """Count the messages of a run that became visible: all that are not gone are ready."""
        self.ready += view.live
        self.added += view.live
        self.high = view.first + len(view.states)
        self._news = True

    def restore_unacked(self, view: QueueRun) -> None:
        """Count the messages of a run that became visible with unacked messages."""
        unacked = view.states.count(UNACKED)
        self.ready -= unacked
        self.unacked += unacked
        list_of(view).ready -= unacked

    def park(self, view: QueueRun, rows: Sequence[int]) -> None:
        """Park ready messages: they are dispatched through their group only."""
        for row in rows:
            view.states[row] = PARKED
        priority_list = list_of(view)
        priority_list.ready -= len(rows)
        priority_list.parked += len(rows)

    # -- dispatch

    def record_dispatch(self, consumer: AnyConsumer, dispatch: Dispatch) -> None:
        """Count the rows of a dispatch as unacked by the consumer."""
        rows, view = dispatch.rows, dispatch.view
        view.states[dispatch.start : dispatch.stop : dispatch.step] = UNACKED_ROWS[:rows]
        consumer.record_dispatch(dispatch)
        view.priority_list.ready -= rows  # type: ignore[union-attr]  # dispatched rows are visible
        self.ready -= rows
        self.unacked += rows

    def record_parked_dispatch(self, consumer: AnyConsumer, dispatch: Dispatch) -> None:
        """Count parked rows as unacked by the owner of their groups."""
        priority_list = list_of(dispatch.view)
        priority_list.parked -= dispatch.rows
        priority_list.ready += dispatch.rows
        self.record_dispatch(consumer, dispatch)

    # -- settlement

    def settled(self, span: RowSpan) -> None:
        """Count unacked rows as acknowledged."""
        rows, view = span.rows, span.view
        self.unacked -= rows
        self.acknowledged += rows
        view.states[span.start : span.stop : span.step] = GONE_ROWS[:rows]
        view.live -= rows

    def remove(self, span: RowSpan, fate: str) -> bytearray:
        """Count rows, of any state, as removed, or as ``acknowledged``; return the states that they had."""
        view, rows = span.view, span.rows
        before = view.states[span.start : span.stop : span.step]
        ready, unacked, parked = before.count(READY), before.count(UNACKED), before.count(PARKED)
        self.ready -= ready + parked
        self.unacked -= unacked
        self.delayed -= rows - ready - unacked - parked
        list_of(view).ready -= ready
        list_of(view).parked -= parked
        if fate == "acknowledged":
            self.acknowledged += rows
        else:
            self.removed[fate] += rows
        view.states[span.start : span.stop : span.step] = GONE_ROWS[:rows]
        view.live -= rows
        return before

    def give_back(self, span: RowSpan, *, counted: bool, waits: bool) -> None:
        """Count unacked rows as ready again, or as delayed if ``waits``; ``counted``: an application may have seen the
        rows."""
        view, rows = span.view, span.rows
        self.unacked -= rows
        if counted:
            self.redelivered += rows
            for row in range(span.start, span.stop, span.step):
                view.count_return(row)
        if waits:
            view.states[span.start : span.stop : span.step] = DELAYED_ROWS[:rows]
            self.delayed += rows
        else:
            self._make_ready(span)

    def delay(self, span: RowSpan) -> bytearray:
        """Count ready rows as delayed; return the states that they had."""
        view, rows = span.view, span.rows
        before = view.states[span.start : span.stop : span.step]
        parked = before.count(PARKED)
        view.states[span.start : span.stop : span.step] = DELAYED_ROWS[:rows]
        self.ready -= rows
        list_of(view).ready -= rows - parked
        list_of(view).parked -= parked
        self.delayed += rows
        return before

    def wake(self, span: RowSpan) -> list[RowSpan]:
        """Count those rows as ready that are delayed; return these."""
        view = span.view
        waiting = [row for row in range(span.start, span.stop, span.step) if view.states[row] == DELAYED]
        self.delayed -= len(waiting)
        woken = [RowSpan(view, rows.start, rows.stop, rows.step) for rows in pieces(waiting)]
        for part in woken:
            self._make_ready(part)
        return woken

    def _make_ready(self, span: RowSpan) -> None:
        view, rows = span.view, span.rows
        priority_list = list_of(view)
        view.states[span.start : span.stop : span.step] = READY_ROWS[:rows]
        self.ready += rows
        self._news = True
        priority_list.ready += rows
        priority_list.came_back(view)

    def check(self, priority_lists: Iterable[PriorityList]) -> None:
        """Assert the invariants between steps."""
        unacked = delayed = ready = 0
        for priority_list in priority_lists:
            ready += priority_list.ready + priority_list.parked
            for view in priority_list.runs():
                states = view.states
                row_unacked, row_delayed = states.count(UNACKED), states.count(DELAYED)
                unacked += row_unacked
                delayed += row_delayed
                row_live = states.count(READY) + states.count(PARKED) + row_unacked + row_delayed
                invariant(view.live == row_live, "a run's live count is that of its states")
                invariant(view.live + states.count(GONE) == len(states), "each row has one of five states")
        invariant(ready == self.ready, "ready is what the lists say")
        invariant(unacked == self.unacked, "unacked is what the states say")
        invariant(delayed == self.delayed, "delayed is what the states say")
        out = self.acknowledged + sum(self.removed.values())
        invariant(self.added == out + self.ready + unacked + delayed, "added = acknowledged + removed + what is there")


def lowest_number(view: QueueRun) -> int:
    """Return the number of the first message of a run that is not gone; there is one."""
    return view.first + len(view.states) - len(view.states.lstrip(GONE_ROWS[:1]))


# -- runs that are not visible yet


def keep_rows(view: QueueRun, start: int, stride: int) -> None:
    """Leave only every ``stride``-th row, from ``start`` on, to a queue that shares a run with others."""
    rows = len(view.states)
    kept = len(range(start, rows, stride))
    view.states[:] = GONE_ROWS[:rows]
    view.states[start:rows:stride] = READY_ROWS[:kept]
    view.live = kept


def skip_rows(view: QueueRun, skipped: Iterable[int]) -> None:
    """Leave out rows that are repeats."""
    for row in skipped:
        if view.states[row] != GONE:
            view.states[row] = GONE
            view.live -= 1


def drop_rows(view: QueueRun, rows: range) -> None:
    """Leave out rows that an earlier life has settled, some of them perhaps before."""
    view.states[rows.start : rows.stop : rows.step] = GONE_ROWS[: len(rows)]
    view.live = len(view.states) - view.states.count(GONE)


def mark_unacked(spans: Iterable[RowSpan]) -> None:
    """Mark rows as unacked: a prepared transaction has acknowledged these."""
    for span in spans:
        span.view.states[span.start : span.stop : span.step] = UNACKED_ROWS[: span.rows]


def discard(view: QueueRun) -> None:
    """Leave out all messages of a run."""
    rows = len(view.states)
    view.states[:] = GONE_ROWS[:rows]
    view.live = 0
