"""Compaction: copying the needed records out of segments that are mostly deleted.

The victims are read and proven, the needed records are written to new sealed segments with the positions that they
have, and one manifest puts those segments in the victims' place.  Until then no manifest lists the copies.  Records
are deleted while this goes on; ``SegmentUsage`` notes these deletes, and applies them to the copies afterwards.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import trio

from meshq.abc import Buffer
from meshq.limits import MIB, SEGMENT_HEADER_BYTES
from meshq.store.commit._journal_state import JournalState
from meshq.store.directory._ping_pong_file import DiskFullError
from meshq.store.formats._batch_format import (
    DATA_RECORD,
    DEMOTED,
    ROW_BYTES,
    SIZE_MASK,
    TABLE,
    TARGETS,
    BatchData,
    batch_bytes,
    records_of,
    unpack_targets,
)
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._segment_format import SALT_BYTES, SegmentHeader
from meshq.store.maintenance._compaction_plan import CompactionCandidate, densest_copies, nearly_empty, victims
from meshq.store.segments._sealed_segment import WrittenSegment, write_sealed
from meshq.store.segments._segment_index import read_segment
from meshq.store.segments._segment_usage_machine import SegmentRecords

#: Bytes of one batch of a copy.
COPY_BATCH_BYTES: Final = MIB
#: Records that are looked at before the loop turns.
LOOK_RECORDS: Final = 1_000
#: Segments' worth of copies in memory at a time.
BUDGET_SEGMENTS: Final = 2


@attrs.frozen
class CopiedRecord:
    """A record to be kept: position, row, bytes."""

    position: int
    row: int
    content: Buffer


class Compactor:
    """Compacts the segments of one journal, when that is worth it."""

    __slots__ = ("_journal_state", "_segment_bytes", "count", "freed_bytes")

    def __init__(self, state: JournalState, segment_bytes: int) -> None:
        self._journal_state = state
        self._segment_bytes = segment_bytes
        self.count = 0
        self.freed_bytes = 0

    def choose(self, active: int, covered: float, *, idle: bool) -> list[int]:
        """Choose the segments to compact now; usually none.  ``idle``: the disk has nothing else to do."""
        eager = self._journal_state.env.failpoint("journal.compact_early")
        candidates = self._candidates(active, covered)
        chosen = victims(candidates, budget_bytes=self._segment_bytes * BUDGET_SEGMENTS, eager=eager)
        return chosen or (nearly_empty(candidates, segment_bytes=self._segment_bytes) if idle else [])

    def choose_on_full_disk(self, active: int, covered: float, budget_bytes: int) -> list[int]:
        """Choose the segments whose copies, of at most ``budget_bytes``, free most on a full disk."""
        return densest_copies(self._candidates(active, covered), budget_bytes=budget_bytes)

    def _candidates(self, active: int, covered: float) -> list[CompactionCandidate]:
        entries = self._journal_state.manifest.by_number()
        return [
            CompactionCandidate(number, entries[number].length, segment.needed_bytes())
            for number, segment in self._journal_state.usage.segments.items()
            if number != active and segment.last <= covered
        ]

    async def compact(self, numbers: Sequence[int], durable: int) -> bool:
        """Replace these segments by copies of their needed records; return False if the disk has no space for that.

        A compaction never waits for space: its own copies may be what takes the space that others wait for.

        Raises:
            DamagedError: a victim is not what was written; nothing was changed.
            OSError: the disk failed.
        """
        usage = self._journal_state.usage
        usage.begin_compaction(numbers)
        copies = await self._select(frozenset(numbers))
        batches = list(_segments(list(_batches(copies)), self._segment_bytes))
        written: list[WrittenSegment] = []
        try:
            for part in batches:
                written.append(await self._write(part, durable))
            await self._list_copies(numbers, [one.entry for one in written], durable)
        except DiskFullError:
            usage.abandon_compaction()
            await self._journal_state.remove_segments([one.entry.number for one in written])
            self._journal_state.allocator.release_space()
            return False
        before = sum(segment.bytes for segment in (usage.segments[number] for number in numbers))
        outputs = [_segment_records(one, part) for one, part in zip(written, batches, strict=True)]
        usage.finish_compaction(numbers, outputs)
        for output, part in zip(outputs, batches, strict=True):
            for size, deletes, refs in _targets(part):
                usage.add_targets(output, size, deletes, refs)
        self.count += 1
        self.freed_bytes += before - sum(output.bytes for output in outputs)
        await self._journal_state.remove_segments(numbers)
        return True

    async def _list_copies(self, victims: Sequence[int], copies: Sequence[SegmentEntry], durable: int) -> None:
        """Put the copies in the victims' place in the manifest, in the ballast's room if need be.

        Raises: DiskFullError, OSError.
        """
        state = self._journal_state
        try:
            await state.try_manifest(without=victims, entries=copies, last=durable)
        except DiskFullError:
            if not await state.allocator.remove_ballast_for_space():
                raise
            await state.try_manifest(without=victims, entries=copies, last=durable)

    async def _select(self, numbers: frozenset[int]) -> list[CopiedRecord]:
        state = self._journal_state
        identity = (state.manifest.node_id, state.manifest.journal_id)
        entries = state.manifest.by_number()
        copies: list[CopiedRecord] = []
        for number in sorted(numbers):
            found = await state.run_in_background(read_segment, state.env.disk, state.layout, entries[number], identity)
            data = found.data
            looked = 0
            for batch in found.batches:
                looked += batch.records
                if looked > LOOK_RECORDS:
                    looked = 0
                    await trio.lowlevel.checkpoint()
                for position, row, start, end in records_of(data, batch):
                    deletes: tuple[int, ...] = ()
                    refs: tuple[int, ...] = ()
                    if row & TARGETS:
                        deletes, refs, _ = unpack_targets(data, start)
                    needed, live = state.usage.must_copy(numbers, position, deletes, refs)
                    if needed:
                        if row & DATA_RECORD and not live:
                            row |= DEMOTED
                        copies.append(CopiedRecord(position, row, bytes(data[start:end])))
        copies.sort(key=lambda copy: copy.position)
        return copies

    async def _write(self, part: Sequence[BatchData], durable: int) -> WrittenSegment:
        state = self._journal_state
        header = SegmentHeader(
            number=state.allocator.next_number,
            base=part[0].first,
            epoch=0,
            node_id=state.manifest.node_id,
            journal_id=state.manifest.journal_id,
            salt=state.env.entropy.token(SALT_BYTES),
            key_id=state.layout.keyring.current_id,
        )
        state.allocator.next_number += 1
        return await state.run_in_background(_write_copy, state, header, part, durable)


def _write_copy(state: JournalState, header: SegmentHeader, part: Sequence[BatchData], durable: int) -> WrittenSegment:
    return write_sealed(state.env.disk, state.layout, header, part, durable=durable, compacted=True)


def _batch_data(copies: Sequence[CopiedRecord]) -> BatchData:
    positions = [copy.position for copy in copies]
    rows = [copy.row for copy in copies]
    return BatchData(positions[0], rows, [copy.content for copy in copies], TABLE, positions)


def _batches(copies: Sequence[CopiedRecord]) -> Iterator[BatchData]:
    pending: list[CopiedRecord] = []
    size = 0
    for copy in copies:
        if pending and size + len(copy.content) > COPY_BATCH_BYTES:
            yield _batch_data(pending)
            pending, size = [], 0
        pending.append(copy)
        size += len(copy.content) + 2 * ROW_BYTES
    if pending:
        yield _batch_data(pending)


def _batch_data_bytes(batch_data: BatchData) -> int:
    return batch_bytes(sum(row & SIZE_MASK for row in batch_data.rows) + 2 * ROW_BYTES * len(batch_data.rows))


def _segments(batches: Sequence[BatchData], segment_bytes: int) -> Iterator[list[BatchData]]:
    part: list[BatchData] = []
    size = SEGMENT_HEADER_BYTES
    for batch_data in batches:
        length = _batch_data_bytes(batch_data)
        if part and size + length > segment_bytes:
            yield part
            part, size = [], SEGMENT_HEADER_BYTES
        part.append(batch_data)
        size += length
    if part:
        yield part


def _segment_records(written: WrittenSegment, part: Sequence[BatchData]) -> SegmentRecords:
    segment = SegmentRecords.compacted(written.entry.number, written.entry.base)
    for offset, batch_data in zip(written.offsets, part, strict=True):
        segment.add_batch(batch_data.first, offset, batch_data.rows, batch_data.positions)
    return segment


def _targets(part: Sequence[BatchData]) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    for batch_data in part:
        for row, content in zip(batch_data.rows, batch_data.parts, strict=True):
            if row & TARGETS:
                deletes, refs, _ = unpack_targets(content)
                yield row & SIZE_MASK, deletes, refs
