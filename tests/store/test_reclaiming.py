"""Segments are freed: those without live records are removed, others are compacted."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import trio

from meshq.errors import DamagedError, JournalBrokenError
from meshq.limits import COMPACT_SEGMENTS_MIN, KIB
from meshq.store import Journal
from meshq.store.commit._journal_state import JournalState
from tests.store.kit import SEGMENT_BYTES, Store, replayed


async def _settle(journal: Journal) -> None:
    """Let whatever can be tidied be tidied."""
    for _ in range(4):
        await journal.wait_durable(journal.append_nowait(1, [], tombstone=True, refs=[journal.last]))
        await trio.sleep(2)


async def test_a_queue_that_is_drained_as_it_is_filled_stays_small(store: Store) -> None:
    async with store.journal() as journal:
        waiting: list[int] = []
        most = 0
        for number in range(600):
            waiting.append(journal.append_nowait(2, [bytes(700)]))
            if len(waiting) > 20:
                journal.append_nowait(3, [], tombstone=True, deletes=[waiting.pop(0)], lazy=True)
            await journal.wait_durable(journal.last)
            if number % 20 == 0:
                await trio.sleep(2)
            most = max(most, journal.statistics().segments)
        assert most <= 5
        assert journal.statistics().live_records == len(waiting)
    assert [record.position for record in store.records() if not record.tombstone] == waiting


async def test_a_few_old_records_are_copied_so_that_their_segments_can_go(store: Store) -> None:
    async with store.journal() as journal:
        survivors: list[int] = []
        for number in range(COMPACT_SEGMENTS_MIN + 3):
            for part in range(14):
                position = await journal.append(b"%d.%d" % (number, part) + bytes(900))
                if part == number:
                    survivors.append(position)
                else:
                    await journal.delete(position)
        await _settle(journal)
        statistics = journal.statistics()
        assert statistics.compactions >= 1
        assert statistics.segments < COMPACT_SEGMENTS_MIN
        kept = [position for position, _ in await replayed(journal)]
        assert [position for position in kept if position in survivors] == survivors
        payloads = dict(await replayed(journal))
    async with store.journal() as journal:
        assert dict(await replayed(journal)) == payloads
    assert any(entry.compacted for entry in store.manifest().entries)


@pytest.mark.slow
async def test_what_is_kept_of_many_segments_is_copied_in_batches_to_segments_of_their_size(store: Store) -> None:
    segment_bytes = 1024 * KIB
    async with store.journal(segment_bytes=segment_bytes) as journal:
        alive: dict[int, bytes] = {}
        for number in range(12):
            for position in await journal.append_many([b"%d" % number + bytes(900)] * 1_200):
                alive[position] = b"%d" % number + bytes(900)
        dead = [position for position in alive if position % 4]
        for position in dead:
            del alive[position]
            journal.append_nowait(3, [], tombstone=True, deletes=[position], lazy=True)
        await _settle(journal)
        copied = [entry for entry in store.manifest().entries if entry.compacted]
        assert journal.statistics().compactions and len(copied) > 1
        assert all(entry.length <= 2 * segment_bytes for entry in copied)
        assert {at: payload for at, payload in await replayed(journal) if payload} == alive
    assert {record.position: record.payload for record in store.records() if not record.tombstone} == alive


async def test_a_deletion_is_not_forgotten_before_what_it_deleted(store: Store) -> None:
    """A tombstone in an old segment must outlive its target in a compacted one, and the other way round."""
    rng = random.Random(5)
    store.failpoint["journal.compact_early"] = True
    async with store.journal() as journal:
        alive: dict[int, bytes] = {}
        for number in range(400):
            payload = b"%d" % number + bytes(rng.randrange(600))
            alive[await journal.append(payload)] = payload
            if len(alive) > 30:
                victim = rng.choice(list(alive))
                del alive[victim]
                await journal.delete(victim)
            if number % 25 == 0:
                await trio.sleep(2)
                found = {record.position: record.payload for record in store.records() if not record.tombstone}
                assert found == alive
        assert journal.statistics().compactions > 5


async def test_a_replay_goes_on_while_its_segments_are_compacted(store: Store) -> None:
    store.failpoint["journal.compact_early"] = True
    async with store.journal() as journal:
        positions = [await journal.append(b"%d" % number + bytes(900)) for number in range(80)]
        replay = journal.replay()
        first = await anext(replay)
        for position in positions[1::2]:
            await journal.delete(position)
        await _settle(journal)
        assert journal.statistics().compactions > 0
        rest = [record.position async for record in replay]
    assert [first.position, *rest] == positions[::2]


async def test_replay_gives_the_loop_its_turns(store: Store) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    async with store.journal() as journal:
        await journal.append_many([b"x"] * 1_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(count)
            assert len(await replayed(journal)) == 1_000
            nursery.cancel_scope.cancel()
    assert turns >= 10


async def test_damage_that_a_compaction_meets_ends_the_journal(store: Store) -> None:
    store.damaged = True
    with pytest.raises(JournalBrokenError) as caught:
        async with store.journal() as journal:
            positions = await journal.append_many([bytes(900)] * 60)
            for position in positions[1:10]:
                await journal.delete(position)
            store.disk.flip_bit(store.segments()[0], 5_000 * 8)
            store.failpoint["journal.compact_early"] = True
            await _settle(journal)
    assert isinstance(caught.value.__cause__, DamagedError)


async def test_a_full_disk_leaves_a_compaction_for_later(store: Store) -> None:
    async with store.journal() as journal:
        positions = await journal.append_many([bytes(900)] * 60)
        for position in positions[::2]:
            await journal.delete(position)
        await _settle(journal)
        store.disk.capacity_bytes = store.disk.used_bytes() + 3_000
        store.failpoint["journal.compact_early"] = True
        await journal.wait_durable(journal.append_nowait(1, [], tombstone=True, deletes=[positions[1]]))
        await trio.sleep(10)
        assert journal.state == "open"
        before = journal.statistics().compactions
        store.disk.capacity_bytes = 10**9
        await _settle(journal)
        assert journal.statistics().compactions > before
        assert [position for position, _ in await replayed(journal)] == positions[3::2]


async def test_a_large_record_gets_a_segment_of_its_own_and_that_is_given_back(store: Store) -> None:
    async with store.journal() as journal:
        large = await journal.append(bytes(5 * SEGMENT_BYTES))
        assert len((await replayed(journal))[0][1]) == 5 * SEGMENT_BYTES
        await journal.delete(large)
        await journal.append_many([bytes(900)] * 20)
        await _settle(journal)
        assert journal.statistics().bytes < 4 * SEGMENT_BYTES


async def test_a_deleted_record_that_is_kept_as_a_tombstone_stays_deleted(store: Store) -> None:
    """2 is deleted by 3, a data record, which is deleted by 4.  Only the segments of 3 and 4 are compacted."""
    store.failpoint["journal.roll_early"] = True
    # So large that small ones are not compacted while nothing else is done.
    async with store.journal(segment_bytes=8 * SEGMENT_BYTES) as journal:
        await journal.append_many([b"1, which lives", b"2, beside it"])
        await journal.wait_durable(journal.append_nowait(5, [b"3"], deletes=[2]))
        await journal.wait_durable(journal.append_nowait(6, [b"4"], tombstone=True, deletes=[3]))
        await journal.append(b"5")
        usage = journal._parts.state.usage
        numbers = [segment.number for segment in usage.segments.values() if segment.first in (3, 4)]
        assert len(numbers) == 2
        await journal._parts.compactor.compact(numbers, journal.durable)
        assert [record.payload for record in store.records()] == [b"1, which lives", b"5"]
        assert usage.find_record(3) is not None
        assert usage.find_record(4) is None
        # Once 1 is deleted, too, none of these records is needed.
        await journal.delete(1)
        await _settle(journal)
        assert [usage.find_record(position) for position in (1, 2, 3)] == [None, None, None]
    assert [record.position for record in store.records() if not record.tombstone] == [5]


async def test_with_its_failpoint_segments_roll_early(store: Store) -> None:
    store.failpoint["journal.roll_early"] = True
    async with store.journal(segment_bytes=8 * SEGMENT_BYTES) as journal:
        for _ in range(5):
            await journal.append(b"x")
        assert journal.statistics().segments == 5


async def test_a_segment_that_begins_while_others_are_removed_is_not_compacted(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store.journal() as journal:
        remove = JournalState.remove_segments

        async def meanwhile(state: JournalState, numbers: Sequence[int]) -> None:
            await remove(state, numbers)
            if not began:
                store.failpoint["journal.roll_early"] = True
                began.append(await journal.append(b"begins"))
                store.failpoint.clear()

        began: list[int] = []
        monkeypatch.setattr(JournalState, "remove_segments", meanwhile)
        # A segment without live records, and a nearly empty one.
        dead = [await journal.append(bytes(11_000)), *await journal.append_many([b"lives", bytes(11_000)])]
        del dead[1]
        await journal.append(bytes(11_000))
        await trio.sleep(5)
        for position in dead:
            journal.append_nowait(2, [], tombstone=True, deletes=[position])
        await journal.wait_durable(journal.last)
        await trio.sleep(5)
        assert began and journal.statistics().compactions
        await journal.append(b"goes on")
    assert {b"lives", b"begins", b"goes on"} <= {record.payload for record in store.records()}
