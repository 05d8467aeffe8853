"""Reading records back: all at the start, some of them later."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from meshq.abc import Buffer, Disk
from meshq.store._batch_format import DEMOTED, KIND_SHIFT, ROOT, TARGETS, records_of, unpack_targets
from meshq.store._layout_format import Layout
from meshq.store._ledger_machine import SegmentBook
from meshq.store._manifest_format import SegmentEntry
from meshq.store._record import INTERNAL, Record
from meshq.store._recovery import Recovery, read_segment


def make_record(data: Buffer, position: int, row: int, span: tuple[int, int], alive: bool) -> Record:
    """A record from its bytes."""
    start, end = span
    kills: tuple[int, ...] = ()
    refs: tuple[int, ...] = ()
    if row & TARGETS:
        kills, refs, start = unpack_targets(data, start)
    root = row & ROOT != 0
    return Record(position, row >> KIND_SHIFT & 0xFF, bytes(data[start:end]), kills, refs, root, root and not alive)


def recovered_records(disk: Disk, layout: Layout, recovery: Recovery, *, dead: bool) -> Iterator[Record]:
    """Living roots and notes, by position; with ``dead`` also dead roots: those behind the last checkpoint, and those
    that speak about living ones."""
    entries = recovery.manifest.numbers()
    books = sorted(recovery.ledger.books.values(), key=lambda book: (book.first, book.last))
    group: list[SegmentBook] = []
    last = 0
    for book in books:
        if group and book.first > last:
            yield from _merged(disk, layout, recovery, [(one, entries[one.number]) for one in group], dead)
            group = []
        group.append(book)
        last = max(last, book.last)
    yield from _merged(disk, layout, recovery, [(one, entries[one.number]) for one in group], dead)


def _merged(
    disk: Disk,
    layout: Layout,
    recovery: Recovery,
    group: list[tuple[SegmentBook, SegmentEntry]],
    dead: bool,
) -> Iterator[Record]:
    """The records of segments whose ranges overlap: only those are in memory together."""
    readers = [_records(disk, layout, recovery, book, entry, dead) for book, entry in group]
    if len(readers) == 1:
        return readers[0]
    return heapq.merge(*readers, key=lambda record: record.position)


def _records(
    disk: Disk, layout: Layout, recovery: Recovery, book: SegmentBook, entry: SegmentEntry, dead: bool
) -> Iterator[Record]:
    late = book.last > recovery.covered and dead
    if not book.live_records and not book.targets and not late:
        return
    identity = (recovery.manifest.node_id, recovery.manifest.journal_id)
    found = read_segment(disk, layout, entry, identity)
    data = found.data
    sizes, index = book.sizes, 0
    for batch in found.batches:
        for position, row, start, end in records_of(data, batch):
            alive = sizes[index] != 0
            index += 1
            note = not row & ROOT and row >> KIND_SHIFT & 0xFF != INTERNAL
            if alive or note or (late and position > recovery.covered and not row & DEMOTED):
                yield make_record(data, position, row, (start, end), alive)
            elif dead and row & TARGETS:
                # A dead root is a note to what it speaks about.
                record = make_record(data, position, row, (start, end), alive)
                if any(recovery.ledger.alive(target) for target in record.refs):
                    yield record
