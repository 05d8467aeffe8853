"""Decisions about transactions that are prepared, from threads."""

from __future__ import annotations

from meshq.blocking._admin import Administration
from meshq.client import PreparedTransaction


class TwoPhaseCalls(Administration):
    """The calls of a client that know transactions by their xids.

    A user sees and decides what the same user has prepared; a program that has its broker inside, everything.  Ask the
    node that has prepared it: another one of a cluster does not know it.
    """

    def commit(self, xid: bytes) -> None:
        """Commit a prepared transaction; on return it is stored.

        Returns, too, if it was committed before, or if nobody knows it any more: it is taken for committed.  Repeat it
        as often as need be.

        Interrupted: it may have been committed or not: commit it again.
        Raises:
            RetryTransactionError: it is prepared still, for what it sends can't be stored now; or nobody knows it, and
                the disk is too full to remember it; or the call was cut off (``outcome`` is unknown): commit it again.
            TransactionRolledBackError: it was rolled back.
            UsageError: it is open in this client, and not prepared.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        self._call(self._inner.commit, xid)

    def rollback(self, xid: bytes) -> None:
        """Roll a prepared transaction back: its sends are dropped, its acknowledged messages are delivered again.

        Returns, too, if it was rolled back before, or if nobody knows it.

        Interrupted: it may have been rolled back or not: roll it back again.
        Raises:
            UsageError: it was committed, or the node has said so; or it is open in this client, and not prepared.
            AddressFullError: nobody knows it, and the disk is too full to remember it.
            RetryTransactionError: this client has prepared it at another node than it is connected to.
            SecurityError: it is another user's.
            SettingsError: the xid is none.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        self._call(self._inner.rollback, xid)

    def recover(self) -> list[bytes]:
        """List the xids of all prepared transactions that are not decided, in order.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        return self._call(self._inner.recover)

    def prepared(self) -> list[PreparedTransaction]:
        """List the prepared transactions of all users that wait for a decision, the oldest first: for operators.

        Interrupted: nothing has changed.
        Raises:
            SecurityError: the user may not manage the broker.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.prepared)
