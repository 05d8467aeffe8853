"""A transaction for asyncio: sends and acknowledgements that count together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import TracebackType
from typing import Self

from meshq import client as trio_client
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._delivery import Delivery
from meshq.aio._generated_transaction import TransactionCalls
from meshq.client import settle_by_consumer


class Transaction(TransactionCalls):
    """A transaction: sends and acknowledgements are applied together or not at all.  Made by ``client.transaction``;
    used as ``async with``, by one task at a time.

    Leaving the block commits; when the body raises, all is rolled back: what was sent never was, what was acknowledged
    is delivered again.  ``commit`` and ``rollback`` do so before.

    Made with an ``xid`` it may be prepared: then leaving the block decides nothing, and whoever knows the xid commits
    it or rolls it back, in this session or another one, before or after a restart of the broker.
    """

    def __init__(self, client: TaskBlockRunner, inner: trio_client.Transaction) -> None:
        self._block = client
        self._call = client.call
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

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

        Checkpoint: always.
        Cancellation: as ``commit``.
        Raises:
            MeshqError: as ``commit``.
        """
        await self._call(self._inner.__aexit__, kind, error, trace)

    # -- work, in the loop

    async def _ack(self, *deliveries: Delivery) -> None:
        await self._inner.ready()
        settle_by_consumer(deliveries, attrgetter("_consumer"), self._settle_part)

    def _settle_part(self, part: Sequence[Delivery]) -> None:
        part[0]._consumer._settle_in(self._inner, part)
