"""Records that wait for the next group commit."""

from __future__ import annotations

import attrs
import trio

from meshq.abc import Buffer
from meshq.store._batch_format import ROW_BYTES, SIZE_MASK, BatchData, batch_bytes
from meshq.store._segment_writer import PreallocatedSegment


@attrs.define(eq=False)
class PendingBatch:
    """The records of one batch, while it is open and until it is durable."""

    #: The position of its first record.
    first: int
    #: Bytes that still may join.  Beyond that the batch is closed, but its first record always fits.
    free_bytes: int
    rows: list[int] = attrs.field(factory=list)
    parts: list[Buffer] = attrs.field(factory=list)
    #: For each record with targets: its size, its kills, its refs.
    targets: list[tuple[int, tuple[int, ...], tuple[int, ...]]] = attrs.field(factory=list)
    flags: int = 0
    #: The positions of the owner's checkpoint, if it is in this batch.
    checkpoint: tuple[int, ...] | None = None
    #: Set when the batch is durable or never will be; made when somebody waits.
    settled: trio.Event | None = None
    #: A segment made for it before it was placed.
    preallocated: PreallocatedSegment | None = None

    @property
    def last(self) -> int:
        """The position of its last record; first - 1 if it has none."""
        return self.first + len(self.rows) - 1

    @property
    def bytes(self) -> int:
        """What it takes in a file."""
        return batch_bytes(sum([row & SIZE_MASK for row in self.rows]) + ROW_BYTES * len(self.rows))

    def take_preallocated(self, capacity: int) -> PreallocatedSegment | None:
        """The segment that was made for it, if it is large enough."""
        if self.preallocated is None or self.preallocated.capacity < capacity:
            return None
        preallocated, self.preallocated = self.preallocated, None
        return preallocated

    def batch_data(self) -> BatchData:
        """What is written."""
        return BatchData(self.first, self.rows, self.parts, self.flags)
