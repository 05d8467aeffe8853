"""Decisions about prepared transactions of any client."""

from __future__ import annotations

from typing import Final

import trio

from meshq.client.admin._admin import Administration
from meshq.client.admin._statistics import PreparedTransaction
from meshq.client.calls._calls import NodeCall
from meshq.errors import RetryTransactionError, UnblockedError
from meshq.ids import check_xid
from meshq.wire import Call, Frame, FrameType

#: The values of a prepared transaction in a broker's answer.
_PREPARED_KEYS: Final = ("xid", "user", "age", "sent", "acked")


class TwoPhaseCalls(Administration):
    """The calls of a client that name transactions by xid.

    A user sees and decides what the same user has prepared; a program that has its broker inside, everything.  Ask the
    node that has prepared it: another one of a cluster does not know it.  A client that has prepared it remembers at
    which node, and asks no other one.
    """

    async def commit(self, xid: bytes) -> None:
        """Commit a prepared transaction; on return it is stored.

        Returns, too, if it was committed before, or if the node does not know it: it is taken for committed, and the
        node tells everybody so from then on.  Repeat it as often as need be.

        Checkpoint: always.  Cancellation: it may have been committed or not: commit it again.
        Raises:
            RetryTransactionError: it is prepared still, for what it sends can't be stored now; or the node does not
                know it, and its disk is too full to remember it; or this client has prepared it at another node than
                it is connected to; or the call was cut off (``outcome`` is unknown): commit it again.
            TransactionRolledBackError: it was rolled back.
            UsageError: it is open in this client, and not prepared.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        try:
            await self._decide("commit_prepared", check_xid(xid))
        except UnblockedError as error:
            raise RetryTransactionError("the commit was cut off: commit it again", outcome="unknown") from error

    async def rollback(self, xid: bytes) -> None:
        """Roll a prepared transaction back: its sends are dropped, its acknowledged messages are delivered again.

        Returns, too, if it was rolled back before, or if the node does not know it: it is taken for rolled back, and
        the node tells everybody so from then on.

        Checkpoint: always.  Cancellation: it may have been rolled back or not: roll it back again.
        Raises:
            UsageError: it was committed, or the node has said so; or it is open in this client, and not prepared.
            AddressFullError: the node does not know it, and its disk is too full to remember it.
            RetryTransactionError: this client has prepared it at another node than it is connected to.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        await self._decide("roll_back_prepared", check_xid(xid))

    async def _decide(self, operation: str, xid: bytes) -> None:
        """Ask the node at which the transaction was prepared, as far as this client knows."""
        self._check()
        self._session.transactions.check_prepared(xid)
        node_id = self._session.transactions.node_of(xid)
        if node_id is None:
            await self._ask(operation, xid=xid)
            return
        error = self._elsewhere(xid, node_id)
        if error is not None:
            await trio.lowlevel.checkpoint()
            raise error
        header = Call(operation=operation, arguments=("xid", xid)).encode()
        call = NodeCall(
            operation,
            lambda number: Frame(FrameType.CALL, first=number, header=header),
            lambda: self._elsewhere(xid, node_id),
        )
        self._session.pending_calls.add(call)
        self._session.flush()
        await self._wait_call(call)

    def _elsewhere(self, xid: bytes, node_id: bytes) -> RetryTransactionError | None:
        """Return why the node of the session can't decide; None: it can."""
        session = self._session
        if session.node_id == node_id or session.failure is not None:
            return None
        return RetryTransactionError(
            f"the transaction {xid!r} is not known here: it was prepared at the node {node_id.hex()}, "
            f"and the session is at {session.node_id.hex()}",
            outcome="not_done",
        )

    async def recover(self) -> list[bytes]:
        """List the xids of all prepared transactions that are not decided, in order.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        found: list[bytes] = []
        while True:
            values = await self._ask("recover", after=found[-1] if found else b"")
            before = len(found)
            while (xid := values.get(f"xid{len(found) - before}")) is not None:
                found.append(xid)
            if not values["more"]:
                return found

    async def prepared(self) -> list[PreparedTransaction]:
        """List the prepared transactions of all users that wait for a decision, the oldest first: for operators.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SecurityError: the user may not manage the broker.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        _, rows = await self._pages("prepared", _PREPARED_KEYS)
        return [PreparedTransaction(**{**row, "xid": bytes.fromhex(row["xid"])}) for row in rows]
