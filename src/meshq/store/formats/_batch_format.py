"""The bytes of a batch: the records of one group commit.

====== ===== ============================================================================
offset bytes what (integers little-endian)
====== ===== ============================================================================
0      8     mark of the segment
8      16    check: GMAC of bytes 24 to 96, keyed
24     8     batch number in this segment, from 1
32     8     where this batch begins in the file
40     4     length of the body, n
44     4     how many records
48     8     position of the first record (of none: the next one that would be given)
56     8     durable position: what this disk had synced when this was written
64     8     durable length: bytes of this file that were synced when this was written
72     4     flags: 1 table of positions, 2 the owner's checkpoint
76     4     zeros at the end of the body
80     16    tag of the batch before (of the first one: the genesis)
96     n     body: rows, positions if flagged, the records' bytes, zeros; encrypted if the segment is
96+n   16    tag: of all before, keyed; GMAC, or what AES-GCM gives with the encrypted body
====== ===== ============================================================================

A row is 8 bytes: the length of the record's bytes (4), its kind (1), its flags (1: 1 data record, 2 targets,
4 checkpoint, 8 demoted), zero (2).  A record without flag 1 is a tombstone.  A record with targets begins with the
counts of deletes and refs (4 each) and that many positions (8 each); its payload follows.

A whole batch is a multiple of 512 bytes, so that a write that is cut short never touches a sector that an earlier
sync has covered.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final, NamedTuple

from meshq.abc import Buffer
from meshq.errors import UsageError, invariant
from meshq.limits import SECTOR_BYTES
from meshq.store.formats._segment_format import MARK_BYTES, TAG_BYTES, SegmentKeys

#: Batch flags.
TABLE: Final = 1
CHECKPOINT_BATCH: Final = 2

#: Row flags, where they stand in a row.
DATA_RECORD: Final = 1 << 40
TARGETS: Final = 2 << 40
CHECKPOINT: Final = 4 << 40
#: A data record that is deleted, and kept as a tombstone only.
DEMOTED: Final = 8 << 40
SIZE_MASK: Final = 0xFFFF_FFFF
KIND_SHIFT: Final = 32
ROW_BYTES: Final = 8

_FIELDS: Final = struct.Struct("<QQIIQQQII16s")
_FIELDS_AT: Final = MARK_BYTES + TAG_BYTES
HEAD_BYTES: Final = _FIELDS_AT + _FIELDS.size
_COUNTS: Final = struct.Struct("<II")
_SWAP: Final = sys.byteorder == "big"

assert HEAD_BYTES == 96


class BatchHeader(NamedTuple):
    """The fields of a batch's header; ``tag`` is the tag of the batch itself."""

    number: int
    offset: int
    size: int
    records: int
    first: int
    durable_position: int
    durable_length: int
    flags: int
    padding: int
    previous: bytes
    tag: bytes

    @property
    def end(self) -> int:
        """Where the next batch begins."""
        return self.offset + HEAD_BYTES + self.size + TAG_BYTES


class BatchData(NamedTuple):
    """The records of one batch before they have an offset in a file."""

    first: int
    rows: list[int]
    #: The bytes of the records, in order, in pieces.
    parts: Sequence[Buffer]
    flags: int = 0
    #: Only with ``TABLE``.
    positions: list[int] | None = None

    @property
    def last(self) -> int:
        """The position of the last record; first - 1 if there is none."""
        if self.positions is not None:
            return self.positions[-1]
        return self.first + len(self.rows) - 1


def pack_numbers(numbers: Sequence[int]) -> bytes:
    """Encode numbers as 8 bytes each."""
    packed = array("Q", numbers)
    if _SWAP:
        packed.byteswap()
    return packed.tobytes()


def unpack_numbers(data: Buffer) -> array[int]:
    """Decode the numbers of ``pack_numbers``."""
    numbers = array("Q")
    numbers.frombytes(data)
    if _SWAP:
        numbers.byteswap()
    return numbers


def pack_targets(deletes: Sequence[int], refs: Sequence[int]) -> bytes:
    """Encode the targets of a record: the bytes before its payload."""
    return _COUNTS.pack(len(deletes), len(refs)) + pack_numbers([*deletes, *refs])


def encode_targets_head(deletes: tuple[int, ...], refs: tuple[int, ...], last: int, *, tombstone: bool) -> bytes:
    """Encode the targets of a record, all of them at most ``last``; empty for a record without targets.

    Raises:
        UsageError: a target is not an earlier record, or a tombstone has no target.
    """
    if deletes or refs:
        if max(*deletes, *refs, 0) > last or min(*deletes, *refs, 1) < 1:
            raise UsageError("a record deletes or refers to earlier records only")
        return pack_targets(deletes, refs)
    if tombstone:
        raise UsageError("a tombstone needs records that it deletes or refers to")
    return b""


def unpack_targets(data: Buffer, start: int = 0) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the deletes, the refs, and the offset of the payload."""
    deletes, refs = _COUNTS.unpack_from(data, start)
    start += _COUNTS.size
    end = start + 8 * (deletes + refs)
    numbers = tuple(unpack_numbers(data[start:end]))
    return numbers[:deletes], numbers[deletes:], end


def batch_bytes(content: int) -> int:
    """Return the size of a batch whose rows, positions and records take ``content`` bytes."""
    return -(-(HEAD_BYTES + content + TAG_BYTES) // SECTOR_BYTES) * SECTOR_BYTES


class BatchLocation(NamedTuple):
    """The place of a batch in its segment, and the durable position known there."""

    number: int
    offset: int
    previous: bytes
    durable_position: int


def encode_batch(keys: SegmentKeys, location: BatchLocation, batch_data: BatchData) -> tuple[bytes, bytes]:
    """Return the bytes of a batch and its tag, to be written in this order."""
    rows = pack_numbers(batch_data.rows)
    positions = b"" if batch_data.positions is None else pack_numbers(batch_data.positions)
    invariant((batch_data.flags & TABLE != 0) == (batch_data.positions is not None), "a table goes with its flag")
    content = len(rows) + len(positions) + sum(row & SIZE_MASK for row in batch_data.rows)
    whole = batch_bytes(content)
    size = whole - HEAD_BYTES - TAG_BYTES
    fields = _FIELDS.pack(
        location.number,
        location.offset,
        size,
        len(batch_data.rows),
        batch_data.first,
        location.durable_position,
        # Everything before it in this file: the next batch is written only when the one before is synced.
        location.offset,
        batch_data.flags,
        size - content,
        location.previous,
    )
    pieces = [keys.mark, keys.check(location.number, fields), fields, rows, positions, *batch_data.parts]
    pieces.append(bytes(size - content))
    batch = b"".join(pieces)
    invariant(len(batch) + TAG_BYTES == whole, "the rows' lengths must add up to the records' bytes")
    if not keys.encrypted:
        return batch, keys.tag(location.number, batch)
    head = batch[:HEAD_BYTES]
    sealed = keys.encrypt(location.number, head, memoryview(batch)[HEAD_BYTES:])
    return head + sealed[:-TAG_BYTES], sealed[-TAG_BYTES:]


def decode_head(keys: SegmentKeys, data: Buffer, offset: int, *, base: int = 0) -> BatchHeader | None:
    """Decode the batch header at ``offset``; None if no header was written there.  The batch itself may be cut or
    damaged.

    ``base``: where in the file ``data`` begins.
    """
    head = bytes(data[offset - base : offset - base + HEAD_BYTES])
    if len(head) < HEAD_BYTES or not head.startswith(keys.mark):
        return None
    fields = _FIELDS.unpack_from(head, _FIELDS_AT)
    if fields[1] != offset or keys.check(fields[0], head[_FIELDS_AT:]) != head[MARK_BYTES:_FIELDS_AT]:
        return None
    end = offset - base + HEAD_BYTES + fields[2]
    return BatchHeader._make((*fields, bytes(data[end : end + TAG_BYTES])))


def open_batch(keys: SegmentKeys, data: memoryview, header: BatchHeader) -> bool:
    """Prove the bytes of a batch by its tag; decrypt an encrypted batch in place in ``data``.  Return False if the
    bytes are not what was written.
    """
    tag_at = header.end - TAG_BYTES
    if not keys.encrypted:
        return keys.tag(header.number, data[header.offset : tag_at]) == header.tag
    body_at = header.offset + HEAD_BYTES
    body = keys.decrypt(header.number, data[header.offset : body_at], data[body_at : header.end])
    if body is None:
        return False
    data[body_at:tag_at] = body
    return True


def rows_of(data: Buffer, header: BatchHeader) -> array[int]:
    """Return the rows of a verified batch."""
    start = header.offset + HEAD_BYTES
    return unpack_numbers(data[start : start + ROW_BYTES * header.records])


def positions_of(data: Buffer, header: BatchHeader) -> Sequence[int]:
    """Return the positions of a verified batch's records."""
    if not header.flags & TABLE:
        return range(header.first, header.first + header.records)
    start = header.offset + HEAD_BYTES + ROW_BYTES * header.records
    return unpack_numbers(data[start : start + ROW_BYTES * header.records])


def records_at(header: BatchHeader) -> int:
    """Return the offset at which the bytes of the first record begin."""
    return header.offset + HEAD_BYTES + ROW_BYTES * header.records * (2 if header.flags & TABLE else 1)


def records_of(data: Buffer, header: BatchHeader) -> Iterator[tuple[int, int, int, int]]:
    """Yield position, row, start and end of each record of a verified batch."""
    start = records_at(header)
    for position, row in zip(positions_of(data, header), rows_of(data, header), strict=True):
        end = start + (row & SIZE_MASK)
        yield position, row, start, end
        start = end


def content_problem(data: Buffer, header: BatchHeader) -> str | None:
    """Return an inconsistency inside a batch whose tag is right, or None: a defect of the writer."""
    rows = rows_of(data, header)
    end = records_at(header) + sum(row & SIZE_MASK for row in rows)
    if end + header.padding != header.end - TAG_BYTES:
        return f"records that end at {end} and {header.padding} zeros before {header.end - TAG_BYTES}"
    positions = positions_of(data, header)
    if header.flags & TABLE and any(a >= b for a, b in pairwise(positions)):
        return "positions that do not rise"
    return None
