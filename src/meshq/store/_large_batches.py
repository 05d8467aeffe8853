"""What is large for a journal: a batch that the reserve of a full disk could not take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from meshq.limits import SECTOR_BYTES, SEGMENT_HEADER_BYTES
from meshq.store._batch_format import ROW_BYTES, batch_bytes
from meshq.store._gathered import Gathered
from meshq.store._writer import SegmentWriter

#: The reserve takes acknowledgements, and the messages that were placed already.
RESERVE_SHARE: Final = 4


def reserve_bytes(segment_bytes: int) -> int:
    """The size of the segment that is kept for a full disk."""
    return max(segment_bytes // RESERVE_SHARE, 2 * SEGMENT_HEADER_BYTES)


def bytes_of(size_bytes: int) -> int:
    """What a batch takes whose records have so many bytes, with the sector that is always left behind one."""
    return batch_bytes(size_bytes + ROW_BYTES) + SECTOR_BYTES


def large_bytes(segment_bytes: int) -> int:
    """Records of no more than this fit in the reserve."""
    return reserve_bytes(segment_bytes) - SEGMENT_HEADER_BYTES - bytes_of(0)


def left_behind(writer: SegmentWriter | None, batches: Iterable[Gathered]) -> int:
    """Bytes that are left in the segment being written when these batches are: 0 if it is not known in which."""
    left = writer.capacity - writer.end if writer is not None else 0
    for batch in batches:
        size = batch.bytes
        if size + SECTOR_BYTES > left:
            left = batch.blank.capacity - SEGMENT_HEADER_BYTES if batch.blank is not None else 0
        left = max(left - size, 0)
    return left
