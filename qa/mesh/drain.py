"""A drain for the simulation and the tests: a service that hands all messages of its node over to another node."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final, Protocol

import trio

from meshq import abc
from meshq.errors import MeshqError

#: Messages of one move.
STEP: Final = 32
#: Seconds before the next look, if nothing could be moved.
PAUSE_S: Final = 0.2
#: How the names of store-and-forward queues begin.
FORWARDING: Final = "$meshq.cluster."


class DrainWatch(Protocol):
    """Hears of a drain's progress."""

    def closed(self) -> None:
        """Note that the node takes nothing in any more."""

    def looked(self, left: abc.TransferInventory, moved: int) -> None:
        """Note the inventory after a round in which so many messages were moved."""


class Drain(abc.Service):
    """Closes its node and moves the node's messages to the node at the URL ``target``, once ``begin`` is set.

    ``queues``: only of these; empty: of all.
    """

    kind: ClassVar[str] = "drain"
    name = "drain"

    def __init__(
        self,
        target: str,
        begin: trio.Event | None = None,
        *,
        queues: Collection[str] = (),
        watch: DrainWatch | None = None,
    ) -> None:
        self._target = target
        self._begin = begin
        self._queues = queues
        self._watch = watch
        #: What was left after the last round; None before the first.
        self.left: abc.TransferInventory | None = None

    def announce(self, control: abc.NodeControl) -> None:
        """A drain needs nothing of the node."""

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Drain the node, until cancelled."""
        task_status.started()
        if self._begin is not None:
            await self._begin.wait()
        await broker.transfer.close()
        if self._watch is not None:
            self._watch.closed()
        while True:
            try:
                moved = await self._round(broker)
            except MeshqError:
                # The disk is full; or the node ends, and cancels this.
                moved = 0
            self.left = broker.transfer.inventory()
            if self._watch is not None:
                self._watch.looked(self.left, moved)
            if not moved:
                await trio.sleep(PAUSE_S)

    async def _round(self, broker: abc.LocalBroker) -> int:
        known = (one.name for one in broker.peers.former(FORWARDING) if one.connector == self._target)
        name = next(known, None)
        if name is None:
            return 0
        target, moved = broker.peers.forwarding(name), 0
        for queue in broker.transfer.inventory().messages:
            if not self._queues or queue in self._queues:
                moved += await broker.transfer.move(queue, target, STEP)
        return moved
