"""Reading the records of a recovered store, at a start."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import attrs

from meshq.abc import Buffer, Disk, File
from meshq.errors import DamagedError
from meshq.store.formats._batch_format import (
    DATA_RECORD,
    DEMOTED,
    KIND_SHIFT,
    SIZE_MASK,
    TARGETS,
    records_of,
    rows_of,
    unpack_targets,
)
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._record import INTERNAL, JournalRecord
from meshq.store.formats._segment_format import SegmentKeys
from meshq.store.formats._segment_index_format import IndexedBatch
from meshq.store.recovery._recovery import Recovery
from meshq.store.segments._batch_reader import read_batch
from meshq.store.segments._segment_index import OpenedSegment, open_segment
from meshq.store.segments._segment_usage_machine import SegmentRecords


def make_record(
    data: Buffer, position: int, row: int, span: tuple[int, int], alive: bool, missing: int = 0
) -> JournalRecord:
    """Make a record from its bytes, without the last ``missing`` bytes of its payload."""
    start, end = span
    deletes: tuple[int, ...] = ()
    refs: tuple[int, ...] = ()
    if row & TARGETS:
        deletes, refs, start = unpack_targets(data, start)
    tombstone = row & DATA_RECORD == 0
    return JournalRecord(
        position,
        row >> KIND_SHIFT & 0xFF,
        bytes(data[start:end]),
        deletes,
        refs,
        tombstone,
        not (tombstone or alive),
        missing,
    )


def recovered_records(
    disk: Disk, layout: Layout, recovery: Recovery, *, deleted: bool, form: int = 0
) -> Iterator[JournalRecord]:
    """Yield the live records and the tombstones, by position.

    ``deleted``: also the deleted records behind the last checkpoint, and those that refer to live records.  ``form``:
    prefixes of this form are enough; 0: whole records.
    """
    entries = recovery.manifest.by_number()
    segments = sorted(recovery.usage.segments.values(), key=lambda segment: (segment.first, segment.last))
    reading = _RecoveredReader(disk, layout, recovery, deleted, form)
    group: list[SegmentRecords] = []
    last = 0
    for segment in segments:
        if group and segment.first > last:
            yield from reading.merged([(one, entries[one.number]) for one in group])
            group = []
        group.append(segment)
        last = max(last, segment.last)
    yield from reading.merged([(one, entries[one.number]) for one in group])


@attrs.frozen
class _RecoveredReader:
    """The reader of one recovered store's records."""

    disk: Disk
    layout: Layout
    recovery: Recovery
    deleted: bool
    form: int

    def merged(self, group: list[tuple[SegmentRecords, SegmentEntry]]) -> Iterator[JournalRecord]:
        """Yield the records of segments whose ranges overlap: only these segments are in memory together."""
        readers = [self._records(segment, entry) for segment, entry in group]
        if len(readers) == 1:
            return readers[0]
        return heapq.merge(*readers, key=lambda record: record.position)

    def _records(self, segment: SegmentRecords, entry: SegmentEntry) -> Iterator[JournalRecord]:
        late = segment.last > self.recovery.covered and self.deleted
        if not segment.live_records and not segment.targets and not late:
            return
        identity = (self.recovery.manifest.node_id, self.recovery.manifest.journal_id)
        opened = open_segment(self.disk, self.layout, entry, identity)
        batches = _SegmentBatches(self.disk, self.layout, entry, opened)
        index = 0
        try:
            for indexed in opened.batches:
                sizes = segment.sizes[index : index + len(indexed.rows)]
                index += len(indexed.rows)
                yield from self._of_leaf(indexed, [size != 0 for size in sizes], late, (opened.form, batches))
        finally:
            batches.close()

    def _of_leaf(
        self, indexed: IndexedBatch, live: list[bool], late: bool, whole: tuple[int | None, _SegmentBatches]
    ) -> Iterator[JournalRecord]:
        form, batches = whole
        brief = self.form != 0 and form == self.form
        for at, (position, row, start, end, enough) in enumerate(indexed.records()):
            alive = live[at]
            if not self._handed_out(indexed, (position, row, start), alive, late):
                continue
            missing = (row & SIZE_MASK) - (end - start)
            if missing and not (brief and (enough or (row & DATA_RECORD and not alive))):
                data, spans = batches.whole(indexed)
                yield make_record(data, position, row, spans[at], alive)
            else:
                yield make_record(indexed.data, position, row, (start, end), alive, missing)

    def _handed_out(self, indexed: IndexedBatch, record: tuple[int, int, int], alive: bool, late: bool) -> bool:
        position, row, start = record
        tombstone = not row & DATA_RECORD and row >> KIND_SHIFT & 0xFF != INTERNAL
        if alive or tombstone or (late and position > self.recovery.covered and not row & DEMOTED):
            return True
        # A deleted record is a tombstone to the records that it refers to.
        return (
            self.deleted
            and row & TARGETS != 0
            and any(map(self.recovery.usage.is_live, unpack_targets(indexed.data, start)[1]))
        )


class _SegmentBatches:
    """The batches of a segment that was opened by its index, read where the index has only a prefix."""

    __slots__ = ("_disk", "_entry", "_file", "_held", "_keys", "_path")

    def __init__(self, disk: Disk, layout: Layout, entry: SegmentEntry, opened: OpenedSegment) -> None:
        self._disk = disk
        self._path = layout.segment(entry.number)
        self._keys = SegmentKeys(opened.header, layout.keyring, self._path)
        self._file: File | None = None
        # The last batch, by offset: its bytes, and start and end of its records.
        self._held: tuple[int, memoryview, list[tuple[int, int]]] | None = None

    def whole(self, indexed: IndexedBatch) -> tuple[memoryview, list[tuple[int, int]]]:
        """Read a whole batch; return its bytes, and start and end of each record.

        Raises:
            DamagedError: the bytes are not what was written.
            OSError: the disk failed.
        """
        if self._held is None or self._held[0] != indexed.offset:
            if self._file is None:
                self._file = self._disk.open(self._path)
            data, header = read_batch(self._file, self._path, self._keys, indexed.offset)
            rows = rows_of(data, header)
            if rows != indexed.rows:
                raise DamagedError(self._path, indexed.offset, "the batch of its index", "another batch")
            self._held = indexed.offset, data, [(start, end) for _, _, start, end in records_of(data, header)]
        return self._held[1], self._held[2]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
