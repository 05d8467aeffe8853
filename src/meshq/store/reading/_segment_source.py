"""The segments of an open journal, read for a copy of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import trio

from meshq.abc import RecordSource, StoredBatch, StoredSegment
from meshq.errors import NotFoundError
from meshq.ids import Position
from meshq.store.commit._active_segment import ActiveSegment
from meshq.store.commit._journal_state import JournalState
from meshq.store.formats._batch_format import SIZE_MASK, TABLE, positions_of, records_at, rows_of
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._scan_format import Scan
from meshq.store.segments._segment_index import read_segment


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

    @property
    def synced(self) -> Position:
        """The last position on this disk."""
        writer = self._segment.writer
        return Position(max(self._last, writer.last if writer is not None else 0))

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
