"""Everything that a node holds, as seen by the service that hands it over to another node."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import trio

from meshq import abc
from meshq.broker import (
    Core,
    Queue,
    ServerConnection,
    SessionRegistry,
    begun_ways,
    hand_over_ids,
    hand_over_prepared,
    inventory,
    lacking_queues,
    make_queues,
    makes_queues,
    prepared_xids,
    take_back,
    takes_prepared,
    transfer,
)
from meshq.errors import NotActiveError
from meshq.node._stranded_messages import MoveCall


class LocalTransfer(abc.Transfer):
    """Everything that a node holds.  ``connections`` lists the open connections of the node."""

    def __init__(
        self, core: Core, sessions: SessionRegistry, connections: Callable[[], Iterable[ServerConnection]]
    ) -> None:
        self._core = core
        self._sessions = sessions
        self._connections = connections
        # Whose the ids are that were handed over.
        self._target = 0

    def inventory(self) -> abc.TransferInventory:
        """Count the contents that are left."""
        return inventory(self._core)

    @property
    def moved_bytes(self) -> int:
        """The bytes of the moved messages."""
        return self._core.mover.transfer_places.moved_bytes

    def prepared(self) -> list[bytes]:
        """List the xids that wait for a decision."""
        return prepared_xids(self._core)

    def takes_prepared(self, target: abc.StoreAndForwardQueue) -> bool:
        """Whether the target's node takes prepared transactions now."""
        forward = self._core.router.by_number.get(target.number)
        return forward is not None and takes_prepared(self._core, forward)

    def has_begun(self, target: abc.StoreAndForwardQueue) -> bool:
        """Whether a prepared transaction is on its way to the target."""
        return target.number in begun_ways(self._core)

    def cursors(self) -> list[tuple[str, str]]:
        """Return the queues that a cursor has, with the names of the cursors."""
        found = [(queue.name, queue.roster.cursor) for queue in self._core.cursors.queues()]
        return [(name, cursor.facts.name) for name, cursor in found if cursor is not None]

    def sinks(self) -> list[str]:
        """Return the names of the sinks that have stages or an entry in the batch ledger."""
        ledger = self._core.transactions.stages.ledger
        return sorted({*ledger.sinks, *(stage.facts.sink for stage in ledger.stages.values())})

    def lacking(self, target: abc.StoreAndForwardQueue) -> list[str]:
        """List the durable queues that the target's node lacks and was not told of."""
        forward = self._core.router.by_number.get(target.number)
        return [queue.name for queue in lacking_queues(self._core, forward)] if forward is not None else []

    def makes_queues(self, target: abc.StoreAndForwardQueue) -> bool:
        """Whether the target's node makes queues that it is told of now."""
        forward = self._core.router.by_number.get(target.number)
        return forward is not None and makes_queues(self._core, forward)

    async def make_queues(self, target: abc.StoreAndForwardQueue) -> int:
        """Tell the target's node of the next queues that it lacks; return of how many."""
        forward = self._aimed(target)
        if forward is None:
            await trio.lowlevel.checkpoint()
            return 0
        return await MoveCall().run(partial(make_queues, self._core, forward))

    async def hand_over(self, xid: bytes, target: abc.StoreAndForwardQueue) -> int:
        """Take the next step of a prepared transaction's way to the target's node; return the number of steps."""
        forward = self._core.router.by_number.get(target.number)
        if forward is None:
            await trio.lowlevel.checkpoint()
            return 0
        return await MoveCall().run(partial(hand_over_prepared, self._core, xid, forward))

    async def close(self) -> None:
        """Take nothing in any more, and end the sessions of clients once all their messages are confirmed."""
        closing = self._core.closing
        closing.check_running()
        why = f"the node {self._core.settings.name!r} leaves, and hands over to another node what it holds"
        closing.take_nothing_in(why)
        await self._all_durable()
        closing.check_running()
        for connection in self._connections():
            if connection.session is not None and connection.handshake.role == "client":
                connection.refuse(NotActiveError(why))
        for session in list(self._sessions.by_number.values()):
            if session.principal.owner[0] == "client":
                self._sessions.end(session)
        self._core.pending.run()
        await self._all_durable()

    async def move(self, queue: str, target: abc.StoreAndForwardQueue, limit: int) -> int:
        """Move up to ``limit`` messages to the queue of the same name on the target's node; return how many."""
        router = self._core.router
        found, forward = router.queues.get(queue), self._aimed(target)
        if found is None or forward is None:
            await trio.lowlevel.checkpoint()
            return 0
        return await MoveCall().run(partial(transfer, self._core, found, forward, limit))

    async def move_ids(self, address: str, target: abc.StoreAndForwardQueue) -> int:
        """Hand the next duplicate ids of an address over to the target's node; return how many."""
        forward = self._aimed(target)
        if forward is None:
            await trio.lowlevel.checkpoint()
            return 0
        return await MoveCall().run(partial(hand_over_ids, self._core, address, forward))

    def _aimed(self, target: abc.StoreAndForwardQueue) -> Queue | None:
        """Return the store-and-forward queue of a target; a new target gets all ids again."""
        if target.number != self._target:
            self._target = target.number
            take_back(self._core)
        return self._core.router.by_number.get(target.number)

    async def _all_durable(self) -> None:
        durable = trio.Event()
        self._core.release_queue.when_all_is_durable(durable.set)
        await durable.wait()
