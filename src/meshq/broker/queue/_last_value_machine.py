"""Last-value queues: of the messages with one value of a property only the newest is kept, and unacked ones.

The table has, by value, the visible messages that are not settled.  An older message is removed when a newer one
becomes visible, or when the older one is returned.
"""

from __future__ import annotations

from bisect import insort
from typing import Any, Protocol

from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._priority_lists import PriorityLists
from meshq.broker.queue._run import GONE, UNACKED, QueueRun
from meshq.broker.queue._run_messages import RunMessages
from meshq.broker.queue._unfinished_work import UnfinishedWork
from meshq.errors import invariant

#: Values of different types are never the same.
Value = tuple[type, Any]


class LastValueQueue(Protocol):
    """A last-value queue, as far as its values are concerned."""

    lists: PriorityLists
    pending: UnfinishedWork

    def remove(self, span: RowSpan, fate: str) -> bool:
        """Remove rows, of any state; return True if no message of their run is left in this queue."""


class LastValues:
    """The values of one queue."""

    __slots__ = ("_judged", "_queue", "_there", "key", "unread")

    def __init__(self, queue: LastValueQueue, key: str) -> None:
        self._queue = queue
        self.key: str = key
        # The messages of each value, by rising number: at most one that nobody holds.
        self._there: dict[Value, list[tuple[int, QueueRun, int]]] = {}
        # The value of each message, by run; None: it has none.
        self._judged: dict[QueueRun, list[Value | None]] = {}
        #: Runs whose content is on the disk only, and was never looked at.
        self.unread: dict[QueueRun, None] = {}

    def take_up(self) -> None:
        """Take in the messages that the queue has already."""
        for view in sorted(self._queue.lists.walk(), key=_first):
            self.appeared(RowSpan(view, 0, len(view.states), 1))

    def _values(self, span: RowSpan) -> list[tuple[int, Value]]:
        """The values of messages, by row; those without one are left out."""
        view = span.view
        values = self._judged.get(view)
        if values is None:
            if view.run.paged:
                self.unread[view] = None
                self._queue.pending.fault_in(view)
                return []
            values = self._judged[view] = self._read(view)
        rows = range(span.start, min(span.stop, len(values)), span.step)
        return [(row, value) for row in rows if (value := values[row]) is not None]

    def _read(self, view: QueueRun) -> list[Value | None]:
        messages = RunMessages(view.run)
        found: list[Value | None] = []
        for row in range(len(view.states)):
            messages.move(row, properties=True)
            value = messages.properties.get(self.key)
            found.append((type(value), value) if value is not None else None)
        return found

    def arrived(self, view: QueueRun) -> None:
        """The content of a run is here."""
        if view in self.unread:
            del self.unread[view]
            self.appeared(RowSpan(view, 0, len(view.states), 1))

    def appeared(self, span: RowSpan) -> None:
        """Take in messages that became visible, or were returned: of each value the older one is removed."""
        view = span.view
        for row, value in self._values(span):
            if view.states[row] == GONE:
                continue
            there = self._there.setdefault(value, [])
            one = view.first + row, view, row
            if one not in there:
                insort(there, one)
            for _, older, index in there[:-1]:
                if older.states[index] != UNACKED:
                    self._replace(older, index)

    def _replace(self, view: QueueRun, row: int) -> None:
        span = RowSpan(view, row, row + 1, 1)
        self._queue.pending.outdated.append((span, self._queue.remove(span, "replaced")))

    def gone(self, span: RowSpan) -> None:
        """Messages left the queue."""
        view = span.view
        if view not in self.unread:
            for row, value in self._values(span):
                there = self._there[value]
                there.remove((view.first + row, view, row))
                if not there:
                    del self._there[value]
        if view.states.count(GONE) == len(view.states):
            self.unread.pop(view, None)
            self._judged.pop(view, None)

    def check(self) -> None:
        """Assert the invariants between steps."""
        found: dict[Value, list[tuple[int, QueueRun, int]]] = {}
        for view in sorted(self._queue.lists.walk(), key=_first):
            if view in self.unread:
                continue
            for row, value in self._values(RowSpan(view, 0, len(view.states), 1)):
                if view.states[row] != GONE:
                    found.setdefault(value, []).append((view.first + row, view, row))
        invariant(found == self._there, "what there is of each value is known")
        for there in found.values():
            older = [view.states[row] for _, view, row in there[:-1]]
            invariant(older.count(UNACKED) == len(older), "of a value the newest is kept")


def _first(view: QueueRun) -> int:
    return view.first
