"""What is alive in each segment, and why each segment must stay.

A *root* is alive until a record kills it.  A record with targets that is no living root is a *note*; it is there
for its targets' sake.  A note that kills must stay as long as a target is in any segment that is kept: without it
the target would rise from the dead at the next start.  A note that only refers must stay as long as a target is
alive.

So a segment must stay while it has living roots, or while it holds a note with a target, as above, in *another*
segment that is kept.  (Notes on targets of the same segment go with it.)  ``needs`` counts those per segment:

    A.needs[B] = pairs (note in A, target in B) for which the note must stay

Memory: four bytes for each record in a kept segment, and an entry for each living root that has been referred to.
Nothing per note.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence

import attrs

from meshq.errors import invariant
from meshq.store._batch_format import DEMOTED, ROOT, ROW_BYTES, SIZE_MASK


@attrs.define(eq=False)
class SegmentBook:
    """What the ledger knows of one segment."""

    number: int
    #: The position of its first record, and of its last (first - 1: none).
    first: int
    last: int
    #: None if its records are all of first..last; else their positions, rising.
    positions: array[int] | None = None
    #: For each record its size in bytes if it is a living root, else 0.
    sizes: array[int] = attrs.field(factory=lambda: array("I"), repr=False)
    live_records: int = 0
    live_bytes: int = 0
    #: Bytes of all records, alive or not, and of those with targets.
    bytes: int = 0
    note_bytes: int = 0
    #: How many targets its notes have, those in its own segment included.
    targets: int = 0
    #: Segment -> pairs (note here, target there) for which this segment must stay.
    needs: dict[int, int] = attrs.field(factory=dict)
    #: For each batch with records: the position of its first and its offset.
    batch_firsts: array[int] = attrs.field(factory=lambda: array("Q"), repr=False)
    batch_offsets: array[int] = attrs.field(factory=lambda: array("Q"), repr=False)

    @classmethod
    def compacted(cls, number: int, first: int) -> SegmentBook:
        """The book of a segment whose batches have tables."""
        return cls(number, first, first - 1, array("Q"))

    def index_of(self, position: int) -> int | None:
        """Which of its records has this position."""
        if not self.first <= position <= self.last:
            return None
        if self.positions is None:
            return position - self.first
        index = bisect_left(self.positions, position)
        return index if self.positions[index] == position else None

    def batch_of(self, position: int) -> int:
        """The offset of the batch that has this position."""
        return self.batch_offsets[bisect_right(self.batch_firsts, position) - 1]

    def add_batch(self, first: int, offset: int, rows: Sequence[int], positions: Sequence[int] | None) -> None:
        """Append the records of a batch, all of them as they were when written."""
        if not rows:
            return
        sizes = array("I", [(row & SIZE_MASK) + ROW_BYTES if row & (ROOT | DEMOTED) == ROOT else 0 for row in rows])
        self.sizes.extend(sizes)
        self.live_records += len(rows) - sizes.count(0)
        self.live_bytes += sum(sizes)
        self.bytes += sum([row & SIZE_MASK for row in rows]) + ROW_BYTES * len(rows)
        self.batch_firsts.append(first)
        self.batch_offsets.append(offset)
        if self.positions is None:
            self.last = first + len(rows) - 1
        else:
            invariant(positions is not None, "a compacted segment has tables")
            self.positions.extend(positions or ())
            self.last = self.positions[-1]

    def needed_bytes(self) -> int:
        """About how much of it a compaction would keep."""
        notes = self.note_bytes * sum(self.needs.values()) // self.targets if self.targets else 0
        return self.live_bytes + notes


class Ledger:
    """The books of all segments that are kept."""

    __slots__ = ("_dense", "_firsts", "_holders", "_watched", "books")

    def __init__(self) -> None:
        #: By number.
        self.books: dict[int, SegmentBook] = {}
        #: Those without a table, in the order of their positions, and the first position of each.
        self._dense: list[SegmentBook] = []
        self._firsts: list[int] = []
        #: Living root -> segments of the notes that only refer to it, one entry per note.
        self._holders: dict[int, list[int]] = {}
        #: While a compaction runs: what notes killed in its victims, as (segment of the note, target).
        self._watched: tuple[frozenset[int], list[tuple[int, int]]] | None = None

    def begin(self, number: int, first: int, *, compacted: bool = False) -> SegmentBook:
        """A new segment, empty so far."""
        book = SegmentBook.compacted(number, first) if compacted else SegmentBook(number, first, first - 1)
        self.books[number] = book
        if not compacted:
            at = bisect_right(self._firsts, first)
            self._dense.insert(at, book)
            self._firsts.insert(at, first)
        return book

    def locate(self, position: int) -> tuple[SegmentBook, int] | None:
        """The segment that has this record, and its index there."""
        at = bisect_right(self._firsts, position) - 1
        if at >= 0 and position <= self._dense[at].last:
            return self._dense[at], position - self._firsts[at]
        for book in self.books.values():
            if book.positions is not None:
                index = book.index_of(position)
                if index is not None:
                    return book, index
        return None

    def alive(self, position: int) -> bool:
        """Whether this is a living root."""
        found = self.locate(position)
        return found is not None and found[0].sizes[found[1]] != 0

    def add_targets(self, holder: SegmentBook, size: int, kills: Sequence[int], refs: Sequence[int]) -> None:
        """Take in what a durable record in ``holder`` makes dead and speaks about."""
        holder.note_bytes += size
        holder.targets += len(kills) + len(refs)
        for target in kills:
            self._kill(target)
            found = self.locate(target)
            if found is not None:
                if self._watched is not None and found[0].number in self._watched[0]:
                    self._watched[1].append((holder.number, target))
                self._need(holder, found[0])
        for target in refs:
            found = self.locate(target)
            if found is not None and found[0].sizes[found[1]] and found[0] is not holder:
                self._holders.setdefault(target, []).append(holder.number)
                self._need(holder, found[0])

    @staticmethod
    def _need(holder: SegmentBook, book: SegmentBook) -> None:
        if book is not holder:
            holder.needs[book.number] = holder.needs.get(book.number, 0) + 1

    def _kill(self, position: int) -> None:
        found = self.locate(position)
        if found is None:
            return
        book, index = found
        size = book.sizes[index]
        if not size:
            return
        book.sizes[index] = 0
        book.live_records -= 1
        book.live_bytes -= size
        for number in self._holders.pop(position, ()):
            self._release(self.books[number], book.number)

    @staticmethod
    def _release(holder: SegmentBook, number: int) -> None:
        left = holder.needs[number] - 1
        if left:
            holder.needs[number] = left
        else:
            del holder.needs[number]

    # -- removing ----------------------------------------------------------------------------------------------

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget segments that are no longer kept."""
        for number in numbers:
            book = self.books.pop(number)
            if book.positions is None:
                at = self._dense.index(book)
                del self._dense[at], self._firsts[at]
            for other in self.books.values():
                other.needs.pop(number, None)

    def living(self) -> list[int]:
        """The positions of all living roots, in order."""
        found: list[int] = []
        for book in self.books.values():
            if book.live_records:
                positions = range(book.first, book.last + 1) if book.positions is None else book.positions
                found += [at for at, size in zip(positions, book.sizes, strict=True) if size]
        found.sort()
        return found

    # -- compaction --------------------------------------------------------------------------------------------

    def watch(self, victims: Iterable[int]) -> None:
        """A compaction of these segments begins."""
        self._watched = (frozenset(victims), [])

    def unwatch(self) -> None:
        """The compaction was given up."""
        self._watched = None

    def must_copy(
        self, victims: frozenset[int], position: int, kills: Sequence[int], refs: Sequence[int]
    ) -> tuple[bool, bool]:
        """Whether a record of a victim must be kept, and whether it is a living root.

        Dead roots of victims are not copied, so a note that is there for their sake only need not be either.
        """
        if self.alive(position):
            return True, True
        for target in kills:
            found = self.locate(target)
            if found is not None and found[0].number not in victims:
                return True, False
        return any(self.alive(target) for target in refs), False

    def exchange(self, victims: Sequence[int], outputs: Sequence[SegmentBook]) -> None:
        """Replace the victims by the segments that their records were copied to.

        What died while they were copied is dead in the copy, too.  Afterwards ``add_targets`` is to be called
        for each copied record that has targets.
        """
        invariant(self._watched is not None and self._watched[0] == frozenset(victims), "watched from the start")
        watched = self._watched[1] if self._watched is not None else []
        self._watched = None
        for output in outputs:
            self._bury(output)
        gone = frozenset(victims)
        for position, holders in list(self._holders.items()):
            kept = [number for number in holders if number not in gone]
            if kept:
                self._holders[position] = kept
            else:
                del self._holders[position]
        self.remove(victims)
        for output in outputs:
            self.books[output.number] = output
        for position, holders in self._holders.items():
            self._need_again(position, holders, outputs)
        for holder, target in watched:
            self._need_again(target, [holder], outputs)

    def _bury(self, output: SegmentBook) -> None:
        for index, position in enumerate(output.positions or ()):
            if output.sizes[index] and not self.alive(position):
                output.live_records -= 1
                output.live_bytes -= output.sizes[index]
                output.sizes[index] = 0

    def _need_again(self, target: int, holders: Iterable[int], outputs: Sequence[SegmentBook]) -> None:
        for output in outputs:
            if output.index_of(target) is not None:
                for number in holders:
                    if number in self.books:
                        needs = self.books[number].needs
                        needs[output.number] = needs.get(output.number, 0) + 1
