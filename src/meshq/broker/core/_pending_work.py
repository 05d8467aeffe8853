"""The pending work of a pass: queues to be dispatched, and sessions to be flushed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Protocol

from meshq.broker.core._host_node import HostNode
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.work._fair_scheduler import FairScheduler


class FlushSink(Protocol):
    """A session, or the publisher of notifications."""

    def flush(self) -> None:
        """Send all that waits."""


class PendingWork:
    """Queues and sessions with work, in the order in which the work came; all of these are ordered sets.

    A queue whose dispatch is not finished waits for the next round, which is after the other queues.
    """

    __slots__ = ("_dirty", "_dispatch", "_host", "_running", "_to_deliver", "_to_flush", "fair_scheduler", "unfinished")

    def __init__(self, dispatch: Callable[[Queue], None], host: HostNode, failpoint: Callable[[str], bool]) -> None:
        self._dispatch = dispatch
        self._host = host
        #: Costly work that waits for its turn in the rounds.
        self.fair_scheduler: FairScheduler = FairScheduler(self._wake, failpoint)
        #: Queues that wait for the next round.
        self.unfinished: dict[Queue, None] = {}
        self._dirty: dict[Queue, None] = {}
        self._to_flush: dict[FlushSink, None] = {}
        # Sessions with a delivery are flushed first: what another process does with its confirm delays a waiting
        # consumer; a pipelined producer is delayed by nothing.
        self._to_deliver: dict[FlushSink, None] = {}
        self._running = False

    def schedule_dispatch(self, queue: Queue) -> None:
        """Dispatch a queue in the next pass."""
        self._dirty[queue] = None

    def schedule_dispatches(self, queues: Iterable[Queue]) -> None:
        """Dispatch several queues in the next pass."""
        self._dirty.update(dict.fromkeys(queues))

    def schedule_flush(self, session: FlushSink) -> None:
        """Flush a session, or the publisher of notifications, at the end of the pass."""
        self._to_flush[session] = None

    def schedule_delivery(self, session: FlushSink) -> None:
        """Flush a session that has a delivery, before the others."""
        self._to_deliver[session] = None
        self._to_flush.pop(session, None)

    def run(self) -> None:
        """Dispatch queues and flush sessions until nothing is pending; a nested call does nothing.

        In-process links hand frames over within this call, so more may become pending during the call.
        """
        if self._running:
            return
        self._running = True
        dirty = self._dirty
        try:
            while True:
                while dirty:
                    queue = next(iter(dirty))
                    del dirty[queue]
                    self._dispatch(queue)
                pending = self._to_deliver or self._to_flush
                if not pending:
                    break
                session = next(iter(pending))
                del pending[session]
                session.flush()
        finally:
            self._running = False

    def run_soon(self) -> None:
        """Run after other tasks have run: some work has come that no pass is under way for."""
        if not self._wake():
            self.run()

    # -- queues that are not finished in one step

    def _wake(self) -> bool:
        if self._host.resumes:
            self._host.resume_soon()
        return self._host.resumes

    def dispatch_later(self, queue: Queue) -> None:
        """Dispatch a queue in the next round; in this pass if there are no rounds."""
        if not self._host.resumes:
            self._dirty[queue] = None
        else:
            self.unfinished[queue] = None
            self._host.resume_soon()

    def next_round(self) -> None:
        """Take up the queue that has waited longest: each takes as much time as a step may."""
        if self.unfinished:
            queue = next(iter(self.unfinished))
            del self.unfinished[queue]
            self._dirty[queue] = None
            if self.unfinished and self._host.resumes:
                self._host.resume_soon()
