"""The index of a sealed segment: the bytes that a start needs of the segment, in a file beside it.

====== ===== ============================================================================
offset bytes what (integers little-endian)
====== ===== ============================================================================
0      8     magic ``meshqidx``
8      4     format version: 1
12     4     form: how the owner shortens its records; 0: it doesn't
16     8     number of the segment
24     8     base: the position of its first record
32     8     last: the position of its last record
40     8     length: where the segment ends
48     16    tag of its last batch
64     4     flags of the segment in the manifest
68     4     how many batches
72     8     length of the body, n
80     32    salt of this index, random
112    n     body: a part for each batch; encrypted if the segment is
112+n  16    tag: of all before, keyed; GMAC, or what AES-GCM gives with the encrypted body
====== ===== ============================================================================

The part of a batch: its offset (8), the position of its first record (8), the number of records (4) and its flags (4);
the rows of the batch, its table of positions if it has one; for each record the number of kept bytes (4, with bit 31
if the owner needs no more of the record at a start); the kept bytes, one after the other.

The kept bytes are the prefix of a record: all of its targets, and as much of its payload as the owner wants.
The fields from 16 to 72 are the seal of the segment as the manifest has it.  An index of another segment, or of
another state of this segment, has another seal.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from meshq.abc import Buffer
from meshq.store.formats._batch_format import (
    KIND_SHIFT,
    ROW_BYTES,
    SIZE_MASK,
    TABLE,
    TARGETS,
    pack_numbers,
    positions_of,
    records_at,
    rows_of,
    unpack_numbers,
    unpack_targets,
)
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import COMPACTED, SEALED, SegmentEntry
from meshq.store.formats._record_prefix import RecordPrefix
from meshq.store.formats._scan_format import Scan
from meshq.store.formats._segment_format import SALT_BYTES, TAG_BYTES, SegmentHeader, index_key

MAGIC: Final = b"meshqidx"
VERSION: Final = 1
#: The owner needs no more than the kept bytes.
ENOUGH: Final = 1 << 31
KEPT_MASK: Final = ENOUGH - 1
_HEAD: Final = struct.Struct(f"<8sIIQQQQ{TAG_BYTES}sIIQ{SALT_BYTES}s")
HEAD_BYTES: Final = _HEAD.size
_PART: Final = struct.Struct("<QQII")
_WORD_BYTES: Final = 4
#: A key serves for one index only.
_NONCE: Final = b"meshq index!"
_SWAP: Final = sys.byteorder == "big"

assert HEAD_BYTES == 112
assert array("I").itemsize == _WORD_BYTES


class IndexedBatch(NamedTuple):
    """A batch of a sealed segment as a start reads it: whole, or as much as its index keeps."""

    offset: int
    first: int
    flags: int
    rows: array[int]
    positions: Sequence[int]
    data: Buffer
    #: The offset in ``data`` at which the records begin.
    start: int
    #: For each record the number of its bytes here, and whether these are enough; None: whole records.
    kept: array[int] | None

    def records(self) -> Iterator[tuple[int, int, int, int, bool]]:
        """Yield for each record its position, row, start and end in ``data``, and whether these bytes are enough for
        the owner.
        """
        start = self.start
        kept = [row & SIZE_MASK for row in self.rows] if self.kept is None else self.kept
        for position, row, size in zip(self.positions, self.rows, kept, strict=True):
            end = start + (size & KEPT_MASK)
            yield position, row, start, end, size & ENOUGH != 0
            start = end


class SegmentIndex(NamedTuple):
    """The decoded index of a segment."""

    form: int
    batches: list[IndexedBatch]


def indexed_batches(found: Scan, count: int | None = None, *, start: int = 0) -> Iterator[IndexedBatch]:
    """Yield the batches of a whole segment from ``start`` to ``count``, without its watermarks."""
    for batch in found.batches[start:count]:
        if batch.records or batch.flags:
            rows, positions = rows_of(found.data, batch), positions_of(found.data, batch)
            yield IndexedBatch(
                batch.offset, batch.first, batch.flags, rows, positions, found.data, records_at(batch), None
            )


def encode_index(found: Scan, entry: SegmentEntry, layout: Layout, salt: bytes, record_prefix: RecordPrefix) -> bytes:
    """Encode the index of a sealed segment that was read whole and proven."""
    data = memoryview(found.data)
    pieces: list[Buffer] = []
    count = 0
    for indexed in indexed_batches(found):
        count += 1
        kept = array("I")
        parts: list[Buffer] = []
        for _, row, start, end, _ in indexed.records():
            size = _kept(data, row, start, end, record_prefix)
            kept.append(size)
            parts.append(data[start : start + (size & KEPT_MASK)])
        pieces += [
            _PART.pack(indexed.offset, indexed.first, len(indexed.rows), indexed.flags),
            pack_numbers(indexed.rows),
        ]
        if indexed.flags & TABLE:
            pieces.append(pack_numbers(indexed.positions))
        pieces += [_words(kept).tobytes(), *parts]
    body = b"".join(pieces)
    head = _HEAD.pack(MAGIC, VERSION, record_prefix.form, *_seal(entry), count, len(body), salt)
    key, encrypted = index_key(found.header, layout.keyring, salt, layout.segment(entry.number))
    gcm = AESGCM(key)
    if encrypted:
        return head + gcm.encrypt(_NONCE, body, head)
    return b"".join((head, body, gcm.encrypt(_NONCE, b"", head + body)))


def _kept(data: memoryview, row: int, start: int, end: int, record_prefix: RecordPrefix) -> int:
    payload = unpack_targets(data, start)[2] if row & TARGETS else start
    size, enough = record_prefix.of(row >> KIND_SHIFT & 0xFF, data[payload:end])
    return payload - start + size | (ENOUGH if enough else 0)


def decode_index(data: bytes, header: SegmentHeader, entry: SegmentEntry, layout: Layout) -> SegmentIndex | str:
    """Decode the index of the segment with this header and this seal; a text says why an index is refused."""
    if len(data) < HEAD_BYTES + TAG_BYTES:
        return f"{len(data)} bytes are no index"
    magic, version, form, *seal, count, size, salt = _HEAD.unpack_from(data)
    if magic != MAGIC or version != VERSION:
        return f"it begins with {magic!r} and version {version}"
    if tuple(seal) != _seal(entry):
        return "it is of another segment, or of another state of this one"
    if HEAD_BYTES + size + TAG_BYTES != len(data):
        return f"it has {len(data)} bytes, and says {HEAD_BYTES + size + TAG_BYTES}"
    body = _open(data, index_key(header, layout.keyring, salt, layout.segment(entry.number)))
    if body is None:
        return "its bytes are not what was written"
    try:
        batches, at = _decode_batches(body, count)
    except (struct.error, ValueError):
        return "a part of it is cut short"
    if at != len(body):
        return f"its parts end at {at} of {len(body)}"
    last = next((indexed.positions[-1] for indexed in reversed(batches) if indexed.rows), entry.base - 1)
    if last != entry.last:
        return f"its records end with {last}, not {entry.last}"
    return SegmentIndex(form, batches)


def index_problem(index: SegmentIndex, found: Scan) -> str | None:
    """Compare a valid index with its segment; a text says where they differ: a defect of the writer."""
    whole = list(indexed_batches(found))
    if len(whole) != len(index.batches):
        return f"it has {len(index.batches)} batches, and the segment {len(whole)}"
    for indexed, batch in zip(index.batches, whole, strict=True):
        same = indexed[:4] == batch[:4] and list(indexed.positions) == list(batch.positions)
        pairs = zip(indexed.records(), batch.records(), strict=False)
        if not same or any(
            indexed.data[mine[2] : mine[3]] != batch.data[its[2] : its[2] + mine[3] - mine[2]]
            or mine[3] - mine[2] > its[3] - its[2]
            for mine, its in pairs
        ):
            return f"it says something else of the batch at {batch.offset}"
    return None


def _open(data: bytes, sealing: tuple[bytes, bool]) -> bytes | None:
    key, encrypted = sealing
    gcm, view = AESGCM(key), memoryview(data)
    try:
        if encrypted:
            return gcm.decrypt(_NONCE, view[HEAD_BYTES:], view[:HEAD_BYTES])
        gcm.decrypt(_NONCE, view[-TAG_BYTES:], view[:-TAG_BYTES])
    except InvalidTag:
        return None
    return bytes(view[HEAD_BYTES:-TAG_BYTES])


def _decode_batches(body: bytes, count: int) -> tuple[list[IndexedBatch], int]:
    """Decode the batches, and return where they say that they end.

    Raises:
        struct.error, ValueError: a part is cut short.
    """
    batches: list[IndexedBatch] = []
    view = memoryview(body)
    at = 0
    for _ in range(count):
        offset, first, records, flags = _PART.unpack_from(body, at)
        at += _PART.size
        rows = unpack_numbers(view[at : at + ROW_BYTES * records])
        at += ROW_BYTES * records
        positions: Sequence[int] = range(first, first + records)
        if flags & TABLE:
            positions = unpack_numbers(view[at : at + ROW_BYTES * records])
            at += ROW_BYTES * records
        kept = array("I")
        kept.frombytes(view[at : at + _WORD_BYTES * records])
        kept = _words(kept)
        at += _WORD_BYTES * records
        batches.append(IndexedBatch(offset, first, flags, rows, positions, body, at, kept))
        at += sum([size & KEPT_MASK for size in kept])
    return batches, at


def _words(words: array[int]) -> array[int]:
    if _SWAP:  # pragma: no cover - big-endian hosts
        words = words[:]
        words.byteswap()
    return words


def _seal(entry: SegmentEntry) -> tuple[int, int, int, int, bytes, int]:
    flags = SEALED * entry.sealed | COMPACTED * entry.compacted
    return entry.number, entry.base, entry.last, entry.length, entry.tag, flags
