"""Small parts of the store, each alone: what a journal shows of them only when much else has happened."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

from meshq.errors import DamagedError
from meshq.store import CheckpointRecord
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.bodies import _spill_files
from meshq.store.bodies._spill_files import SpillFiles
from meshq.store.commit._checkpoints import Checkpoints
from meshq.store.commit._journal_owner import OwnerLink
from meshq.store.formats._batch_format import DATA_RECORD, KIND_SHIFT, TARGETS, BatchData, pack_targets
from meshq.store.formats._large_body_format import LargeBodyHeader, decode_large_header, encode_large_header
from meshq.store.formats._manifest_format import Manifest, SegmentEntry
from meshq.store.formats._record import INTERNAL
from meshq.store.maintenance._compactor import _targets
from meshq.store.maintenance._maintenance import Maintenance
from meshq.store.segments._segment_usage_machine import SegmentRecords, SegmentUsage
from meshq.testing import SimDisk, SimEntropy


def entry(number: int, last: int) -> SegmentEntry:
    return SegmentEntry(number=number, base=1, last=last, length=4_096, tag=bytes(16))


def test_a_changed_manifest_counts_on_and_has_its_segments_in_order() -> None:
    manifest = Manifest(
        generation=3,
        node_id=bytes(16),
        journal_id=bytes(16),
        next_segment=4,
        last=7,
        entries=(entry(2, 5), entry(3, 7)),
    )
    grown = manifest.changed(without=[2], entries=[entry(9, 30), entry(3, 8)], last=20)
    assert [(one.number, one.last) for one in grown.entries] == [(3, 8), (9, 30)]
    assert (grown.generation, grown.next_segment, grown.last) == (4, 10, 30)
    kept = grown.changed(without=[9], last=40)
    assert (kept.generation, kept.next_segment, kept.last) == (5, 10, 40), "no number is given twice"


def test_damage_to_the_header_of_a_body_is_named_with_its_offset() -> None:
    header = encode_large_header(LargeBodyHeader(bytes(16), bytes(32)))
    no_blocks = encode_large_header(LargeBodyHeader(bytes(16), bytes(32), 0))
    for data, offset in ((header[:9], 0), (b"x" + header[1:], 0), (header[:-1] + b"x", 80), (no_blocks, 12)):
        with pytest.raises(DamagedError) as caught:
            decode_large_header(data, "a body")
        assert (caught.value.file, caught.value.offset) == ("a body", offset)


def test_a_checkpoint_of_nothing_deletes_the_one_before_with_a_record_of_the_journals_own() -> None:
    checkpoints = Checkpoints(OwnerLink(), (3, 4), 0)
    batch = PendingBatch(9, 0)
    checkpoints.fill(batch, [])
    head = pack_targets((3, 4), ())
    assert batch.rows == [INTERNAL << KIND_SHIFT | TARGETS | len(head)] and batch.parts == [head]
    assert batch.targets == [(len(head), (3, 4), ())]
    batch = PendingBatch(10, 0)
    checkpoints.fill(batch, [CheckpointRecord(9, b"state")])
    assert batch.targets == [] and batch.checkpoint == (10,)


def test_what_a_copied_record_deletes_and_names_comes_with_its_size() -> None:
    content = pack_targets((1,), (2, 3)) + b"payload"
    rows = [len(content) | TARGETS | 7 << KIND_SHIFT, 4 | DATA_RECORD]
    assert list(_targets([BatchData(5, rows, [content, b"data"])])) == [(len(content), (1,), (2, 3))]


def test_a_segment_stays_as_long_as_any_record_that_it_names_is_there() -> None:
    usage = SegmentUsage()
    usage.add_segment(1, 1)
    usage.segments[1].add_batch(1, 4_096, [8 | DATA_RECORD] * 3, None)
    usage.add_segment(2, 4)
    usage.segments[2].add_batch(4, 4_096, [8 | DATA_RECORD | TARGETS], None)
    usage.add_targets(usage.segments[2], 8, (), (1, 2, 3))
    assert usage.segments[2].needs == {1: 3}
    for target, left in ((1, {1: 2}), (3, {1: 1}), (2, {})):
        usage.add_targets(usage.segments[1], 8, (target,), ())
        assert usage.segments[2].needs == left


def test_records_of_segments_that_overlap_are_read_in_their_order() -> None:
    usage = SegmentUsage()
    for number, positions in ((1, [1, 5, 9]), (2, [2, 4, 12]), (3, [13]), (4, [3, 10])):
        segment = SegmentRecords.compacted(number, positions[0])
        segment.add_batch(positions[0], 4_096, [8 | DATA_RECORD] * len(positions), positions)
        usage.segments[number] = segment
    assert usage.live_beyond(0, 13, 99, 9_999) == [1, 2, 3, 4, 5, 9, 10, 12, 13]
    assert usage.live_beyond(4, 10, 99, 9_999) == [5, 9, 10]


class Counted:
    """A disk that knows how many of its files are open."""

    def __init__(self, disk: Any) -> None:
        self._disk = disk
        self.open_files = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._disk, name)

    def open(self, *arguments: Any, **options: Any) -> Any:
        file = self._disk.open(*arguments, **options)
        self.open_files += 1
        return CountedFile(file, self)


class CountedFile:
    """A file of such a disk."""

    def __init__(self, file: Any, disk: Counted) -> None:
        self._file, self._disk = file, disk

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def close(self) -> None:
        self._disk.open_files -= 1
        self._file.close()


def test_pages_of_many_files_are_read_with_one_file_open_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_spill_files, "SEGMENT_BYTES", 500)
    disk = Counted(SimDisk().mount())
    files = SpillFiles(disk, "/data/paging", SimEntropy(random.Random(1)))
    files.open()
    runs = [(1, b"t", bytes([number]) * 600) for number in range(4)]
    pages = files.write(runs)
    assert pages is not None and len({page.file for page in pages}) == 4
    before = disk.open_files
    assert files.read(pages) == runs
    assert disk.open_files == before
    files.close()
    assert disk.open_files == 0


@pytest.mark.parametrize(("short", "compacted", "asked"), [(True, False, 1), (True, True, 0), (False, False, 0)])
async def test_on_a_full_disk_more_is_compacted_if_the_usual_compaction_freed_nothing(
    short: bool, compacted: bool, asked: int
) -> None:
    asked_for: list[float] = []

    async def compact(chosen: list[int], durable: int) -> bool:
        return compacted

    def choose_on_full_disk(active: int, covered: float, budget_bytes: int) -> list[int]:
        asked_for.append(budget_bytes)
        return []

    part = SimpleNamespace
    allocator = part(short_of_reserve=short, reserve_bytes=1 << 30)
    maintenance = Maintenance(
        part(usage=SegmentUsage(), allocator=allocator),  # type: ignore[arg-type]
        part(choose=lambda *_, idle: [7], compact=compact, choose_on_full_disk=choose_on_full_disk),  # type: ignore[arg-type]
        segment=part(number=9),  # type: ignore[arg-type]
        log=part(synced=0),  # type: ignore[arg-type]
        commits=part(),  # type: ignore[arg-type]
        checkpoints=part(covered=0),  # type: ignore[arg-type]
        life=part(),  # type: ignore[arg-type]
        wakeup=part(),  # type: ignore[arg-type]
    )
    await maintenance._maintain_now(idle=True)
    assert asked_for == [1 << 30] * asked
