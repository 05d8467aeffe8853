"""The calls of a transaction.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Transaction``: change that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

from meshq import client as trio_client
from meshq import limits
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._delivery import Delivery
from meshq.blocking._loop_thread import ThreadCall
from meshq.message import Message, PropertyValue


class TransactionCalls(ABC):
    """The calls of a transaction."""

    _inner: trio_client.Transaction
    _call: ThreadCall
    _block: ThreadBlockRunner

    @abstractmethod
    async def _ack(self, *deliveries: Delivery) -> None:
        """Acknowledge messages in the loop."""

    def ack(self, *deliveries: Delivery) -> None:
        """Acknowledge messages of any consumer of this client as part of the transaction; a rollback delivers them
        again.

        They make room in their consumer's window at once.

        Interrupted: they are acknowledged or not touched.
        Raises:
            UsageError: a delivery was settled before, or is another client's; or the transaction is not open.
            StaleDeliveryError: deliveries belong to a session or consumer that is gone and come again; the others
                are acknowledged; ``results`` says which is which.
            TransactionRolledBackError: the transaction is lost; it is rolled back.
        """
        self._call(self._ack, *deliveries)

    def commit(self) -> None:
        """Commit the transaction; on return its work is stored.

        Interrupted: it may have been committed or not: repeat the work with the same duplicate ids; or, if it was
        prepared, commit it again.
        Raises:
            TransactionRolledBackError: it was rolled back; if ``outcome`` is unknown it may have been committed, too:
                repeat the work with the same duplicate ids.
            RetryTransactionError: it is prepared, and the session was lost since, or is at another node, or the
                broker has no room: commit it again.
            DuplicateError: a duplicate id is known already; all is rolled back.
            AddressFullError, NotFoundError, UsageError: a message was refused; all is rolled back.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        self._call(self._inner.commit)

    def mark_rollback_only(self) -> None:
        """Mark the transaction as never to be committed: ``commit`` raises."""
        self._block.run_sync(self._inner.mark_rollback_only)

    def prepare(self) -> None:
        """Prepare the transaction: store its work, which waits for ``commit`` or ``rollback`` and can no longer fail.

        What is not durable waits in memory, and is lost if the broker ends before the decision.

        Interrupted: it may be prepared or not: ``client.recover`` tells.
        Raises:
            UsageError: the transaction has no xid, or one under which another one is prepared; or a message was
                refused; all is rolled back.
            SecurityError: the xid is another user's; all is rolled back.
            TransactionRolledBackError: it was rolled back; if ``outcome`` is unknown it may be prepared, too: repeat
                the work with the same duplicate ids, and roll back what ``client.recover`` lists.
            DuplicateError, AddressFullError, NotFoundError: it could not be committed; all is rolled back.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        self._call(self._inner.prepare)

    def rollback(self) -> None:
        """Roll the transaction back: its sends are dropped, its acknowledged messages are delivered again.

        Interrupted: it is rolled back all the same; if it was prepared, perhaps.
        Raises:
            UsageError: the transaction is not open; or it was prepared, and somebody has committed it.
            RetryTransactionError: it is prepared at another node than the session is.
            UnblockedError, CallTimeoutError, ConnectionBrokenError, ClosedError: it is prepared; roll it back again.
        """
        self._call(self._inner.rollback)

    @property
    def rollback_only(self) -> bool:
        """Whether a commit would raise."""
        return self._inner.rollback_only

    def send(
        self,
        address: str,
        body: bytes | Message,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        durable: bool = True,
        priority: int = limits.PRIORITY_DEFAULT,
        ttl: float | None = None,
        delay: float | None = None,
        duplicate_id: str | bytes | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        group: str | None = None,
        content_type: str | None = None,
    ) -> None:
        """Send a message that no consumer sees before the commit.

        Interrupted: it was taken or not: roll back.
        Raises:
            SettingsError: a part of the message is not allowed; it was not taken.
            TransactionRolledBackError: the transaction is lost; it is rolled back.
            MeshqError: an earlier message was refused; all is rolled back.
            UsageError: the transaction is not open.
        """
        self._call(
            self._inner.send,
            address,
            body,
            properties=properties,
            durable=durable,
            priority=priority,
            ttl=ttl,
            delay=delay,
            duplicate_id=duplicate_id,
            correlation_id=correlation_id,
            reply_to=reply_to,
            group=group,
            content_type=content_type,
        )

    @property
    def stage_id(self) -> int | None:
        """The number of a stage, for ``commit_batch``; None for all other transactions."""
        return self._inner.stage_id

    @property
    def state(self) -> str:
        """``new``, ``active``, ``prepared``, ``committed`` or ``rolled back``."""
        return self._inner.state
