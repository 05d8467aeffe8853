"""Prepared transactions at the broker: each waits for its decision, also after its session has ended."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshq.broker.transactions._transaction import ServerTransaction


class ServerPreparedTransaction:
    """A prepared transaction at the broker."""

    __slots__ = ("forward", "positions", "prepared_ms", "transaction", "user", "whole", "xid")

    def __init__(self, xid: bytes, user: str, prepared_ms: int, transaction: ServerTransaction) -> None:
        self.xid: bytes = xid
        #: Whose it is; nobody else decides.
        self.user: str = user
        self.prepared_ms: int = prepared_ms
        self.transaction: ServerTransaction = transaction
        #: The number of the store-and-forward queue for the node that takes it over; 0: it stays here.
        self.forward: int = 0
        #: Whether the last part of one that another node hands over has come in this life.
        self.whole: bool = False
        #: Positions of its own record and of those of its runs; the decision deletes these records.
        self.positions: list[int] = []

    def join(self, other: ServerPreparedTransaction) -> None:
        """Add the sends and acknowledgements of another transaction, to be decided together."""
        mine, theirs = self.transaction, other.transaction
        for work in theirs.work:
            mine.add_run(work)
        for queue, spans in theirs.acked_in_transaction.items():
            mine.acked_in_transaction.setdefault(queue, []).extend(spans)
        mine.acked += theirs.acked
        self.positions += other.positions
