"""A transaction for asyncio: sends and acknowledgements that count together, or not at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import attrgetter
from types import TracebackType
from typing import TYPE_CHECKING, Self

from meshq import client as trio_client
from meshq import limits
from meshq.aio._delivery import Delivery
from meshq.client import settle_by_consumer
from meshq.message import Message, PropertyValue

if TYPE_CHECKING:
    from meshq.aio._client import Client


class Transaction:
    """A transaction: sends and acknowledgements are applied together or not at all.  Made by ``client.transaction``;
    used as ``async with``, by one task at a time.

    Leaving the block commits; when the body raises, all is rolled back: what was sent never was, what was acknowledged
    is delivered again.  ``commit`` and ``rollback`` do so before.

    Made with an ``xid`` it may be prepared: then leaving the block decides nothing, and whoever knows the xid commits
    it or rolls it back, in this session or another one, before or after a restart of the broker.
    """

    def __init__(self, client: Client, inner: trio_client.Transaction) -> None:
        self._client = client
        self._inner = inner
        self._call = client._call

    def __repr__(self) -> str:
        return repr(self._inner)

    @property
    def state(self) -> str:
        """``new``, ``active``, ``prepared``, ``committed`` or ``rolled back``."""
        return self._inner.state

    @property
    def rollback_only(self) -> bool:
        """Whether a commit would raise."""
        return self._inner.rollback_only

    # -- life

    async def __aenter__(self) -> Self:
        """Begin it; the broker hears of it with the first work.

        Checkpoint: always.  Cancellation: it is not begun.
        Raises:
            UsageError: it was used before, or the client is not open.
            ClosedError, ConnectionBrokenError: the client is of no further use.
        """
        await self._call(self._inner.__aenter__)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or roll back if the body has raised; nothing if that was done before, or if it is prepared.

        Checkpoint: always.  Cancellation: as ``commit``.
        Raises:
            MeshqError: as ``commit``.
        """
        await self._call(self._inner.__aexit__, kind, error, trace)

    # -- work

    async def send(
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

        Checkpoint: always.  Cancellation: it was taken or not: roll back.
        Raises:
            SettingsError: a part of the message is not allowed; it was not taken.
            TransactionRolledBackError: the transaction is lost; it is rolled back.
            MeshqError: an earlier message was refused; all is rolled back.
            UsageError: the transaction is not open.
        """
        await self._call(
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

    async def ack(self, *deliveries: Delivery) -> None:
        """Acknowledge messages of any consumer of this client as part of the transaction; a rollback delivers them
        again.

        They make room in their consumer's window at once.

        Checkpoint: always.  Cancellation: they are acknowledged or not touched.
        Raises:
            UsageError: a delivery was settled before, or is another client's; or the transaction is not open.
            StaleDeliveryError: deliveries belong to a session or consumer that is gone and come again; the others
                are acknowledged; ``results`` says which is which.
            TransactionRolledBackError: the transaction is lost; it is rolled back.
        """
        await self._call(self._ack, deliveries)

    async def _ack(self, deliveries: tuple[Delivery, ...]) -> None:
        await self._inner.ready()
        settle_by_consumer(deliveries, attrgetter("_consumer"), self._settle_part)

    def _settle_part(self, part: Sequence[Delivery]) -> None:
        part[0]._consumer._settle_in(self._inner, part)

    def mark_rollback_only(self) -> None:
        """Mark the transaction as never to be committed: ``commit`` raises."""
        self._client._loop.run_sync(self._inner.mark_rollback_only)

    # -- how it ends

    async def prepare(self) -> None:
        """Prepare the transaction: store its work, which waits for ``commit`` or ``rollback`` and can no longer fail.

        What is not durable waits in memory, and is lost if the broker ends before the decision.

        Checkpoint: always.
        Cancellation: it may be prepared or not: ``client.recover`` tells.
        Raises:
            UsageError: the transaction has no xid, or one under which another one is prepared; or a message was
                refused; all is rolled back.
            SecurityError: the xid is another user's; all is rolled back.
            TransactionRolledBackError: it was rolled back; if ``outcome`` is unknown it may be prepared, too: repeat
                the work with the same duplicate ids, and roll back what ``client.recover`` lists.
            DuplicateError, AddressFullError, NotFoundError: it could not be committed; all is rolled back.
            CallTimeoutError, ConnectionBrokenError, ClosedError: see ``outcome``.
        """
        await self._call(self._inner.prepare)

    async def commit(self) -> None:
        """Commit the transaction; on return its work is stored.

        Checkpoint: always.
        Cancellation: it may have been committed or not: repeat the work with the same duplicate ids; or, if it was
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
        await self._call(self._inner.commit)

    async def rollback(self) -> None:
        """Roll the transaction back: its sends are dropped, its acknowledged messages are delivered again.

        Checkpoint: always.
        Cancellation: it is rolled back all the same; if it was prepared, perhaps.
        Raises:
            UsageError: the transaction is not open; or it was prepared, and somebody has committed it.
            RetryTransactionError: it is prepared at another node than the session is.
            UnblockedError, CallTimeoutError, ConnectionBrokenError, ClosedError: it is prepared; roll it back again.
        """
        await self._call(self._inner.rollback)
