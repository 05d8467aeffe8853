"""The messages of a node that no consumer there can get, as a redistributor sees them."""

from __future__ import annotations

from collections.abc import Callable

import trio

from meshq import abc
from meshq.broker import Core, Queue, redistribute
from meshq.errors import MeshqError


class LocalStrandedMessages(abc.StrandedMessages):
    """The messages of a node that no consumer there can get."""

    def __init__(self, core: Core) -> None:
        self._core = core

    def watch(self, watcher: Callable[[str], None]) -> None:
        """Call ``watcher`` for each queue at once, and whenever its messages may be free to move, or no longer."""
        self._core.router.demand.mobility_watchers.append(watcher)
        for name in list(self._core.router.queues):
            watcher(name)

    def stranded(self, queue: str) -> int | None:
        """The number of messages of a queue that wait for consumers elsewhere; None: the queue keeps them."""
        found = self._core.router.queues.get(queue)
        redistribution = self._core.mover.redistribution
        if found is None or redistribution.keeps(found) or not redistribution.takers(found):
            return None
        return found.counts.ready

    async def move(self, queue: str, limit: int) -> int:
        """Move up to ``limit`` messages to other nodes; return how many."""
        found = self._core.router.queues.get(queue)
        if found is None:
            await trio.lowlevel.checkpoint()
            return 0
        move = _Move()
        try:
            move.begin(self._core, found, limit)
            await move.ended.wait()
        finally:
            move.wanted = False
        if move.error is not None:
            raise move.error
        return move.moved


class _Move:
    """One call of ``move``."""

    def __init__(self) -> None:
        self.wanted = True
        self.moved = 0
        self.error: MeshqError | None = None
        self.ended = trio.Event()

    def begin(self, core: Core, queue: Queue, limit: int) -> None:
        redistribute(core, queue, limit, lambda: self.wanted, self._done, self._failed)

    def _done(self, moved: int) -> None:
        self.moved = moved
        self.ended.set()

    def _failed(self, error: MeshqError) -> None:
        self.error = error
        self.ended.set()
