"""Errors of transactions: translation of failed calls into the errors that users get."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from meshq.client.incoming._spans import check_deliveries
from meshq.errors import (
    MeshqError,
    NotActiveError,
    StaleDeliveryError,
    TransactionRolledBackError,
    UnblockedError,
    UsageError,
)
from meshq.loops import check_in_trio

D = TypeVar("D")

#: Errors of a call that is gone with its session.
CUT: Final = (UnblockedError, StaleDeliveryError)


def user_error(error: MeshqError, operation: str = "commit") -> MeshqError:
    """Translate the error of a call into the error that the user of the transaction gets."""
    if isinstance(error, UnblockedError):
        return TransactionRolledBackError(
            f"the {operation} was cut off; repeat the work with the same duplicate ids", outcome="unknown"
        )
    if isinstance(error, (StaleDeliveryError, NotActiveError)):
        return lost_error()
    return error


def lost_error() -> TransactionRolledBackError:
    """Make the error of a transaction whose work was lost with its session."""
    return TransactionRolledBackError("the session was lost, and with it the work of the transaction")


def not_open_error(state: str) -> UsageError:
    """Make the error of a call in a transaction that is not active.

    Raises:
        UsageError: it has not begun, and this is no task of trio.
    """
    if state == "new":
        check_in_trio("connect")
    hints = {
        "new": "enter its block first",
        "prepared": "all that is left is to commit it or to roll it back",
    }
    return UsageError(f"the transaction is {state}: {hints.get(state, 'it is over, make another one')}")


def settle_by_consumer(
    deliveries: Sequence[D], consumer_of: Callable[[D], object], settle: Callable[[Sequence[D]], None]
) -> None:
    """Settle deliveries in their order, neighbours of one consumer together by ``settle``.

    Raises:
        SettingsError: one of them is no delivery; nothing changed.
        StaleDeliveryError: some were stale; all others are settled.
    """
    try:
        owners = list(map(consumer_of, deliveries))
    except AttributeError:
        check_deliveries(deliveries, consumer_of)
        raise
    results: list[MeshqError | None] = []
    stale: StaleDeliveryError | None = None
    start = 0
    for end in range(1, len(deliveries) + 1):
        if end < len(deliveries) and owners[end] is owners[start]:
            continue
        part = deliveries[start:end]
        try:
            settle(part)
        except StaleDeliveryError as error:
            stale = error
            results += error.results or (error,)
        else:
            results += [None] * len(part)
        start = end
    if stale is None:
        return
    if len(results) == max(len(stale.results), 1):
        raise stale
    count = len(results) - results.count(None)
    text = f"{count} of {len(results)} deliveries are of sessions or consumers that are gone, and come again"
    raise StaleDeliveryError(text, results=results)
