"""How the calls of a transaction fail, and what whoever uses it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshq.client._calls import Call
from meshq.errors import (
    MeshqError,
    NotActiveError,
    StaleDeliveryError,
    TransactionRolledBackError,
    UnblockedError,
)
from meshq.wire import Frame

#: Errors of a call that is gone with its session.
CUT: Final = (UnblockedError, StaleDeliveryError)


class RunCall(Call):
    """A run of a transaction on its way: if it fails, so does the transaction."""

    __slots__ = ("_on_failed",)

    def __init__(
        self, what: str, make: Callable[[int], Frame], epoch: int, on_failed: Callable[[MeshqError], None]
    ) -> None:
        super().__init__(what, make, epoch)
        self._on_failed = on_failed

    def fail(self, error: BaseException) -> None:
        """It was refused, or is cut off."""
        super().fail(error)
        if isinstance(error, MeshqError) and not isinstance(error, CUT):
            self._on_failed(error)


def told(error: MeshqError, operation: str = "commit") -> MeshqError:
    """What whoever uses a transaction is told of an error that a call of it has met."""
    if isinstance(error, UnblockedError):
        return TransactionRolledBackError(
            f"the {operation} was cut off; repeat the work with the same duplicate ids", outcome="unknown"
        )
    if isinstance(error, (StaleDeliveryError, NotActiveError)):
        return lost()
    return error


def lost() -> TransactionRolledBackError:
    """Nothing of it was applied."""
    return TransactionRolledBackError("the session was lost, and with it the work of the transaction")
