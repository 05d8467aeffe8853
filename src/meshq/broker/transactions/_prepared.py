"""Prepared transactions at the broker: each waits for its decision, also after its session has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshq.broker.transactions._transaction import ServerTransaction


class ServerPreparedTransaction:
    """A prepared transaction at the broker."""

    __slots__ = ("positions", "prepared_ms", "transaction", "user", "xid")

    def __init__(self, xid: bytes, user: str, prepared_ms: int, transaction: ServerTransaction) -> None:
        self.xid: bytes = xid
        #: Whose it is; nobody else decides.
        self.user: str = user
        self.prepared_ms: int = prepared_ms
        self.transaction: ServerTransaction = transaction
        #: Positions of its own record and of those of its runs; the decision deletes these records.
        self.positions: list[int] = []
