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
from meshq.store._batch_format import DATA_RECORD, DEMOTED, ROW_BYTES, SIZE_MASK


@attrs.define(eq=False)
class SegmentRecords:
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
    tombstone_bytes: int = 0
    #: How many targets its notes have, those in its own segment included.
    targets: int = 0
    #: Segment -> pairs (note here, target there) for which this segment must stay.
    needs: dict[int, int] = attrs.field(factory=dict)
    #: For each batch with records: the position of its first and its offset.
    batch_firsts: array[int] = attrs.field(factory=lambda: array("Q"), repr=False)
    batch_offsets: array[int] = attrs.field(factory=lambda: array("Q"), repr=False)

    @classmethod
    def compacted(cls, number: int, first: int) -> SegmentRecords:
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

    def batch_offset_of(self, position: int) -> int:
        """The offset of the batch that has this position."""
        return self.batch_offsets[bisect_right(self.batch_firsts, position) - 1]

    def add_batch(self, first: int, offset: int, rows: Sequence[int], positions: Sequence[int] | None) -> None:
        """Append the records of a batch, all of them as they were when written."""
        if not rows:
            return
        sizes = array(
            "I", [(row & SIZE_MASK) + ROW_BYTES if row & (DATA_RECORD | DEMOTED) == DATA_RECORD else 0 for row in rows]
        )
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
        notes = self.tombstone_bytes * sum(self.needs.values()) // self.targets if self.targets else 0
        return self.live_bytes + notes


class SegmentUsage:
    """The books of all segments that are kept."""

    __slots__ = ("_compaction", "_dense", "_firsts", "_referrers", "segments")

    def __init__(self) -> None:
        #: By number.
        self.segments: dict[int, SegmentRecords] = {}
        #: Those without a table, in the order of their positions, and the first position of each.
        self._dense: list[SegmentRecords] = []
        self._firsts: list[int] = []
        #: Living root -> segments of the notes that only refer to it, one entry per note.
        self._referrers: dict[int, list[int]] = {}
        #: While a compaction runs: what notes killed in its victims, as (segment of the note, target).
        self._compaction: tuple[frozenset[int], list[tuple[int, int]]] | None = None

    def add_segment(self, number: int, first: int, *, compacted: bool = False) -> SegmentRecords:
        """A new segment, empty so far."""
        segment = SegmentRecords.compacted(number, first) if compacted else SegmentRecords(number, first, first - 1)
        self.segments[number] = segment
        if not compacted:
            at = bisect_right(self._firsts, first)
            self._dense.insert(at, segment)
            self._firsts.insert(at, first)
        return segment

    def find_record(self, position: int) -> tuple[SegmentRecords, int] | None:
        """The segment that has this record, and its index there."""
        at = bisect_right(self._firsts, position) - 1
        if at >= 0 and position <= self._dense[at].last:
            return self._dense[at], position - self._firsts[at]
        for segment in self.segments.values():
            if segment.positions is not None:
                index = segment.index_of(position)
                if index is not None:
                    return segment, index
        return None

    def is_live(self, position: int) -> bool:
        """Whether this is a living root."""
        found = self.find_record(position)
        return found is not None and found[0].sizes[found[1]] != 0

    def add_targets(self, holder: SegmentRecords, size: int, deletes: Sequence[int], refs: Sequence[int]) -> None:
        """Take in what a durable record in ``holder`` makes dead and speaks about."""
        holder.tombstone_bytes += size
        holder.targets += len(deletes) + len(refs)
        for target in deletes:
            self._delete(target)
            found = self.find_record(target)
            if found is not None:
                if self._compaction is not None and found[0].number in self._compaction[0]:
                    self._compaction[1].append((holder.number, target))
                self._need(holder, found[0])
        for target in refs:
            found = self.find_record(target)
            if found is not None and found[0].sizes[found[1]] and found[0] is not holder:
                self._referrers.setdefault(target, []).append(holder.number)
                self._need(holder, found[0])

    @staticmethod
    def _need(holder: SegmentRecords, segment: SegmentRecords) -> None:
        if segment is not holder:
            holder.needs[segment.number] = holder.needs.get(segment.number, 0) + 1

    def _delete(self, position: int) -> None:
        found = self.find_record(position)
        if found is None:
            return
        segment, index = found
        size = segment.sizes[index]
        if not size:
            return
        segment.sizes[index] = 0
        segment.live_records -= 1
        segment.live_bytes -= size
        for number in self._referrers.pop(position, ()):
            self._release(self.segments[number], segment.number)

    @staticmethod
    def _release(holder: SegmentRecords, number: int) -> None:
        left = holder.needs[number] - 1
        if left:
            holder.needs[number] = left
        else:
            del holder.needs[number]

    # -- removing ----------------------------------------------------------------------------------------------

    def remove(self, numbers: Iterable[int]) -> None:
        """Forget segments that are no longer kept."""
        for number in numbers:
            segment = self.segments.pop(number)
            if segment.positions is None:
                at = self._dense.index(segment)
                del self._dense[at], self._firsts[at]
            for other in self.segments.values():
                other.needs.pop(number, None)

    def live_positions(self) -> list[int]:
        """The positions of all living roots, in order."""
        found: list[int] = []
        for segment in self.segments.values():
            if segment.live_records:
                positions = range(segment.first, segment.last + 1) if segment.positions is None else segment.positions
                found += [at for at, size in zip(positions, segment.sizes, strict=True) if size]
        found.sort()
        return found

    # -- compaction --------------------------------------------------------------------------------------------

    def begin_compaction(self, victims: Iterable[int]) -> None:
        """A compaction of these segments begins."""
        self._compaction = (frozenset(victims), [])

    def abandon_compaction(self) -> None:
        """The compaction was given up."""
        self._compaction = None

    def must_copy(
        self, victims: frozenset[int], position: int, deletes: Sequence[int], refs: Sequence[int]
    ) -> tuple[bool, bool]:
        """Whether a record of a victim must be kept, and whether it is a living root.

        Dead roots of victims are not copied, so a note that is there for their sake only need not be either.
        """
        if self.is_live(position):
            return True, True
        for target in deletes:
            found = self.find_record(target)
            if found is not None and found[0].number not in victims:
                return True, False
        return any(self.is_live(target) for target in refs), False

    def finish_compaction(self, victims: Sequence[int], outputs: Sequence[SegmentRecords]) -> None:
        """Replace the victims by the segments that their records were copied to.

        What died while they were copied is dead in the copy, too.  Afterwards ``add_targets`` is to be called
        for each copied record that has targets.
        """
        invariant(self._compaction is not None and self._compaction[0] == frozenset(victims), "watched from the start")
        watched = self._compaction[1] if self._compaction is not None else []
        self._compaction = None
        for output in outputs:
            self._delete_in_copy(output)
        gone = frozenset(victims)
        for position, holders in list(self._referrers.items()):
            kept = [number for number in holders if number not in gone]
            if kept:
                self._referrers[position] = kept
            else:
                del self._referrers[position]
        self.remove(victims)
        for output in outputs:
            self.segments[output.number] = output
        for position, holders in self._referrers.items():
            self._need_again(position, holders, outputs)
        for holder, target in watched:
            self._need_again(target, [holder], outputs)

    def _delete_in_copy(self, output: SegmentRecords) -> None:
        for index, position in enumerate(output.positions or ()):
            if output.sizes[index] and not self.is_live(position):
                output.live_records -= 1
                output.live_bytes -= output.sizes[index]
                output.sizes[index] = 0

    def _need_again(self, target: int, holders: Iterable[int], outputs: Sequence[SegmentRecords]) -> None:
        for output in outputs:
            if output.index_of(target) is not None:
                for number in holders:
                    if number in self.segments:
                        needs = self.segments[number].needs
                        needs[output.number] = needs.get(output.number, 0) + 1
