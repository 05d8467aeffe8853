"""Which sequences without a message are a loss."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

from meshq.errors import DataLossError

#: Why a number may have no message although nothing that was to be read is gone.
LEGAL: Final = frozenset({"expired", "reserved"})


class Loss(NamedTuple):
    """Sequences whose messages are gone, and how: as a hole of a cursor."""

    lo: int
    hi: int
    kind: str


def losses_among(holes: Iterable[tuple[int, int, str]]) -> list[Loss]:
    """The holes that are losses."""
    return [Loss(*hole) for hole in holes if hole[2] not in LEGAL]


def loss_error(partition: str, lost: Loss, asked: tuple[int, int]) -> DataLossError:
    """The error of a loss in a partition of which a range was asked for."""
    text = (
        f"the messages [{lost.lo}, {lost.hi}) of {partition} are gone ({lost.kind}), and the checkpoint asks for "
        f"[{asked[0]}, {asked[1]}); failOnDataLoss=false goes on without these"
    )
    return DataLossError(text, partition=partition, lo=lost.lo, hi=lost.hi)
