"""The segments of an open journal, read for a copy of it."""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Final

import trio

from meshq.abc import RecordDigest, RecordSource, StoredBatch, StoredSegment
from meshq.errors import NotFoundError
from meshq.ids import Position
from meshq.limits import MIB
from meshq.store.commit._active_segment import ActiveSegment
from meshq.store.commit._journal_state import JournalState
from meshq.store.formats._batch_format import SIZE_MASK, TABLE, pack_numbers, positions_of, records_at, rows_of
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._record import JournalRecord
from meshq.store.formats._scan_format import Scan
from meshq.store.reading._record_reader import POOL, RecordReader
from meshq.store.segments._segment_index import read_segment

#: So many records, and bytes of records, are read at a time for a comparison.
RECORDS_READ: Final = 1_024
BYTES_READ: Final = 4 * MIB
DIGEST_BYTES: Final = 16
_KIND_AND_TARGETS: Final = struct.Struct("<BII")


class SegmentSource(RecordSource):
    """The segments of one journal."""

    def __init__(self, state: JournalState, segment: ActiveSegment, *, last: int) -> None:
        self._state = state
        self._segment = segment
        # The last position before this life.
        self._last = last

    @asynccontextmanager
    async def holding(self) -> AsyncIterator[None]:
        """Surround a copy, from the moment at which no segment is being changed."""
        state = self._state
        await trio.lowlevel.checkpoint()
        state.copies += 1
        try:
            while state.maintained is not None:
                await state.maintained.wait()
            yield
        finally:
            state.copies -= 1

    def segments(self) -> Sequence[StoredSegment]:
        """Return the segments by their numbers."""
        return [
            StoredSegment(
                number=entry.number,
                base=Position(entry.base),
                last=Position(entry.last),
                compacted=entry.compacted,
                size_bytes=entry.length,
            )
            for _, entry in sorted(self._segment.entries().items())
        ]

    async def read(self, number: int, beyond: int = 0) -> Sequence[StoredBatch]:
        """Read the durable batches of a segment that have records beyond a position."""
        state, entry = self._state, self._segment.entries().get(number)
        if entry is None:
            await trio.lowlevel.checkpoint()
            raise NotFoundError(f"segment {number} is gone: the disk had no space for it")
        return await state.run_in_background(_read, state, entry, beyond)

    async def live(self, beyond: int, upto: int) -> Sequence[RecordDigest]:
        """Read the next live records beyond a position, up to another one."""
        state, reader = self._state, RecordReader(self._state)
        await trio.lowlevel.checkpoint()
        while wanted := state.usage.live_beyond(beyond, upto, RECORDS_READ, BYTES_READ):
            records = await reader.read(wanted)
            if records:
                return await state.env.threads.run(_digests, records.values(), pool=POOL)
            # All of them were deleted meanwhile.
            beyond = wanted[-1]
        return []

    @property
    def synced(self) -> Position:
        """The last position on this disk."""
        writer = self._segment.writer
        # What a batch deletes is known together with it.
        return Position(max(self._last, self._state.usage.segments[writer.number].last if writer is not None else 0))

    @property
    def full(self) -> bool:
        """Whether the disk has no space for new records."""
        return self._state.allocator.full


def _read(state: JournalState, entry: SegmentEntry, beyond: int) -> list[StoredBatch]:
    identity = (state.manifest.node_id, state.manifest.journal_id)
    found = read_segment(state.env.disk, state.layout, entry, identity, durable=True)
    return _batches(found, entry.length, beyond)


def _batches(found: Scan, end: int, beyond: int) -> list[StoredBatch]:
    data = memoryview(found.data)
    batches: list[StoredBatch] = []
    for header in found.batches:
        positions = positions_of(data, header)
        if not header.records or positions[-1] <= beyond or header.end > end:
            continue
        start, rows = records_at(header), rows_of(data, header).tolist()
        size = sum(row & SIZE_MASK for row in rows)
        batches.append(
            StoredBatch(
                first=Position(header.first),
                flags=header.flags & ~TABLE,
                rows=rows,
                content=bytes(data[start : start + size]),
                positions=list(positions) if header.flags & TABLE else None,
            )
        )
    return batches


def _digests(records: Iterable[JournalRecord]) -> list[RecordDigest]:
    return sorted((RecordDigest(one.position, digest_of(one)) for one in records), key=_position_of)


def _position_of(one: RecordDigest) -> int:
    return one.position


def digest_of(record: JournalRecord) -> bytes:
    """Return the digest of a live record: of its kind, its targets and its payload."""
    found = blake2b(digest_size=DIGEST_BYTES)
    found.update(_KIND_AND_TARGETS.pack(record.kind, len(record.deletes), len(record.refs)))
    found.update(pack_numbers([*record.deletes, *record.refs]))
    found.update(record.payload)
    return found.digest()
