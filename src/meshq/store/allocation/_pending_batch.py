"""The records that wait for the next group commit."""

from __future__ import annotations

import attrs
import trio

from meshq.abc import Buffer
from meshq.store.formats._batch_format import ROW_BYTES, SIZE_MASK, BatchData, batch_bytes
from meshq.store.segments._segment_writer import PreallocatedSegment


@attrs.define(eq=False)
class PendingBatch:
    """The records of one batch, from the first append until the batch is durable."""

    #: The position of its first record.
    first: int
    #: Bytes that may still be added.  A first record always fits, whatever its size.
    free_bytes: int
    rows: list[int] = attrs.field(factory=list)
    parts: list[Buffer] = attrs.field(factory=list)
    #: Size, deletes and refs of each record with targets.
    targets: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = attrs.field(factory=list)
    flags: int = 0
    #: The positions of the owner's checkpoint, if it is in this batch.
    checkpoint: tuple[int, ...] | None = None
    #: Set when the batch is durable or has failed; made by the first task that waits.
    settled: trio.Event | None = None
    #: The segment that was preallocated for this batch.
    preallocated: PreallocatedSegment | None = None
    # Of the first rows, which were looked at: their number, and the bytes of their records.
    _seen: tuple[int, int] = attrs.field(default=(0, 0), init=False)

    @property
    def last(self) -> int:
        """The position of its last record; first - 1 if there is none."""
        return self.first + len(self.rows) - 1

    @property
    def bytes(self) -> int:
        """The size of the batch in a file."""
        rows, (seen, size) = self.rows, self._seen
        if seen != len(rows):
            # Asked for each record that is placed, it looks at what is new.
            size += sum([row & SIZE_MASK for row in rows[seen:]])
            self._seen = len(rows), size
        return batch_bytes(size + ROW_BYTES * len(rows))

    def take_preallocated(self, capacity: int) -> PreallocatedSegment | None:
        """Take the segment that was preallocated for this batch; None if it is too small."""
        if self.preallocated is None or self.preallocated.capacity < capacity:
            return None
        preallocated, self.preallocated = self.preallocated, None
        return preallocated

    def batch_data(self) -> BatchData:
        """Return the records to be written."""
        return BatchData(self.first, self.rows, self.parts, self.flags)
