"""Copying what is still needed out of segments that are mostly dead.

The victims are read and proven, what must stay is written to new sealed segments with the positions it has, and
one manifest puts those in the victims' place.  Until then the copies are files that nobody knows of.  Records die
while this goes on; the ledger is told to watch, so that it knows afterwards which copies are dead and who killed
them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import attrs
import trio

from meshq.abc import Buffer
from meshq.limits import MIB, SEGMENT_HEADER_BYTES
from meshq.store._batch_format import (
    DEMOTED,
    ROOT,
    ROW_BYTES,
    SIZE_MASK,
    TABLE,
    TARGETS,
    Sheaf,
    batch_bytes,
    records_of,
    unpack_targets,
)
from meshq.store._compaction_plan import Candidate, husks, tightest, victims
from meshq.store._journal_state import Books
from meshq.store._ping_pong_file import NoRoomError
from meshq.store._sealed_segment import Written, write_sealed
from meshq.store._segment_format import SALT_BYTES, SegmentHeader
from meshq.store._segment_index import read_segment
from meshq.store._segment_usage_machine import SegmentBook

#: Bytes of one batch of a copy.
COPY_BATCH_BYTES: Final = MIB
#: Records that are looked at before the loop turns.
LOOK_RECORDS: Final = 1_000
#: Segments' worth of copies in memory at a time.
BUDGET_SEGMENTS: Final = 2


@attrs.frozen
class Copy:
    """A record to be kept: its position, its row, its bytes."""

    position: int
    row: int
    content: Buffer


class Compactor:
    """Compacts the segments of one journal, when that is worth it."""

    __slots__ = ("_books", "_segment_bytes", "count", "freed_bytes")

    def __init__(self, books: Books, segment_bytes: int) -> None:
        self._books = books
        self._segment_bytes = segment_bytes
        self.count = 0
        self.freed_bytes = 0

    def choose(self, active: int, covered: float, *, idle: bool) -> list[int]:
        """The segments to compact now; usually none.  ``idle``: the disk has nothing else to do."""
        eager = self._books.env.chaos("journal.compact_early")
        candidates = self._candidates(active, covered)
        chosen = victims(candidates, budget_bytes=self._segment_bytes * BUDGET_SEGMENTS, eager=eager)
        return chosen or (husks(candidates, segment_bytes=self._segment_bytes) if idle else [])

    def squeeze(self, active: int, covered: float, budget_bytes: int) -> list[int]:
        """The segments from which copies of so many bytes give back most, on a full disk."""
        return tightest(self._candidates(active, covered), budget_bytes=budget_bytes)

    def _candidates(self, active: int, covered: float) -> list[Candidate]:
        entries = self._books.manifest.numbers()
        return [
            Candidate(number, entries[number].length, book.needed_bytes())
            for number, book in self._books.ledger.books.items()
            if number != active and book.last <= covered
        ]

    async def compact(self, numbers: Sequence[int], durable: int) -> None:
        """Replace these segments by copies of what is needed of them; on a full disk, give up.

        Raises:
            DamagedError: a victim is not what was written; nothing was changed.
            OSError: the disk failed.
        """
        ledger = self._books.ledger
        ledger.watch(numbers)
        copies = await self._select(frozenset(numbers))
        sheaves = list(_segments(list(_sheaves(copies)), self._segment_bytes))
        written: list[Written] = []
        try:
            for part in sheaves:
                written.append(await self._write(part, durable))
        except NoRoomError:
            ledger.unwatch()
            await self._books.unlink([one.entry.number for one in written])
            return
        async with self._books.turn:
            entries = [one.entry for one in written]
            await self._books.switch(without=numbers, entries=entries, last=durable)
            before = sum(book.bytes for book in (ledger.books[number] for number in numbers))
            outputs = [_book(one, part) for one, part in zip(written, sheaves, strict=True)]
            ledger.exchange(numbers, outputs)
            for output, part in zip(outputs, sheaves, strict=True):
                for size, kills, refs in _targets(part):
                    ledger.add_targets(output, size, kills, refs)
        self.count += 1
        self.freed_bytes += before - sum(output.bytes for output in outputs)
        await self._books.unlink(numbers)

    async def _select(self, numbers: frozenset[int]) -> list[Copy]:
        books = self._books
        identity = (books.manifest.node_id, books.manifest.journal_id)
        entries = books.manifest.numbers()
        copies: list[Copy] = []
        for number in sorted(numbers):
            found = await books.background(read_segment, books.env.disk, books.layout, entries[number], identity)
            data = found.data
            looked = 0
            for batch in found.batches:
                looked += batch.records
                if looked > LOOK_RECORDS:
                    looked = 0
                    await trio.lowlevel.checkpoint()
                for position, row, start, end in records_of(data, batch):
                    kills: tuple[int, ...] = ()
                    refs: tuple[int, ...] = ()
                    if row & TARGETS:
                        kills, refs, _ = unpack_targets(data, start)
                    needed, living = books.ledger.must_copy(numbers, position, kills, refs)
                    if needed:
                        if row & ROOT and not living:
                            row |= DEMOTED
                        copies.append(Copy(position, row, bytes(data[start:end])))
        copies.sort(key=lambda copy: copy.position)
        return copies

    async def _write(self, part: Sequence[Sheaf], durable: int) -> Written:
        books = self._books
        header = SegmentHeader(
            number=books.room.next_number,
            base=part[0].first,
            epoch=0,
            node_id=books.manifest.node_id,
            journal_id=books.manifest.journal_id,
            salt=books.env.entropy.token(SALT_BYTES),
            key_id=books.layout.keyring.current_id,
        )
        books.room.next_number += 1
        return await books.background(_write_copy, books, header, part, durable)


def _write_copy(books: Books, header: SegmentHeader, part: Sequence[Sheaf], durable: int) -> Written:
    return write_sealed(books.env.disk, books.layout, header, part, durable=durable, compacted=True)


def _sheaf(copies: Sequence[Copy]) -> Sheaf:
    positions = [copy.position for copy in copies]
    rows = [copy.row for copy in copies]
    return Sheaf(positions[0], rows, [copy.content for copy in copies], TABLE, positions)


def _sheaves(copies: Sequence[Copy]) -> Iterator[Sheaf]:
    pending: list[Copy] = []
    size = 0
    for copy in copies:
        if pending and size + len(copy.content) > COPY_BATCH_BYTES:
            yield _sheaf(pending)
            pending, size = [], 0
        pending.append(copy)
        size += len(copy.content) + 2 * ROW_BYTES
    if pending:
        yield _sheaf(pending)


def _sheaf_bytes(sheaf: Sheaf) -> int:
    return batch_bytes(sum(row & SIZE_MASK for row in sheaf.rows) + 2 * ROW_BYTES * len(sheaf.rows))


def _segments(sheaves: Sequence[Sheaf], segment_bytes: int) -> Iterator[list[Sheaf]]:
    part: list[Sheaf] = []
    size = SEGMENT_HEADER_BYTES
    for sheaf in sheaves:
        length = _sheaf_bytes(sheaf)
        if part and size + length > segment_bytes:
            yield part
            part, size = [], SEGMENT_HEADER_BYTES
        part.append(sheaf)
        size += length
    if part:
        yield part


def _book(written: Written, part: Sequence[Sheaf]) -> SegmentBook:
    book = SegmentBook.compacted(written.entry.number, written.entry.base)
    for offset, sheaf in zip(written.offsets, part, strict=True):
        book.add_batch(sheaf.first, offset, sheaf.rows, sheaf.positions)
    return book


def _targets(part: Sequence[Sheaf]) -> Iterator[tuple[int, tuple[int, ...], tuple[int, ...]]]:
    for sheaf in part:
        for row, content in zip(sheaf.rows, sheaf.parts, strict=True):
            if row & TARGETS:
                kills, refs, _ = unpack_targets(content)
                yield row & SIZE_MASK, kills, refs
