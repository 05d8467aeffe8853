"""Batches that the reserve of a full disk could not take: space is made for them before they are placed."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import trio

from meshq.errors import ClosedError
from meshq.store import Journal
from meshq.store.allocation._batch_space import (
    batch_bytes_for,
    free_bytes_behind,
    large_bytes,
    reserve_bytes,
    stays_in_segment,
)
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.allocation._segment_allocator import SegmentAllocator
from meshq.store.segments._segment_writer import PreallocatedSegment, SegmentWriter
from tests.store.kit import SEGMENT_BYTES, Store, make_owner

LARGE = 5 * SEGMENT_BYTES


def asking(journal: Journal, size: int, seen: list[int | None]) -> Callable[[], None]:
    """Ask; what is done when there is an answer, which places the record if there is space."""

    def then() -> None:
        seen.append(journal.append_nowait(1, [bytes(size)]) if journal.has_space(size) else None)

    if journal.request_space(size, then):
        then()
    return then


async def settled(journal: Journal) -> None:
    await journal.append(b"settled")
    await trio.sleep(1)


@pytest.mark.parametrize("size", [LARGE, SEGMENT_BYTES // 2])
async def test_a_batch_without_space_is_refused_before_it_is_placed_and_holds_nothing_up(
    store: Store, size: int
) -> None:
    seen: list[int | None] = []
    async with store.journal() as journal:
        await settled(journal)
        store.disk.capacity_bytes = store.disk.used_bytes() + 1_000
        while not seen or seen[-1] is not None:
            # The smaller one may find the space that is there already.
            asking(journal, size, seen)
            await trio.sleep(100)
            assert journal.durable == journal.last
        assert len(seen) == 1 + 2 * (size < SEGMENT_BYTES)
        # Neither is the rest of the node held up.
        with trio.fail_after(10):
            await journal.wait_durable(journal.append_nowait(2, [b"note"], tombstone=True, refs=[1]))
        store.disk.capacity_bytes = math.inf
        await trio.sleep(10)
        asking(journal, size, seen)
        await trio.sleep(1)
        assert seen[-1] is not None
        assert journal.durable >= seen[-1]
    placed = [at for at in seen if at is not None]
    assert [record.position for record in store.records() if len(record.payload) == size] == placed


async def test_a_disk_without_space_for_a_large_batch_takes_small_ones(store: Store) -> None:
    seen: list[int | None] = []
    async with store.journal() as journal:
        await settled(journal)
        store.disk.capacity_bytes = store.disk.used_bytes() + LARGE
        asking(journal, LARGE, seen)
        await trio.sleep(1)
        assert seen == [None]
        assert not journal.full
        await journal.append_many([bytes(900)] * 20)


async def test_each_request_gets_space_of_its_own(store: Store) -> None:
    seen: list[int | None] = []
    async with store.journal() as journal:
        await settled(journal)
        for _ in range(3):
            asking(journal, LARGE, seen)
        await trio.sleep(1)
        assert [at is not None for at in seen] == [True] * 3
        # All of them have theirs, whatever becomes of the disk before they are written.
        assert journal.durable == journal.last


async def test_a_preallocated_segment_keeps_its_batch_from_waiting_on_a_full_disk(store: Store) -> None:
    seen: list[int | None] = []
    async with store.journal() as journal:
        await settled(journal)

        def then() -> None:
            # Somebody else takes all that is left.
            store.disk.capacity_bytes = store.disk.used_bytes()
            seen.append(journal.append_nowait(1, [bytes(LARGE)]))
            # It is taken, and nobody else gets it.
            assert not journal.has_space(LARGE)

        assert not journal.request_space(LARGE, then)
        await trio.sleep(1)
        with trio.fail_after(2):
            await journal.wait_durable(journal.last)
            # Behind it is space for what drains it.
            await journal.wait_durable(journal.append_nowait(2, [], tombstone=True, deletes=[journal.last]))
        store.disk.capacity_bytes = math.inf


async def test_an_atomic_batch_takes_the_segment_that_was_made_for_it(store: Store) -> None:
    placed: list[int] = []
    async with store.journal() as journal:
        await settled(journal)

        def then() -> None:
            assert journal.has_space(2 * LARGE)
            store.disk.capacity_bytes = store.disk.used_bytes()
            with journal.atomic_batch(2 * LARGE):
                placed.extend(journal.append_nowait(1, [bytes(LARGE // 2)]) for _ in range(4))

        assert not journal.request_space(2 * LARGE, then)
        await trio.sleep(1)
        with trio.fail_after(2):
            await journal.wait_durable(placed[-1])
        store.disk.capacity_bytes = math.inf


async def test_a_segment_that_is_not_claimed_becomes_the_spare(store: Store) -> None:
    async with store.journal() as journal:
        await settled(journal)
        await journal.append_many([bytes(900)] * 8)
        await trio.sleep(1)
        before = store.disk.used_bytes()
        calls: list[bool] = []
        assert not journal.request_space(LARGE, lambda: calls.append(journal.has_space(LARGE)))
        await trio.sleep(1)
        assert calls == [True]
        assert not journal.has_space(LARGE)
        assert store.disk.used_bytes() == before
        # Nor is it kept for records that come to nothing.

        def nothing() -> None:
            with journal.atomic_batch(LARGE):
                pass

        journal.request_space(LARGE, nothing)
        await trio.sleep(1)
        assert store.disk.used_bytes() == before


async def test_a_batch_that_fits_after_all_releases_its_segment(store: Store) -> None:
    async with store.journal() as journal:
        await trio.sleep(1)
        size = SEGMENT_BYTES // 2

        def then() -> None:
            # Nothing is written yet: nobody knows which segment this comes to.
            journal.append_nowait(1, [b"first"])
            journal.append_nowait(1, [bytes(size)])
            assert not journal.has_space(size)

        assert not journal.request_space(size, then)
        await trio.sleep(1)
        assert journal.durable == journal.last == 2
        assert len(store.segments()) == 1
    assert [path for path in store.disk.files() if path.endswith(".seg")] == store.segments()


async def test_a_segment_released_while_another_is_made_is_not_forgotten(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = PendingBatch(1, 0)
    make = SegmentAllocator._preallocate

    async def meanwhile(allocator: SegmentAllocator, capacity: int) -> PreallocatedSegment:
        preallocated = await make(allocator, capacity)
        allocator.release(batch)
        return preallocated

    async with store.journal() as journal:
        await settled(journal)
        allocator = journal._parts.state.allocator
        allocator.report_used(SEGMENT_BYTES, SEGMENT_BYTES)
        await trio.sleep(1)
        batch.preallocated = allocator.claim(SEGMENT_BYTES)
        assert batch.preallocated is not None
        monkeypatch.setattr(SegmentAllocator, "_preallocate", meanwhile)
        await trio.sleep(1)
        assert batch.preallocated is None and allocator.has_segment(SEGMENT_BYTES)
    assert [path for path in store.disk.files() if path.endswith(".seg")] == store.segments()


@pytest.mark.parametrize("failing", [False, True])
async def test_whoever_waits_when_the_journal_ends_is_answered(store: Store, failing: bool) -> None:
    calls: list[str] = []
    journal = store.journal()

    def then() -> None:
        assert journal.has_space(LARGE)
        with pytest.raises(Exception) as caught:
            journal.append_nowait(1, [bytes(LARGE)])
        calls.append(type(caught.value).__name__)

    await journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await settled(journal)
        assert not journal.request_space(LARGE, then)
        if failing:
            journal._parts.fail(OSError("the disk"))
        else:
            await journal.aclose()
            with pytest.raises(ClosedError):
                journal.append_nowait(1, [b"x"])
        nursery.cancel_scope.cancel()
    await journal.aclose()
    assert calls == ["JournalBrokenError" if failing else "ClosedError"]
    store.damaged = failing


class _Writer:
    capacity, end = 20_000, 5_000


def test_what_is_left_behind_those_that_wait() -> None:
    def batch(size: int) -> PendingBatch:
        return PendingBatch(1, 0, rows=[size])

    writer: SegmentWriter = _Writer()  # type: ignore[assignment]
    assert free_bytes_behind(writer, []) == 15_000
    taken = batch(3_000).bytes
    assert free_bytes_behind(writer, [batch(3_000)]) == 15_000 - taken
    # Where the next segment begins, and how long it is, nobody knows.
    assert free_bytes_behind(writer, [batch(15_000)]) == free_bytes_behind(writer, [batch(15_000), batch(10)]) == 0
    assert free_bytes_behind(None, [batch(10)]) == free_bytes_behind(None, []) == 0


@pytest.mark.parametrize("segment_bytes", [SEGMENT_BYTES, 64 * 1024, 10 << 20])
def test_what_is_not_large_fits_in_the_reserve(segment_bytes: int) -> None:
    assert 4096 + batch_bytes_for(large_bytes(segment_bytes)) <= reserve_bytes(segment_bytes)


async def test_a_batch_that_counts_on_space_behind_a_large_one_keeps_it(store: Store) -> None:
    """A small batch before it begins a segment in which there is space for the large one, not for what follows."""
    seen: list[int | None] = []
    async with store.journal() as journal:
        await settled(journal)
        # Less is left in the segment being written than the small batch takes, and the next segment is there.
        await journal.append_many([bytes(900)] * 10)
        await trio.sleep(2)

        def more(durable: int) -> None:
            # The segment that the small one begins is the last for which the disk has space.
            store.disk.capacity_bytes = min(store.disk.capacity_bytes, store.disk.used_bytes())
            if len(seen) == 2 and durable >= (seen[0] or 0):
                asking(journal, 7_000, seen)

        journal.attach(make_owner(durable_moved=more))
        journal.append_nowait(1, [bytes(1_900)])
        for size in (7_000, 4_000):
            asking(journal, size, seen)
        assert len(seen) == 2 and None not in seen
        with trio.fail_after(30):
            await journal.wait_durable(journal.last)
        assert len(seen) == 3
        store.disk.capacity_bytes = math.inf


async def test_a_segment_released_while_the_disk_is_found_full_makes_it_full_no_more(store: Store) -> None:
    async with store.journal() as journal:
        await settled(journal)
        allocator = journal._parts.state.allocator
        allocator.request_spare()
        await trio.sleep(1)
        batch = PendingBatch(1, 0)
        batch.preallocated = allocator.claim(SEGMENT_BYTES)
        assert batch.preallocated is not None
        store.disk.capacity_bytes = store.disk.used_bytes()
        full: list[bool] = []

        def meanwhile(operation: object) -> None:
            if not full:
                full.append(allocator.full)
                allocator.release(batch)

        store.disk.watch = meanwhile
        await trio.sleep(10)
        store.disk.watch = None
        assert full == [False] and not journal.full
        store.disk.capacity_bytes = math.inf


async def test_a_disk_with_space_again_for_a_record_larger_than_a_segment_is_full_no_more(store: Store) -> None:
    async with store.journal() as journal:
        await settled(journal)
        journal._parts.state.allocator.request_spare()
        await trio.sleep(1)
        store.disk.capacity_bytes = store.disk.used_bytes()
        # Nothing else is missing: the spare segment, the reserve and the ballast are there.
        position = journal.append_nowait(1, [bytes(2 * SEGMENT_BYTES)])
        await trio.sleep(10)
        assert journal.full and journal.durable < position
        store.disk.capacity_bytes = math.inf
        await journal.wait_durable(position)
        await trio.sleep(10)
        assert not journal.full


def test_a_large_batch_leaves_its_segment_only_if_no_batch_counts_on_that() -> None:
    def batch(size: int, preallocated: int = 0) -> PendingBatch:
        found = PendingBatch(1, 0, rows=[size])
        if preallocated:
            found.preallocated = PreallocatedSegment(1, preallocated, None)  # type: ignore[arg-type]
        return found

    writer: SegmentWriter = _Writer()  # type: ignore[assignment]
    large, next_one = batch(8_000, 30_000), batch(5_000)
    assert stays_in_segment(writer, large, [])
    assert stays_in_segment(writer, large, [next_one])
    assert not stays_in_segment(writer, large, [next_one, next_one])
    # What has a segment of its own needs nothing of this one, nor does what follows it.
    assert stays_in_segment(writer, large, [batch(5_000, 20_000), next_one, next_one])
    # Its own is no better.
    assert stays_in_segment(writer, batch(8_000, 19_000), [next_one, next_one])
    # It has none, or has to have one.
    assert stays_in_segment(writer, batch(8_000), [next_one, next_one])
    assert not stays_in_segment(writer, batch(15_000), []) and not stays_in_segment(writer, batch(15_000, 30_000), [])
