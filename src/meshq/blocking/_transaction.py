"""A transaction for threads: sends and acknowledgements that count together, or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from types import TracebackType
from typing import Self

from meshq import client as trio_client
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._delivery import Delivery
from meshq.blocking._generated_transaction import TransactionCalls
from meshq.client import settle_by_consumer


class Transaction(TransactionCalls):
    """A transaction: sends and acknowledgements are applied together or not at all.  Made by ``client.transaction``;
    used as ``with``, by one thread at a time.

    Leaving the block commits; when the body raises, all is rolled back: what was sent never was, what was acknowledged
    is delivered again.  ``commit`` and ``rollback`` do so before.

    Made with an ``xid`` it may be prepared: then leaving the block decides nothing, and whoever knows the xid commits
    it or rolls it back, in this session or another one, before or after a restart of the broker.
    """

    def __init__(self, client: ThreadBlockRunner, inner: trio_client.Transaction) -> None:
        self._block = client
        self._call = client.call
        self._inner = inner

    def __repr__(self) -> str:
        return repr(self._inner)

    # -- life

    def __enter__(self) -> Self:
        """Begin it; the broker hears of it with the first work.

        Interrupted: it is not begun.
        Raises:
            UsageError: it was used before, or the client is not open.
            ClosedError, ConnectionBrokenError: the client is of no further use.
        """
        self._call(self._inner.__aenter__)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or roll back if the body has raised; nothing if that was done before, or if it is prepared.

        Interrupted: as ``commit``.
        Raises:
            MeshqError: as ``commit``.
        """
        self._call(self._inner.__aexit__, kind, error, trace)

    # -- work, in the loop

    async def _ack(self, *deliveries: Delivery) -> None:
        await self._inner.ready()
        settle_by_consumer(deliveries, attrgetter("_consumer"), self._settle_part)

    def _settle_part(self, part: Sequence[Delivery]) -> None:
        part[0]._consumer._settle_in(self._inner, part)
