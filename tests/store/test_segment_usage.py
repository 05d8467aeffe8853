"""The usage of segments, compared with a model that knows every record and works nothing out in advance."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshq.errors import InvariantError
from meshq.limits import SECTOR_BYTES, SEGMENT_HEADER_BYTES
from meshq.store.formats._batch_format import DATA_RECORD, DEMOTED, KIND_SHIFT, SIZE_MASK, TARGETS
from meshq.store.maintenance._compaction_plan import CompactionCandidate, nearly_empty, victims
from meshq.store.segments._reclaim_plan import removable
from meshq.store.segments._segment_usage_machine import SegmentRecords, SegmentUsage


@attrs.define
class Entry:
    """A record of the model."""

    position: int
    segment: int
    row: int
    deletes: tuple[int, ...]
    refs: tuple[int, ...]


class Model:
    """The segment usage and the model side by side."""

    def __init__(self) -> None:
        self.usage = SegmentUsage()
        self.entries: dict[int, Entry] = {}
        self.killed: dict[int, None] = {}
        #: Target -> records that spoke about it, gone or not.
        self.referring: dict[int, list[int]] = {}
        self.last = 0
        self.active = 0
        self.roll()

    def roll(self) -> None:
        self.active += 1
        self.usage.add_segment(self.active, self.last + 1)

    def place(self, data: bool, deletes: tuple[int, ...], refs: tuple[int, ...], size: int = 10) -> None:
        self.last += 1
        row = 1 << KIND_SHIFT | size | (DATA_RECORD if data else 0) | (TARGETS if deletes or refs else 0)
        segment = self.usage.segments[self.active]
        segment.add_batch(self.last, 4096 + 512 * self.last, [row], None)
        self.entries[self.last] = Entry(self.last, self.active, row, deletes, refs)
        if deletes or refs:
            self.usage.add_targets(segment, size, deletes, refs)
        self.killed.update(dict.fromkeys(deletes))
        for target in refs:
            self.referring.setdefault(target, []).append(self.last)

    # -- what the model says -----------------------------------------------------------------------------------

    def is_live(self, position: int) -> bool:
        entry = self.entries.get(position)
        return bool(entry and entry.row & DATA_RECORD and not entry.row & DEMOTED and position not in self.killed)

    def needed(self, entry: Entry, kept: list[int]) -> bool:
        """Whether this record must stay for the sake of another segment."""
        present = {e.position for e in self.entries.values() if e.segment in kept and e.segment != entry.segment}
        return any(t in present for t in entry.deletes) or any(t in present and self.is_live(t) for t in entry.refs)

    def removable(self) -> list[int]:
        kept = sorted(self.usage.segments)
        while True:
            gone = [
                number
                for number in kept
                if number != self.active
                and not any(e.segment == number and self.is_live(e.position) for e in self.entries.values())
                and not any(e.segment == number and self.needed(e, kept) for e in self.entries.values())
            ]
            if not gone:
                return sorted(set(self.usage.segments) - set(kept))
            kept = [number for number in kept if number not in gone]

    def check(self) -> None:
        alive_all = [p for p in sorted(self.entries) if self.is_live(p)]
        assert (
            self.usage.live_positions() == self.usage.live_beyond(0, self.last, len(alive_all) + 1, 10**9) == alive_all
        )
        half = self.last // 2
        assert (
            self.usage.live_beyond(half, self.last - 1, 2, 10**9) == [p for p in alive_all if half < p < self.last][:2]
        )
        for number, segment in self.usage.segments.items():
            mine = [e for e in self.entries.values() if e.segment == number]
            alive = [e for e in mine if self.is_live(e.position)]
            assert segment.live_records == len(alive)
            assert segment.live_bytes == sum((e.row & SIZE_MASK) + 8 for e in alive)
            assert segment.bytes == sum((e.row & SIZE_MASK) + 8 for e in mine)
            for e in mine:
                assert self.usage.find_record(e.position) == (segment, segment.index_of(e.position))
        killers = {target for e in self.entries.values() for target in e.deletes}
        for position, entry in self.entries.items():
            if entry.row & DATA_RECORD and not entry.row & DEMOTED and position in self.killed:
                assert position in killers, "what is dead and on the disk would rise at the next start"
            if self.is_live(position):
                kept = [note for note in self.referring.get(position, ()) if note in self.entries]
                assert kept == self.referring.get(position, []), "what was said of the living is kept"
        assert removable(self.usage.segments, active=self.active, covered=10**9) == self.removable()

    # -- what happens ------------------------------------------------------------------------------------------

    def reclaim(self) -> None:
        gone = self.removable()
        self.usage.remove(gone)
        self.entries = {p: e for p, e in self.entries.items() if e.segment not in gone}

    def compact(self, numbers: list[int], between: list[tuple[bool, tuple[int, ...], tuple[int, ...]]]) -> None:
        """Compact these segments; ``between`` is placed after the records were chosen."""
        self.usage.begin_compaction(numbers)
        copies: list[Entry] = []
        for position in sorted(self.entries):
            entry = self.entries[position]
            if entry.segment in numbers:
                needed, living = self.usage.must_copy(frozenset(numbers), position, entry.deletes, entry.refs)
                if needed:
                    row = entry.row | (DEMOTED if entry.row & DATA_RECORD and not living else 0)
                    copies.append(attrs.evolve(entry, row=row))
        for one in between:
            self.place(*one)
        outputs: list[SegmentRecords] = []
        self.entries = {p: e for p, e in self.entries.items() if e.segment not in numbers}
        halves = [copies[: len(copies) // 2], copies[len(copies) // 2 :]]
        for half in filter(None, halves):
            segment = SegmentRecords.compacted(self.output_number(), half[0].position)
            segment.add_batch(half[0].position, 4096, [e.row for e in half], [e.position for e in half])
            outputs.append(segment)
            for entry in half:
                self.entries[entry.position] = attrs.evolve(entry, segment=segment.number)
        self.usage.finish_compaction(numbers, outputs)
        for segment, half in zip(outputs, filter(None, halves), strict=True):
            for entry in half:
                if entry.deletes or entry.refs:
                    self.usage.add_targets(segment, entry.row & SIZE_MASK, entry.deletes, entry.refs)

    def output_number(self) -> int:
        self.next_output = getattr(self, "next_output", 1_000) + 1
        return self.next_output


record = st.tuples(st.booleans(), st.lists(st.integers(1, 25), max_size=3), st.lists(st.integers(1, 25), max_size=2))
step = st.one_of(
    st.tuples(st.just("place"), record),
    st.tuples(st.just("place"), record),
    st.tuples(st.just("roll"), st.none()),
    st.tuples(st.just("reclaim"), st.none()),
    st.tuples(st.just("compact"), st.tuples(st.sets(st.integers(0, 5), min_size=1), st.lists(record, max_size=3))),
)


def _shaped(model: Model, wanted: tuple[bool, list[int], list[int]]) -> tuple[bool, tuple[int, ...], tuple[int, ...]]:
    """A record that may be placed now: targets count back from the last position."""
    data, deletes, refs = wanted
    back = [tuple(sorted({model.last + 1 - t for t in targets if t <= model.last})) for targets in (deletes, refs)]
    return data or not (back[0] or back[1]), back[0], back[1]


@pytest.mark.slow
@settings(max_examples=400)
@given(st.lists(step, max_size=40))
def test_the_usage_agrees_with_a_model_that_looks_at_every_record(steps: list[tuple[str, object]]) -> None:
    model = Model()
    for name, argument in steps:
        if name == "place":
            model.place(*_shaped(model, argument))
        elif name == "roll":
            model.roll()
        elif name == "reclaim":
            model.reclaim()
        else:
            chosen, between = argument
            numbers = [number for number in sorted(model.usage.segments) if number != model.active]
            numbers = [number for at, number in enumerate(numbers) if at % 6 in chosen]
            if numbers:
                later = []
                for wanted in between:
                    later.append(_shaped(model, wanted))
                model.compact(numbers, later)
        model.check()


def test_records_behind_the_covered_position_stay_although_they_are_dead() -> None:
    model = Model()
    model.place(True, (), ())
    model.place(False, (1,), ())
    model.roll()
    assert removable(model.usage.segments, active=2, covered=1) == []
    assert removable(model.usage.segments, active=2, covered=2) == [1]


def test_a_delete_during_a_copy_must_stay_as_long_as_the_copy() -> None:
    model = Model()
    for _ in range(3):
        model.place(True, (), ())
    model.roll()
    model.compact([1], [(False, (2,), ())])
    model.roll()
    model.check()
    assert removable(model.usage.segments, active=3, covered=10) == []


def test_live_records_are_read_in_pieces_of_so_many_bytes_and_one_in_any_case() -> None:
    model = Model()
    for size in (10, 50, 10, 10):
        model.place(True, (), (), size)
        model.roll()
    model.place(True, (3,), ())
    assert model.usage.live_beyond(0, 5, 9, 40) == [1]
    assert model.usage.live_beyond(1, 5, 9, 40) == [2]
    assert model.usage.live_beyond(2, 5, 9, 40) == [4, 5]
    assert model.usage.live_beyond(2, 4, 9, 40) == [4] and model.usage.live_beyond(5, 5, 9, 40) == []


def test_the_offset_of_a_batch_is_found_by_any_of_its_positions() -> None:
    segment = SegmentRecords(1, 10, 9)
    segment.add_batch(10, 4096, [5, 5, 5], None)
    segment.add_batch(13, 5120, [5], None)
    assert [segment.batch_offset_of(position) for position in (10, 12, 13)] == [4096, 4096, 5120]
    assert segment.index_of(9) is None
    assert segment.index_of(14) is None


def test_a_compaction_that_was_not_begun_is_a_defect() -> None:
    model = Model()
    with pytest.raises(InvariantError):
        model.usage.finish_compaction([1], [])
    model.usage.begin_compaction([1])
    model.usage.abandon_compaction()
    with pytest.raises(InvariantError):
        model.usage.finish_compaction([1], [])


def _candidates(*needed_percent: int) -> list[CompactionCandidate]:
    return [CompactionCandidate(number, 1000, percent * 10) for number, percent in enumerate(needed_percent)]


def test_few_segments_or_much_life_are_left_alone() -> None:
    assert victims(_candidates(*[0] * 9), budget_bytes=10_000) == []
    assert victims(_candidates(*[30] * 20), budget_bytes=10_000) == []
    assert victims(_candidates(*[29] * 10), budget_bytes=10_000) == list(range(10))


def test_the_emptiest_segments_are_compacted_within_the_budget() -> None:
    assert victims(_candidates(90, 10, 10, 10, 49, 10, 10, 10, 10, 60, 10, 10), budget_bytes=10_000) == [
        *(1, 2, 3, 4, 5, 6, 7, 8, 10, 11)
    ]
    assert victims(_candidates(*[20] * 12), budget_bytes=500) == [0, 1]


def test_an_eager_compaction_takes_whatever_frees_anything() -> None:
    assert victims(_candidates(100, 99), budget_bytes=10_000, eager=True) == [1]
    assert victims([], budget_bytes=10_000, eager=True) == []


def test_segments_of_which_hardly_anything_is_needed_go_when_they_have_half_a_segment() -> None:
    def nearly_empty_segment(number: int, needed: int) -> CompactionCandidate:
        return CompactionCandidate(number, 10_000, needed)

    one = 10_000 - 499 - (SEGMENT_HEADER_BYTES + 2 * SECTOR_BYTES)
    assert nearly_empty([nearly_empty_segment(1, 499)], segment_bytes=2 * one) == [1]
    assert nearly_empty([nearly_empty_segment(1, 499)], segment_bytes=2 * one + 2) == []
    assert nearly_empty(
        [nearly_empty_segment(1, 499), nearly_empty_segment(2, 500), nearly_empty_segment(3, 0)],
        segment_bytes=2 * one + 2,
    ) == [1, 3]
    assert nearly_empty([nearly_empty_segment(1, 500)], segment_bytes=600) == []
    # No more than a segment is copied at a time.
    assert nearly_empty(
        [nearly_empty_segment(1, 400), nearly_empty_segment(2, 300), nearly_empty_segment(3, 100)], segment_bytes=500
    ) == [1, 3]
    assert nearly_empty([], segment_bytes=500) == []
