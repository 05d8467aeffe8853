"""The work of a transaction that this client has prepared, until the decision."""

from __future__ import annotations

import trio

from meshq.client.session._client_context import ClientContext
from meshq.client.transactions._decisions import commit_prepared, find_prepared, roll_back_prepared
from meshq.errors import RetryTransactionError


class PreparedWork:
    """The prepared work of one transaction: its xid, the session in which it was prepared, and the node that has it."""

    __slots__ = ("_context", "_epoch", "_node_id", "xid")

    def __init__(self, context: ClientContext, xid: bytes) -> None:
        self._context = context
        self.xid = xid
        self._epoch = 0
        self._node_id = b""

    def asked(self) -> None:
        """Note that the node of the session is asked to prepare the transaction."""
        session = self._context.session
        self._epoch, self._node_id = session.facts.epoch, session.facts.node_id
        session.transactions.prepares(self.xid, self._node_id)

    async def commit(self) -> None:
        """Commit the work; as ``Transaction.commit``.

        Checkpoint: always.  Cancellation: it may have been committed or not: commit it again.
        Raises:
            RetryTransactionError: the session was lost since, or is at another node that does not have it: commit it
                again.
            MeshqError: as ``client.commit``.
        """
        facts = self._context.session.facts
        if self._epoch != facts.epoch and facts.failure is None:
            # Who is told so once may look at what else has happened before going on.
            self._epoch = facts.epoch
            await trio.lowlevel.checkpoint()
            raise RetryTransactionError("the session was lost since the transaction was prepared: commit it again")
        await self._check_node()
        try:
            await commit_prepared(self._context, self.xid)
        except RetryTransactionError:
            self._epoch = facts.epoch
            raise

    async def roll_back(self) -> None:
        """Roll the work back; as ``Transaction.rollback``.

        Checkpoint: always.  Cancellation: it may have been rolled back or not: roll it back again.
        Raises:
            RetryTransactionError: the session is at another node, which does not have it.
            MeshqError: as ``client.rollback``.
        """
        await self._check_node()
        await roll_back_prepared(self._context, self.xid)

    async def _check_node(self) -> None:
        facts = self._context.session.facts
        if facts.node_id != self._node_id and facts.failure is None:
            self._node_id = await find_prepared(self._context, self.xid, self._node_id)
