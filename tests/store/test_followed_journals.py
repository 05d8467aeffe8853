"""A journal that follows another one: a copy of its segments, and then its batches, at the same positions."""

from __future__ import annotations

import attrs
import pytest
import trio
import trio.testing

from meshq.abc import RecordSource, ReplicatedBatch
from meshq.errors import UsageError
from meshq.ids import Position
from meshq.store import CheckpointRecord, Journal, JournalRecord, StoreCopy
from meshq.testing import InlineThreads, MemorySink, SimDisk
from qa.journal.model import ROOT_DIRECTORY, journal_env
from tests.store.kit import Store, make_owner

FOLLOWER = attrs.evolve(make_owner(), follows=True)


def source_of(journal: Journal) -> RecordSource:
    """Return the records of a journal, as its sink would get them."""
    return journal._parts.source


async def copy(journal: Journal, disk: SimDisk) -> None:
    """Copy the journal as it is now."""
    source = source_of(journal)
    async with source.holding():
        made = StoreCopy(
            disk,
            ROOT_DIRECTORY,
            lambda size: b"\7" * size,
            identity=(bytes(journal.node_id), journal.journal_id),
        )
        made.begin()
        for segment in source.segments():
            made.add(segment, await source.read(segment.number))
        made.finish(source.synced)


def live(store: Store) -> list[JournalRecord]:
    """What a start right now would find, without tombstones."""
    return [record for record in store.records() if not record.tombstone]


def follower(disk: SimDisk) -> Journal:
    env = journal_env(disk, seed=99, threads=InlineThreads())
    return Journal(ROOT_DIRECTORY, segment_bytes=16 * 1024, segment_bytes_min=1024, env=env)


async def fill(journal: Journal, rounds: int, *, keep: int = 3) -> None:
    """Append records, and delete all but every so many."""
    for number in range(rounds):
        position = await journal.append(b"%d" % number * 100)
        if number % keep:
            await journal.delete(position)


@pytest.mark.parametrize("compacted", [False, True])
async def test_a_copy_has_the_same_records_and_takes_what_follows(store: Store, compacted: bool) -> None:
    sink, there = MemorySink(), Store()
    store.failpoint["journal.compact_early"] = compacted
    async with store.journal(sink=sink) as journal:
        await fill(journal, 120)
        await trio.sleep(20)
        await copy(journal, there.disk)
        begun = len(sink.batches)
        other = follower(there.disk)
        await other.open()
        assert other.last == journal.last and other.node_id == journal.node_id
        other.attach(FOLLOWER)
        async with trio.open_nursery() as nursery:
            await nursery.start(other.run)
            await fill(journal, 60)
            for batch in sink.batches[begun:]:
                if batch.rows:
                    other.log.follow(batch)
            await other.wait_durable(other.last)
            assert other.durable == journal.durable
            await other.aclose()
            nursery.cancel_scope.cancel()
    # Tombstones go when each of the two finds it worth its while.
    assert live(there) == live(store) != []
    assert not compacted or any(entry.compacted for entry in store.manifest().entries)


async def test_a_batch_that_does_not_follow_is_refused(store: Store) -> None:
    async with store.journal() as journal:
        journal.attach(FOLLOWER)
        for first in (2, 0):
            with pytest.raises(UsageError, match="does not follow"):
                journal.log.follow(batch(first, b"x"))
        journal.log.follow(batch(1, b"x"))
        with pytest.raises(UsageError, match="does not follow"):
            journal.log.follow(batch(1, b"x"))
        with pytest.raises(UsageError, match="contradicts itself"):
            journal.log.follow(attrs.evolve(batch(2, b"x"), parts=[b"xy"]))
        await journal.wait_durable(1)


def batch(first: int, content: bytes) -> ReplicatedBatch:
    row = 1 << 40 | 1 << 32 | len(content)
    return ReplicatedBatch(first=Position(first), last=Position(first), flags=0, rows=[row], parts=[content])


@pytest.mark.slow
async def test_a_follower_asks_nobody_for_a_checkpoint_and_keeps_what_the_last_one_does_not_cover(store: Store) -> None:
    sink, there = MemorySink(), Store()
    owner = make_owner(checkpoint=lambda: [CheckpointRecord(9, b"soft")])
    journal = store.journal(sink=sink)
    await journal.open()
    journal.attach(owner)
    other = follower(there.disk)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await copy(journal, there.disk)
        await other.open()
        other.attach(FOLLOWER)
        await nursery.start(other.run)
        begun = 0
        for _ in range(4):
            await fill(journal, 100, keep=1000)
            for one in sink.batches[begun:]:
                if one.rows:
                    other.log.follow(one)
            begun = len(sink.batches)
            await trio.sleep(20)
        await other.wait_durable(other.last)
        await other.aclose()
        await journal.aclose()
        nursery.cancel_scope.cancel()
    assert [one for one in there.records() if one.kind == 9] == [one for one in store.records() if one.kind == 9] != []
    # Both have removed segments, each at its own time.
    assert there.manifest().entries[0].number > 1


@pytest.mark.slow
async def test_no_segment_is_removed_or_compacted_while_a_copy_is_made(store: Store) -> None:
    async with store.journal() as journal:
        await fill(journal, 300, keep=1000)
        async with source_of(journal).holding():
            before = [one.number for one in source_of(journal).segments()]
            await fill(journal, 100, keep=1000)
            await trio.sleep(20)
            kept = [one.number for one in source_of(journal).segments()]
            assert kept[: len(before)] == before
        await fill(journal, 100, keep=1000)
        await trio.sleep(20)
        assert source_of(journal).segments()[0].number > before[0]
