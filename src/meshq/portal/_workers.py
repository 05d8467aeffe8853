"""The workers of a client outside the loop."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Stops(Protocol):
    """A worker that can be stopped."""

    def stop(self) -> None:
        """Receive nothing more; returns at once."""


class Workers:
    """The workers of one client, while they run."""

    def __init__(self) -> None:
        self._running: dict[Stops, None] = {}
        self._stopped = False

    @contextmanager
    def running(self, worker: Stops) -> Iterator[None]:
        """Keep a worker while the body runs, so that ``stop`` stops the worker."""
        self._running[worker] = None
        if self._stopped:
            worker.stop()
        try:
            yield
        finally:
            del self._running[worker]

    def stop(self) -> None:
        """Stop every worker that runs, and every later one; returns at once."""
        self._stopped = True
        for worker in list(self._running):
            worker.stop()
