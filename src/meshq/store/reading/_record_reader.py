"""Reading single records of an open journal: by position, many in one thread hop, each batch once.

A position never changes, but a compaction may move its record between the lookup and the read.  The file is removed
only after ``SegmentUsage`` knows the record's new segment, so a reader that finds no file looks the record up again.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from meshq.abc import Disk, File
from meshq.errors import DamagedError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.commit._journal_state import JournalState
from meshq.store.formats._batch_format import records_of
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._record import JournalRecord
from meshq.store.formats._segment_format import SegmentKeys, decode_header
from meshq.store.recovery._recovered_records import make_record
from meshq.store.segments._batch_reader import read_batch

#: The pool of threads that read: never the thread that writes.
POOL: Final = "pages"


class _Batch(NamedTuple):
    """A batch, and the positions of the wanted records in it."""

    segment: int
    offset: int
    positions: dict[int, None]


class RecordReader:
    """The reader of one open journal's records."""

    __slots__ = ("_journal_state",)

    def __init__(self, state: JournalState) -> None:
        self._journal_state = state

    async def read(self, positions: Sequence[int]) -> dict[int, JournalRecord]:
        """Read the live records at these positions; records that were deleted meanwhile are left out.

        Checkpoint: always, if there are positions.
        Cancellation: the call is waited for and its result lost.
        Raises:
            DamagedError: durable bytes are missing or changed.
            OSError: the disk failed.
        """
        state = self._journal_state
        found: dict[int, JournalRecord] = {}
        wanted = list(positions)
        while wanted:
            batches = self._locate(wanted)
            read, vanished = await state.env.threads.run(_read, state.env.disk, state.layout, batches, pool=POOL)
            found |= read
            wanted = []
            for batch in batches:
                if batch.segment not in vanished:
                    continue
                if batch.segment in state.usage.segments:
                    raise _gone(state.layout.segment(batch.segment))
                wanted += batch.positions
        return found

    def read_now(self, positions: Sequence[int]) -> dict[int, JournalRecord]:
        """Read as ``read`` does, but block; only before anything is compacted.  Raises: DamagedError, OSError."""
        state = self._journal_state
        found, vanished = _read(state.env.disk, state.layout, self._locate(positions))
        for number in vanished:
            raise _gone(state.layout.segment(number))
        return found

    def _locate(self, positions: Sequence[int]) -> list[_Batch]:
        """Return the batches that have the live records at these positions."""
        usage = self._journal_state.usage
        batches: dict[tuple[int, int], dict[int, None]] = {}
        for position in positions:
            location = usage.find_record(position)
            if location is not None and location[0].sizes[location[1]]:
                batches.setdefault((location[0].number, location[0].batch_offset_of(position)), {})[position] = None
        return [_Batch(segment, offset, batches[segment, offset]) for segment, offset in sorted(batches)]


def _gone(path: str) -> DamagedError:
    return DamagedError(path, 0, "a segment that the manifest lists", "no such file")


def _read(disk: Disk, layout: Layout, batches: Sequence[_Batch]) -> tuple[dict[int, JournalRecord], dict[int, None]]:
    """Return the wanted records of these batches, and the segments whose files are gone."""
    found: dict[int, JournalRecord] = {}
    vanished: dict[int, None] = {}
    by_segment: dict[int, list[_Batch]] = {}
    for batch in batches:
        by_segment.setdefault(batch.segment, []).append(batch)
    for number, wanted in by_segment.items():
        path = layout.segment(number)
        try:
            file = disk.open(path)
        except FileNotFoundError:
            vanished[number] = None
            continue
        with contextlib.closing(file):
            for record in _records(file, path, layout, wanted):
                found[record.position] = record
    return found, vanished


def _records(file: File, path: str, layout: Layout, batches: Sequence[_Batch]) -> Iterator[JournalRecord]:
    keys = SegmentKeys(decode_header(file.read_at(0, SEGMENT_HEADER_BYTES), path), layout.keyring, path)
    for batch in batches:
        data, header = read_batch(file, path, keys, batch.offset)
        missing = dict(batch.positions)
        for position, row, start, end in records_of(data, header):
            if position in missing:
                del missing[position]
                yield make_record(data, position, row, (start, end), True)
        if missing:
            raise DamagedError(path, batch.offset, f"record {next(iter(missing))}", "a batch without it")
