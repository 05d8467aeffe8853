"""Decisions about prepared transactions of any client."""

from __future__ import annotations

from typing import Final

from meshq.client.admin._statistics import PreparedTransaction
from meshq.client.send._envelope import EnvelopeEncoder
from meshq.client.session._client_context import ClientContext
from meshq.client.transactions._decisions import commit_prepared, roll_back_prepared
from meshq.client.transactions._transaction import Transaction
from meshq.ids import check_xid

#: The values of a prepared transaction in a broker's answer.
_PREPARED_KEYS: Final = ("xid", "user", "age", "sent", "acked")


class TransactionCalls:
    """The calls of a client that begin transactions, and the ones that decide a prepared transaction by its xid.

    A user sees and decides what the same user has prepared; a program that has its broker inside, everything.  Ask the
    node that has prepared it: another one of a cluster does not know it, unless that node has left and handed it over.
    A client that has prepared it remembers at which node, and asks no other one that does not list it as prepared.
    """

    _context: ClientContext
    _encoder: EnvelopeEncoder

    def transaction(self, xid: bytes | None = None) -> Transaction:
        """Create a transaction, to be used as ``async with``: sends and acknowledgements are applied together or not at
        all.

        ``xid``: 1 to 128 bytes by which it is known once it is prepared.

        Raises:
            SettingsError: the xid is none.
        """
        return Transaction(self._context, self._encoder, xid)

    async def commit(self, xid: bytes) -> None:
        """Commit a prepared transaction; on return it is stored.

        Returns, too, if it was committed before, or if the node does not know it: it is taken for committed, and the
        node tells everybody so from then on.  Repeat it as often as need be.

        Checkpoint: always.  Cancellation: it may have been committed or not: commit it again.
        Raises:
            RetryTransactionError: it is prepared still, for what it sends can't be stored now; or the node does not
                know it, and its disk is too full to remember it; or this client has prepared it at another node than
                it is connected to, which does not have it; or the call was cut off (``outcome`` is unknown): commit it
                again.
            TransactionRolledBackError: it was rolled back.
            UsageError: it is open in this client, and not prepared.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        await commit_prepared(self._context, check_xid(xid))

    async def rollback(self, xid: bytes) -> None:
        """Roll a prepared transaction back: its sends are dropped, its acknowledged messages are delivered again.

        Returns, too, if it was rolled back before, or if the node does not know it: it is taken for rolled back, and
        the node tells everybody so from then on.

        Checkpoint: always.  Cancellation: it may have been rolled back or not: roll it back again.
        Raises:
            UsageError: it was committed, or the node has said so; or it is open in this client, and not prepared.
            AddressFullError: the node does not know it, and its disk is too full to remember it.
            RetryTransactionError: this client has prepared it at another node than it is connected to, which does not
                have it.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        await roll_back_prepared(self._context, check_xid(xid))

    async def recover(self) -> list[bytes]:
        """List the xids of all prepared transactions that are not decided, in order.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        found: list[bytes] = []
        while True:
            values = await self._context.ask("recover", after=found[-1] if found else b"")
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
        _, rows = await self._context.pages("prepared", _PREPARED_KEYS)
        return [PreparedTransaction(**{**row, "xid": bytes.fromhex(row["xid"])}) for row in rows]
