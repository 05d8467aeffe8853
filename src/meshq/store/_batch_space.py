"""What is large for a journal: a batch that the reserve of a full disk could not take."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from meshq.errors import UsageError
from meshq.limits import SECTOR_BYTES, SEGMENT_HEADER_BYTES
from meshq.store._batch_format import ROW_BYTES, batch_bytes, pack_targets
from meshq.store._pending_batch import PendingBatch
from meshq.store._segment_writer import SegmentWriter

#: The reserve takes acknowledgements, and the messages that were placed already.
RESERVE_SHARE: Final = 4


def reserve_bytes(segment_bytes: int) -> int:
    """The size of the segment that is kept for a full disk."""
    return max(segment_bytes // RESERVE_SHARE, 2 * SEGMENT_HEADER_BYTES)


def batch_bytes_for(size_bytes: int) -> int:
    """What a batch takes whose records have so many bytes, with the sector that is always left behind one."""
    return batch_bytes(size_bytes + ROW_BYTES) + SECTOR_BYTES


def large_bytes(segment_bytes: int) -> int:
    """Records of no more than this fit in the reserve."""
    return reserve_bytes(segment_bytes) - SEGMENT_HEADER_BYTES - batch_bytes_for(0)


def encode_targets_head(deletes: tuple[int, ...], refs: tuple[int, ...], last: int, *, tombstone: bool) -> bytes:
    """The head of a record that speaks about others, all of them up to ``last``; empty for one that doesn't.

    Raises:
        UsageError: it speaks about what is not there, or is a note about nothing.
    """
    if deletes or refs:
        if max(*deletes, *refs, 0) > last or min(*deletes, *refs, 1) < 1:
            raise UsageError("a record speaks about records placed before it only")
        return pack_targets(deletes, refs)
    if tombstone:
        raise UsageError("a note without kills or refs would never be found again")
    return b""


def has_space_behind(
    writer: SegmentWriter | None, batches: Iterable[PendingBatch | None], spare_bytes: int, need: int
) -> bool:
    """Whether these batches, and behind them one that needs so many bytes, find room in the segment being written and
    in a spare one of so many bytes."""
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
    """Bytes that are left in the segment being written when these batches are: 0 if it is not known in which."""
    left = writer.capacity - writer.end if writer is not None else 0
    for batch in _filled(batches):
        size = batch.bytes
        if size + SECTOR_BYTES > left:
            left = batch.preallocated.capacity - SEGMENT_HEADER_BYTES if batch.preallocated is not None else 0
        left = max(left - size, 0)
    return left


def stays_in_segment(writer: SegmentWriter, batch: PendingBatch, behind: Iterable[PendingBatch]) -> bool:
    """Whether a batch goes into the segment being written, and not into the one that was made for it.

    What is placed behind it counts on the room there: it may stay only if nothing behind it loses its place.
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
