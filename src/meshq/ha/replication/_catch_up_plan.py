"""The catch-up of a new replica: the segments, then the batches placed meanwhile, then each batch as it is placed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import attrs

from meshq.abc import StoredBatch, StoredSegment
from meshq.errors import UsageError

#: A replica joins when it lacks no more than so many records,
NEARLY_RECORDS: Final = 2_000
#: or after so many rounds, in which it may never come nearer: the rest is then waited for.
ROUNDS_MAX: Final = 8


def within(batches: Sequence[StoredBatch], last: int) -> list[StoredBatch]:
    """Return the batches of a segment up to a position; the others come later."""
    return [batch for batch in batches if last_of(batch) <= last]


def last_of(batch: StoredBatch) -> int:
    """Return the position of the last record of a batch."""
    return batch.positions[-1] if batch.positions is not None else batch.first + len(batch.rows) - 1


def tail_segments(segments: Sequence[StoredSegment], position: int) -> list[StoredSegment]:
    """Return the segments with records beyond a position that belong to this life, in the order of their records."""
    new = (one for one in segments if one.last > position and one.last >= one.base and not one.compacted)
    return sorted(new, key=lambda one: one.base)


def check_dense(batches: Sequence[StoredBatch], position: int) -> int:
    """Check that batches follow a position without a gap; return the position of their last record.

    Raises:
        UsageError: they do not: the journal has not kept what the copy needs.
    """
    for batch in batches:
        if batch.first != position + 1 or batch.positions is not None:
            raise UsageError(f"the batch from position {batch.first} does not follow position {position}")
        position = last_of(batch)
    return position


@attrs.define
class CatchUp:
    """The rounds of a catch-up."""

    position: int
    rounds: int = 0

    def nearly(self, placed: int, has: int) -> bool:
        """Return whether the replica joins now, and count a round."""
        self.rounds += 1
        return placed - has <= NEARLY_RECORDS or self.rounds > ROUNDS_MAX
