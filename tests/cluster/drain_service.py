"""A service that hands over what its node has in some queues, with the calls that every service has."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar, Final

import trio

from meshq import abc
from meshq.errors import MeshqError

#: Messages of one move.
STEP: Final = 32
#: Seconds before the next look, if nothing could be moved.
PAUSE_S: Final = 0.2
#: How the names of store-and-forward queues begin.
FORWARDING: Final = "$meshq.cluster."


class Drain(abc.Service):
    """Closes its node and moves the node's messages, and then its duplicate ids, to the node at the URL ``target``.

    ``queues``: only messages of these; empty: of all.
    """

    kind: ClassVar[str] = "drain"
    name = "drain"

    def __init__(
        self,
        target: str,
        *,
        queues: Collection[str] = (),
    ) -> None:
        self._target = target
        self._queues = queues
        #: What was left after the last round; None before the first.
        self.left: abc.TransferInventory | None = None

    def announce(self, control: abc.NodeControl) -> None:
        """A drain needs nothing of the node."""

    async def serve(self, broker: abc.LocalBroker, *, task_status: trio.TaskStatus[None]) -> None:
        """Drain the node, until cancelled."""
        task_status.started()
        await broker.transfer.close()
        while True:
            try:
                moved = await self._round(broker)
            except MeshqError:
                # The disk is full; or the node ends, and cancels this.
                moved = 0
            self.left = broker.transfer.inventory()
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
        if not moved:
            # An id whose message is still here would make a duplicate of what is sent again.
            for address in broker.transfer.inventory().ids:
                moved += await broker.transfer.move_ids(address, target)
        return moved
