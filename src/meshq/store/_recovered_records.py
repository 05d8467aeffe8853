"""Reading records back: all at the start, some of them later."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

import attrs

from meshq.abc import Buffer, Disk, File
from meshq.errors import DamagedError
from meshq.store._batch_format import (
    DEMOTED,
    KIND_SHIFT,
    ROOT,
    SIZE_MASK,
    TARGETS,
    records_of,
    rows_of,
    unpack_targets,
)
from meshq.store._batch_reader import proven_batch
from meshq.store._layout_format import Layout
from meshq.store._manifest_format import SegmentEntry
from meshq.store._record import INTERNAL, Record
from meshq.store._recovery import Recovery
from meshq.store._segment_format import SegmentKeys
from meshq.store._segment_index import Opened, open_segment
from meshq.store._segment_index_format import Leaf
from meshq.store._segment_usage_machine import SegmentBook


def make_record(data: Buffer, position: int, row: int, span: tuple[int, int], alive: bool, missing: int = 0) -> Record:
    """A record from its bytes, of which the last ``missing`` are not here."""
    start, end = span
    kills: tuple[int, ...] = ()
    refs: tuple[int, ...] = ()
    if row & TARGETS:
        kills, refs, start = unpack_targets(data, start)
    root, dead = row & ROOT != 0, row & ROOT != 0 and not alive
    return Record(position, row >> KIND_SHIFT & 0xFF, bytes(data[start:end]), kills, refs, root, dead, missing)


def recovered_records(disk: Disk, layout: Layout, recovery: Recovery, *, dead: bool, form: int = 0) -> Iterator[Record]:
    """Living roots and notes, by position; with ``dead`` also dead roots: those behind the last checkpoint, and those
    that speak about living ones.  ``form``: excerpts of this form will do; 0: whole records are wanted."""
    entries = recovery.manifest.numbers()
    books = sorted(recovery.ledger.books.values(), key=lambda book: (book.first, book.last))
    reading = _Reading(disk, layout, recovery, dead, form)
    group: list[SegmentBook] = []
    last = 0
    for book in books:
        if group and book.first > last:
            yield from reading.merged([(one, entries[one.number]) for one in group])
            group = []
        group.append(book)
        last = max(last, book.last)
    yield from reading.merged([(one, entries[one.number]) for one in group])


@attrs.frozen
class _Reading:
    """Reads the records of one recovered store."""

    disk: Disk
    layout: Layout
    recovery: Recovery
    dead: bool
    form: int

    def merged(self, group: list[tuple[SegmentBook, SegmentEntry]]) -> Iterator[Record]:
        """The records of segments whose ranges overlap: only those are in memory together."""
        readers = [self._records(book, entry) for book, entry in group]
        if len(readers) == 1:
            return readers[0]
        return heapq.merge(*readers, key=lambda record: record.position)

    def _records(self, book: SegmentBook, entry: SegmentEntry) -> Iterator[Record]:
        late = book.last > self.recovery.covered and self.dead
        if not book.live_records and not book.targets and not late:
            return
        identity = (self.recovery.manifest.node_id, self.recovery.manifest.journal_id)
        opened = open_segment(self.disk, self.layout, entry, identity)
        batches = _Batches(self.disk, self.layout, entry, opened)
        index = 0
        try:
            for leaf in opened.leaves:
                sizes = book.sizes[index : index + len(leaf.rows)]
                index += len(leaf.rows)
                yield from self._of_leaf(leaf, [size != 0 for size in sizes], late, (opened.form, batches))
        finally:
            batches.close()

    def _of_leaf(
        self, leaf: Leaf, living: list[bool], late: bool, whole: tuple[int | None, _Batches]
    ) -> Iterator[Record]:
        form, batches = whole
        brief = self.form != 0 and form == self.form
        for at, (position, row, start, end, enough) in enumerate(leaf.records()):
            alive = living[at]
            if not self._handed_out(leaf, (position, row, start), alive, late):
                continue
            missing = (row & SIZE_MASK) - (end - start)
            if missing and not (brief and (enough or (row & ROOT and not alive))):
                data, spans = batches.whole(leaf)
                yield make_record(data, position, row, spans[at], alive)
            else:
                yield make_record(leaf.data, position, row, (start, end), alive, missing)

    def _handed_out(self, leaf: Leaf, record: tuple[int, int, int], alive: bool, late: bool) -> bool:
        position, row, start = record
        note = not row & ROOT and row >> KIND_SHIFT & 0xFF != INTERNAL
        if alive or note or (late and position > self.recovery.covered and not row & DEMOTED):
            return True
        # A dead root is a note to what it speaks about.
        return (
            self.dead
            and row & TARGETS != 0
            and any(map(self.recovery.ledger.alive, unpack_targets(leaf.data, start)[1]))
        )


class _Batches:
    """Batches of a segment that was opened by its index, read when something of them is missing there."""

    __slots__ = ("_disk", "_entry", "_file", "_held", "_keys", "_path")

    def __init__(self, disk: Disk, layout: Layout, entry: SegmentEntry, opened: Opened) -> None:
        self._disk = disk
        self._path = layout.segment(entry.number)
        self._keys = SegmentKeys(opened.header, layout.keyring, self._path)
        self._file: File | None = None
        # The last one, by its offset: its bytes, and where its records begin and end.
        self._held: tuple[int, memoryview, list[tuple[int, int]]] | None = None

    def whole(self, leaf: Leaf) -> tuple[memoryview, list[tuple[int, int]]]:
        """The bytes of a batch, and where in them its records stand.

        Raises:
            DamagedError: they are not what was written.
            OSError: the disk failed.
        """
        if self._held is None or self._held[0] != leaf.offset:
            if self._file is None:
                self._file = self._disk.open(self._path)
            data, header = proven_batch(self._file, self._path, self._keys, leaf.offset)
            rows = rows_of(data, header)
            if rows != leaf.rows:
                raise DamagedError(self._path, leaf.offset, "the batch of its index", "another batch")
            self._held = leaf.offset, data, [(start, end) for _, _, start, end in records_of(data, header)]
        return self._held[1], self._held[2]

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
