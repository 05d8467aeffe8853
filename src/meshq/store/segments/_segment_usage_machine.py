"""The live records of each segment, and the reasons for which each segment must stay.

A *data record* is live until another record deletes it.  A *tombstone* has targets and no life of its own: it is kept
for its targets' sake.  (A deleted data record with targets counts as a tombstone.)  A tombstone that deletes must stay
as long as a target is in any kept segment: without it the target would be live again at the next start.  A tombstone
that only refers must stay as long as a target is live.

So a segment must stay while it has live records, or while it holds a tombstone with a target, as above, in *another*
kept segment.  (Tombstones whose targets are in the same segment are removed with it.)  ``needs`` counts those:

    A.needs[B] = pairs (tombstone in A, target in B) for which the tombstone must stay

Memory: four bytes for each record in a kept segment, and an entry for each live record that is referred to.
Nothing per tombstone.
"""

from __future__ import annotations

import heapq
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence

import attrs

from meshq.errors import invariant
from meshq.store.formats._batch_format import DATA_RECORD, DEMOTED, ROW_BYTES, SIZE_MASK


@attrs.define(eq=False)
class SegmentRecords:
    """The records of one segment: positions, sizes, and which of them are live."""

    number: int
    #: The positions of the first and of the last record (first - 1: none).
    first: int
    last: int
    #: None if the records are all of first..last; else their positions, rising.
    positions: array[int] | None = None
    #: The size in bytes of each live record, 0 for any other record.
    sizes: array[int] = attrs.field(factory=lambda: array("I"), repr=False)
    live_records: int = 0
    live_bytes: int = 0
    #: Bytes of all records, live or not; of the records with targets.
    bytes: int = 0
    tombstone_bytes: int = 0
    #: The number of targets of these records, targets in this segment included.
    targets: int = 0
    #: Segment -> pairs (tombstone here, target there) for which this segment must stay.
    needs: dict[int, int] = attrs.field(factory=dict)
    #: First position and offset of each batch with records.
    batch_firsts: array[int] = attrs.field(factory=lambda: array("Q"), repr=False)
    batch_offsets: array[int] = attrs.field(factory=lambda: array("Q"), repr=False)

    @classmethod
    def compacted(cls, number: int, first: int) -> SegmentRecords:
        """Make the records of a segment whose batches have tables of positions."""
        return cls(number, first, first - 1, array("Q"))

    def index_of(self, position: int) -> int | None:
        """Return the index of the record with this position; None if there is none."""
        if not self.first <= position <= self.last:
            return None
        if self.positions is None:
            return position - self.first
        index = bisect_left(self.positions, position)
        return index if self.positions[index] == position else None

    def batch_offset_of(self, position: int) -> int:
        """Return the offset of the batch that has this position."""
        return self.batch_offsets[bisect_right(self.batch_firsts, position) - 1]

    def add_batch(self, first: int, offset: int, rows: Sequence[int], positions: Sequence[int] | None) -> None:
        """Append the records of a batch, all of them live as when they were written."""
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

    def live_beyond(self, position: int) -> Iterator[tuple[int, int]]:
        """Yield the live positions beyond a position, in order, with the bytes of each record."""
        positions = range(self.first, self.last + 1) if self.positions is None else self.positions
        for index in range(bisect_right(positions, position), len(self.sizes)):
            if self.sizes[index]:
                yield positions[index], self.sizes[index]

    def needed_bytes(self) -> int:
        """Estimate the bytes that a compaction would keep."""
        tombstones = self.tombstone_bytes * sum(self.needs.values()) // self.targets if self.targets else 0
        return self.live_bytes + tombstones


class SegmentUsage:
    """The usage of all kept segments."""

    __slots__ = ("_compaction", "_dense", "_firsts", "_referrers", "segments")

    def __init__(self) -> None:
        #: By number.
        self.segments: dict[int, SegmentRecords] = {}
        #: The segments without tables by position, and the first position of each.
        self._dense: list[SegmentRecords] = []
        self._firsts: list[int] = []
        #: Live record -> segments of the records that only refer to it, one entry for each of these.
        self._referrers: dict[int, list[int]] = {}
        #: The victims of a running compaction, and the deletes in them since: (segment of the tombstone, target).
        self._compaction: tuple[frozenset[int], list[tuple[int, int]]] | None = None

    def add_segment(self, number: int, first: int, *, compacted: bool = False) -> SegmentRecords:
        """Add a new empty segment."""
        segment = SegmentRecords.compacted(number, first) if compacted else SegmentRecords(number, first, first - 1)
        self.segments[number] = segment
        if not compacted:
            at = bisect_right(self._firsts, first)
            self._dense.insert(at, segment)
            self._firsts.insert(at, first)
        return segment

    def find_record(self, position: int) -> tuple[SegmentRecords, int] | None:
        """Return the segment that has this record, and the record's index there."""
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
        """Whether a position has a live record."""
        found = self.find_record(position)
        return found is not None and found[0].sizes[found[1]] != 0

    def add_targets(self, holder: SegmentRecords, size: int, deletes: Sequence[int], refs: Sequence[int]) -> None:
        """Apply the deletes and refs of a durable record in ``holder``."""
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
        """Return the positions of all live records, in order."""
        found: list[int] = []
        for segment in self.segments.values():
            if segment.live_records:
                positions = range(segment.first, segment.last + 1) if segment.positions is None else segment.positions
                found += [at for at, size in zip(positions, segment.sizes, strict=True) if size]
        found.sort()
        return found

    def live_beyond(self, position: int, upto: int, records: int, size_bytes: int) -> list[int]:
        """Return the next live positions beyond a position, in order, up to another one.

        So many ``records`` and bytes at most, but one record in any case.
        """
        found: list[int] = []
        for group in self._overlapping(position, upto):
            for at, size in heapq.merge(*(segment.live_beyond(position) for segment in group)):
                if at > upto or (found and (size > size_bytes or len(found) == records)):
                    return found
                found.append(at)
                size_bytes -= size
        return found

    def _overlapping(self, position: int, upto: int) -> Iterator[list[SegmentRecords]]:
        """Yield the segments with live records there, in groups whose ranges of positions do not overlap."""
        wanted = (one for one in self.segments.values() if one.live_records and one.last > position)
        group: list[SegmentRecords] = []
        last = 0
        for segment in sorted((one for one in wanted if one.first <= upto), key=_first_and_last):
            if group and segment.first > last:
                yield group
                group = []
            group.append(segment)
            last = max(last, segment.last)
        if group:
            yield group

    # -- compaction --------------------------------------------------------------------------------------------

    def begin_compaction(self, victims: Iterable[int]) -> None:
        """Begin a compaction of these segments."""
        self._compaction = (frozenset(victims), [])

    def abandon_compaction(self) -> None:
        """End a compaction that was given up."""
        self._compaction = None

    def must_copy(
        self, victims: frozenset[int], position: int, deletes: Sequence[int], refs: Sequence[int]
    ) -> tuple[bool, bool]:
        """Whether a record of a victim must be kept, and whether that record is live.

        Deleted records of victims are not copied, so a tombstone that has only such targets is not needed either.
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

        A record that was deleted meanwhile is deleted in the copy, too.  The caller then calls ``add_targets`` for each
        copied record that has targets.
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


def _first_and_last(segment: SegmentRecords) -> tuple[int, int]:
    return segment.first, segment.last
