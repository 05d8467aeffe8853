"""The open transactions of a session, and the numbers of transactions and their messages."""

from __future__ import annotations

from collections import OrderedDict
from typing import Protocol

from meshq import limits
from meshq.errors import UsageError


class OpenTransaction(Protocol):
    """A transaction that has begun and not ended."""

    def renewed(self) -> None:
        """Handle a new session: the broker has dropped the work of the transaction."""


class TransactionTable:
    """The open transactions of one session, with their numbers."""

    __slots__ = ("_last", "_last_message", "_nodes", "_open")

    def __init__(self) -> None:
        # The node at which each xid was prepared, the latest last; also after its decision, which no other node knows.
        self._nodes: OrderedDict[bytes, bytes] = OrderedDict()
        # With their xids, if they have any.
        self._open: dict[OpenTransaction, bytes | None] = {}
        self._last = self._last_message = 0

    def begin(self, transaction: OpenTransaction, xid: bytes | None) -> int:
        """Add a transaction; return its number."""
        self._open[transaction] = xid
        self._last += 1
        return self._last

    def end(self, transaction: OpenTransaction) -> None:
        """Remove a transaction that has ended."""
        self._open.pop(transaction, None)

    def check_prepared(self, xid: bytes) -> None:
        """Check that a transaction decided by its xid is not open and unprepared in this client.

        Raises:
            UsageError: it is open, and not prepared.
        """
        if xid in self._open.values():
            raise UsageError(
                f"the transaction {xid!r} is open in this client and not prepared: prepare it first, or end it by its "
                "own commit() or rollback()"
            )

    def number(self, count: int) -> int:
        """Number ``count`` messages that a transaction sends; returns the first number."""
        self._last_message += count
        return self._last_message - count + 1

    def prepares(self, xid: bytes, node_id: bytes) -> None:
        """Remember the node that is asked to prepare a transaction."""
        self._nodes[xid] = node_id
        self._nodes.move_to_end(xid)
        if len(self._nodes) > limits.DECISIONS_REMEMBERED:
            self._nodes.popitem(last=False)

    def node_of(self, xid: bytes) -> bytes | None:
        """Return the node at which this client has prepared a transaction; None: unknown."""
        return self._nodes.get(xid)

    def renew(self) -> None:
        """Handle a new session."""
        for transaction in self._open:
            transaction.renewed()
