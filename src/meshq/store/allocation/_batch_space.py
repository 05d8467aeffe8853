"""The bytes that batches need on the disk, and the batches that the reserve of a full disk could not hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from meshq.limits import SECTOR_BYTES, SEGMENT_HEADER_BYTES
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.formats._batch_format import ROW_BYTES, batch_bytes
from meshq.store.segments._segment_writer import SegmentWriter

#: The reserve takes acknowledgements, and the messages that were placed already.
RESERVE_SHARE: Final = 4


def reserve_bytes(segment_bytes: int) -> int:
    """Return the size of the segment that is kept for a full disk."""
    return max(segment_bytes // RESERVE_SHARE, 2 * SEGMENT_HEADER_BYTES)


def batch_bytes_for(size_bytes: int) -> int:
    """Return the bytes of a batch whose records have ``size_bytes``, and of the free sector behind each batch."""
    return batch_bytes(size_bytes + ROW_BYTES) + SECTOR_BYTES


def large_bytes(segment_bytes: int) -> int:
    """Return the most bytes of records that fit in the reserve."""
    return reserve_bytes(segment_bytes) - SEGMENT_HEADER_BYTES - batch_bytes_for(0)


def has_space_behind(
    writer: SegmentWriter | None, batches: Iterable[PendingBatch | None], spare_bytes: int, need: int
) -> bool:
    """Whether these batches, and behind them a batch of ``need`` bytes, fit in the segment being written and in a
    spare segment of ``spare_bytes``.
    """
    left = writer.capacity - writer.end if writer is not None else 0
    for size, preallocated in [
        *((batch.bytes + SECTOR_BYTES, batch.preallocated) for batch in _filled(batches)),
        (need, None),
    ]:
        if size > left:
            left = spare_bytes if preallocated is None else preallocated.capacity
            left -= SEGMENT_HEADER_BYTES
            spare_bytes = spare_bytes if preallocated is not None else 0
        if size > left:
            return False
        left -= size
    return True


def free_bytes_behind(writer: SegmentWriter | None, batches: Iterable[PendingBatch | None]) -> int:
    """Return the bytes left in the segment being written behind these batches; 0 if their segment is not known."""
    left = writer.capacity - writer.end if writer is not None else 0
    for batch in _filled(batches):
        size = batch.bytes
        if size + SECTOR_BYTES > left:
            left = batch.preallocated.capacity - SEGMENT_HEADER_BYTES if batch.preallocated is not None else 0
        left = max(left - size, 0)
    return left


def stays_in_segment(writer: SegmentWriter, batch: PendingBatch, behind: Iterable[PendingBatch]) -> bool:
    """Whether a batch goes into the segment being written, and not into the segment preallocated for it.

    The batches behind it count on the space there: the batch stays only if none of them loses its space.
    """
    left = writer.capacity - writer.end - batch.bytes
    if left < SECTOR_BYTES:
        return False
    if batch.preallocated is None or left + batch.bytes >= batch.preallocated.capacity - SEGMENT_HEADER_BYTES:
        return True
    for one in _filled(behind):
        if one.preallocated is not None:
            break
        left -= one.bytes
        if left < SECTOR_BYTES:
            return False
    return True


def _filled(batches: Iterable[PendingBatch | None]) -> list[PendingBatch]:
    return [batch for batch in batches if batch is not None and batch.rows]
