"""The runs of a queue that are not due yet: no list of the queue has these, and no count knows of their messages."""

from __future__ import annotations

from collections.abc import Iterator

from meshq.broker.queue._message_counts import drop_rows
from meshq.broker.queue._run import QueueRun
from meshq.errors import invariant


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
