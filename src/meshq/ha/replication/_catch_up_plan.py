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


class SyncLeft:
    """The rest of a copy of segments, in records and bytes: an upper bound, which never grows."""

    def __init__(self, segments: Sequence[StoredSegment] = ()) -> None:
        # Of a segment that was compacted the range of positions is known, and not the number of records.
        self._rest = {one.number: (max(0, one.last - one.base + 1), one.size_bytes) for one in segments}
        self._here = (0, 0)

    def begin(self, number: int) -> None:
        """Begin with a segment; the one before was sent."""
        self._here = self._rest.pop(number, (0, 0))

    def sent(self, records: int, size_bytes: int) -> None:
        """Note that so much of the segment was sent."""
        self._here = (max(0, self._here[0] - records), max(0, self._here[1] - size_bytes))

    @property
    def records(self) -> int:
        """The records that are left."""
        return self._here[0] + sum(records for records, _ in self._rest.values())

    @property
    def size_bytes(self) -> int:
        """The bytes that are left."""
        return self._here[1] + sum(size for _, size in self._rest.values())


@attrs.define
class CatchUp:
    """The rounds of a catch-up."""

    position: int
    rounds: int = 0

    def nearly(self, placed: int, has: int) -> bool:
        """Return whether the replica joins now, and count a round."""
        self.rounds += 1
        return placed - has <= NEARLY_RECORDS or self.rounds > ROUNDS_MAX
