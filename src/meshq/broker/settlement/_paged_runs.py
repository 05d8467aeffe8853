"""Paged runs, as far as settling and moving know these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun


class ContentLoader(Protocol):
    """Reads the content of paged runs."""

    def fault_in(self, queue: Queue, view: QueueRun, then: Callable[[], None]) -> None:
        """Read the content of a run, and call ``then`` when it is in memory."""


class PagedRuns(Protocol):
    """Runs in memory between paged ones, and runs in files."""

    @property
    def resident(self) -> dict[QueueRun, Queue]:
        """Runs in memory between paged ones; always the same object.  A run that ends is taken out."""

    def ended(self, run: StoredRun) -> None:
        """Free the file bytes of a run that is gone."""
