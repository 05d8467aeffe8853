"""The transactions of a session: their numbers, and those that are open."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from meshq.client._transaction import Transaction


class Transacting:
    """Numbers transactions and what they send; tells them when the session is made anew."""

    __slots__ = ("_last", "_last_message", "_open")

    def __init__(self) -> None:
        self._open: dict[Transaction, None] = {}
        self._last = self._last_message = 0

    def begin(self, transaction: Transaction) -> int:
        """A transaction begins; returns its number."""
        self._open[transaction] = None
        self._last += 1
        return self._last

    def end(self, transaction: Transaction) -> None:
        """It is over."""
        self._open.pop(transaction, None)

    def number(self, count: int) -> int:
        """Number ``count`` messages that a transaction sends; returns the first number."""
        self._last_message += count
        return self._last_message - count + 1

    def renew(self) -> None:
        """The session was made anew."""
        for transaction in self._open:
            transaction.renewed()
