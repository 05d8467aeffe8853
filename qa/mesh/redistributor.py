"""A redistributor for the simulation and the tests: a service that moves stranded messages to nodes with a consumer."""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import ClassVar, Final, Protocol

import trio

from meshq import abc
from meshq.errors import MeshqError

#: Messages of one move.
STEP: Final = 64
#: Seconds before messages that could not be moved are tried again.
PAUSE_S: Final = 1.0


class RedistributionWatch(Protocol):
    """Hears of the queues that a redistributor looks at, and of its moves."""

    def look(self, queue: str) -> None:
        """Note that a queue or its consumers have changed."""

    def moved(self, queue: str, messages: int) -> None:
        """Note that messages of a queue were moved."""


class Redistributor(abc.Service):
    """Moves the messages of queues that have had a consumer on another node, and none here, for ``delay_s`` seconds.

    ``queues``: only of these; empty: of all.
    """

    kind: ClassVar[str] = "redistributor"
    name = "redistributor"

    def __init__(
        self,
        delay_s: float = 0.0,
        *,
        queues: Collection[str] = (),
        watch: RedistributionWatch | None = None,
    ) -> None:
        self._delay_s = delay_s
        self._queues = queues
        self._watch = watch
        # Since when each queue has been stranded; and those of which messages may be free that were not before.
        self._since: dict[str, float] = {}
        self._changed: dict[str, None] = {}
        self._wake = trio.Event()
        self._stranded: abc.StrandedMessages

    def announce(self, control: abc.NodeControl) -> None:
        """A redistributor needs nothing of the node."""

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Move messages until cancelled."""
        self._stranded = broker.stranded
        broker.stranded.watch(self._look)
        task_status.started()
        while True:
            with trio.move_on_after(self._next_s()):
                await self._wake.wait()
            self._wake = trio.Event()
            for queue in [queue for queue in self._changed if self._due(queue)]:
                await self._move(queue)

    def _look(self, queue: str) -> None:
        if self._watch is not None:
            self._watch.look(queue)
        if (self._queues and queue not in self._queues) or self._stranded.stranded(queue) is None:
            self._since.pop(queue, None)
            self._changed.pop(queue, None)
            return
        self._since.setdefault(queue, trio.current_time())
        self._changed[queue] = None
        self._wake.set()

    def _due(self, queue: str) -> bool:
        return queue in self._since and trio.current_time() >= self._since[queue] + self._delay_s

    def _next_s(self) -> float:
        """Return the seconds until a queue is due; 0 if one is due now."""
        due = min((self._since[queue] + self._delay_s for queue in self._changed), default=math.inf)
        return max(0.0, due - trio.current_time())

    async def _move(self, queue: str) -> None:
        self._changed.pop(queue, None)
        try:
            moved = await self._stranded.move(queue, STEP)
        except MeshqError:
            # The disk is full; or the node ends, and cancels this.
            await trio.sleep(PAUSE_S)
            moved = STEP
        else:
            if self._watch is not None:
                self._watch.moved(queue, moved)
        if moved == STEP and queue in self._since:
            self._changed[queue] = None
            self._wake.set()
