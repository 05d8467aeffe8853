"""The calls of a transaction.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Transaction``: change that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

from meshq import client as trio_client
from meshq import limits
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._delivery import Delivery
from meshq.aio._loop_thread import TaskCall, forwarded
from meshq.message import Message, PropertyValue


class TransactionCalls(ABC):
    """The calls of a transaction."""

    _inner: trio_client.Transaction
    _call: TaskCall
    _block: TaskBlockRunner

    @abstractmethod
    async def _ack(self, *deliveries: Delivery) -> None:
        """Acknowledge messages in the loop."""

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
        await self._call(self._ack, *deliveries)

    commit: Final = forwarded(trio_client.Transaction.commit)

    def mark_rollback_only(self) -> None:
        """Mark the transaction as never to be committed: ``commit`` raises."""
        self._block.run_sync(self._inner.mark_rollback_only)

    prepare: Final = forwarded(trio_client.Transaction.prepare)
    rollback: Final = forwarded(trio_client.Transaction.rollback)

    @property
    def rollback_only(self) -> bool:
        """Whether a commit would raise."""
        return self._inner.rollback_only

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

        Checkpoint: always.
        Cancellation: it was taken or not: roll back.
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

    @property
    def stage_id(self) -> int | None:
        """The number of a stage, for ``commit_batch``; None for all other transactions."""
        return self._inner.stage_id

    @property
    def state(self) -> str:
        """``new``, ``active``, ``prepared``, ``committed`` or ``rolled back``."""
        return self._inner.state
