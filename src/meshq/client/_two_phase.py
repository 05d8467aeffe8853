"""Decisions about transactions that are prepared, whoever has prepared them, and when."""

from __future__ import annotations

from typing import Final

from meshq.client._admin import Administration
from meshq.client._statistics import PreparedTransaction
from meshq.errors import RetryTransactionError, UnblockedError
from meshq.ids import check_xid

#: What a broker says of a prepared transaction.
_PREPARED_KEYS: Final = ("xid", "user", "age", "sent", "acked")


class TwoPhase(Administration):
    """The calls of a client that know transactions by their xids.

    A user sees and decides what the same user has prepared; a program that has its broker inside, everything.  Ask the
    node that has prepared it: another one of a cluster does not know it.
    """

    async def commit(self, xid: bytes) -> None:
        """Commit a prepared transaction; on return it is stored.

        Returns, too, if it was committed before, or if nobody knows it any more: it is taken for committed.  Repeat it
        as often as need be.

        Checkpoint: always.  Cancellation: it may have been committed or not: commit it again.
        Raises:
            RetryTransactionError: it is prepared still, for what it sends can't be stored now; or the call was cut off
                (``outcome`` is unknown): commit it again.
            TransactionRolledBackError: it was rolled back.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        try:
            await self._ask("commit_prepared", xid=check_xid(xid))
        except UnblockedError as error:
            raise RetryTransactionError("the commit was cut off: commit it again", outcome="unknown") from error

    async def rollback(self, xid: bytes) -> None:
        """Roll a prepared transaction back: what it sends never was, what it has acknowledged is delivered again.

        Returns, too, if it was rolled back before, or if nobody knows it.

        Checkpoint: always.  Cancellation: it may have been rolled back or not: roll it back again.
        Raises:
            UsageError: it was committed.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        await self._ask("roll_back_prepared", xid=check_xid(xid))

    async def recover(self) -> list[bytes]:
        """The xids of all transactions that are prepared and not decided, in order.

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
        """What is prepared and waits for a decision, whoever's it is, the oldest first: for operators.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SecurityError: the user may not manage the broker.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        _, rows = await self._pages("prepared", _PREPARED_KEYS)
        return [PreparedTransaction(**{**row, "xid": bytes.fromhex(row["xid"])}) for row in rows]
