"""The owner's soft state: asked for when a segment begins, kept until the next one is durable."""

from __future__ import annotations

import math

import pytest
import trio

from meshq.errors import InvariantError
from meshq.limits import BATCH_BYTES_MAX
from meshq.store import CheckpointRecord, Journal
from meshq.store.segments._reclaim_plan import removable
from tests.store.kit import Store, make_owner


class Owner:
    """Remembers the highest number that it has put into a record, and nothing else."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.highest = 0
        self.asked = 0
        #: Where each checkpoint went.
        self.positions = [0]
        journal.attach(make_owner(checkpoint=self.checkpoint))

    def checkpoint(self) -> list[CheckpointRecord]:
        self.asked += 1
        self.positions.append(self.journal.last + 1)
        return [CheckpointRecord(9, b"%d" % self.highest)] if self.highest else []

    def take_up(self) -> None:
        for record in self.journal.recovered(deleted=True):
            if record.kind in (7, 9):
                self.highest = max(self.highest, int(record.payload[:20]))

    async def use(self, count: int) -> None:
        """Place numbered records that die at once."""
        for _ in range(count):
            self.highest += 1
            position = self.journal.append_nowait(7, [b"%020d" % self.highest, bytes(500)])
            await self.journal.wait_durable(position)
            await self.journal.wait_durable(self.journal.append_nowait(8, [], tombstone=True, deletes=[position]))


async def _life(store: Store, count: int, *, clean: bool) -> tuple[int, int]:
    """Use the journal; returns the highest number used, and how often the checkpoint was asked for."""
    journal = store.journal()
    owner = Owner(journal)
    await journal.open()
    owner.take_up()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await owner.use(count)
        # Long enough to reclaim the segments without live records.
        await trio.sleep(10)
        if not clean:
            store.disk.power_loss()
            nursery.cancel_scope.cancel()
        else:
            await journal.aclose()
    return owner.highest, owner.asked


async def test_soft_state_survives_clean_ends_and_crashes_although_all_records_are_dead(store: Store) -> None:
    expected = 0
    for life in range(8):
        count = (1, 0, 30, 3, 60, 0, 2, 9)[life]
        expected += count
        highest, asked = await _life(store, count, clean=life % 2 == 0)
        assert highest == expected
        # What has nothing to write has nothing to cover.
        assert asked >= min(count, 1)


async def test_each_segment_begins_with_a_checkpoint_that_deletes_the_one_before(store: Store) -> None:
    async with store.journal() as journal:
        owner = Owner(journal)
        await owner.use(100)
        await trio.sleep(10)
        assert owner.asked >= 3
        assert journal.statistics().segments <= 2
    living = [record for record in store.records() if not record.tombstone]
    assert len(living) == 1
    assert living[0].kind == 9


async def test_the_dead_are_handed_out_only_if_asked_for_and_only_behind_the_checkpoint(store: Store) -> None:
    async with store.journal() as journal:
        owner = Owner(journal)
        await owner.use(100)
        crashed = Store(disk=store.disk.copy())
    assert all(not record.deleted for record in crashed.records())
    dead = [record for record in crashed.records(deleted=True) if record.deleted]
    checkpoint = next(record for record in crashed.records() if record.kind == 9)
    assert dead
    assert all(record.position > checkpoint.position - 1 for record in dead)
    assert dead[-1].payload.startswith(b"%020d" % 100)


async def test_nothing_is_dropped_between_the_begin_of_a_segment_and_its_durable_checkpoint(store: Store) -> None:
    would, wrong = [], []

    async with store.journal() as journal:
        owner = Owner(journal)

        def on_durable(position: int) -> None:
            books, writer = journal._parts.state.usage.segments, journal._parts.segment.writer
            assert writer is not None
            known = max(at for at in owner.positions if at <= position)
            late = removable(books, active=writer.number, covered=math.inf)
            late = [number for number in late if books[number].last > known]
            would.extend(late)
            allowed = removable(books, active=writer.number, covered=journal._parts.checkpoints.covered)
            wrong.extend(number for number in late if number in allowed)

        journal.attach(make_owner(durable_moved=on_durable, checkpoint=owner.checkpoint))
        # The first checkpoint is empty, so no live record of it keeps its segment.
        await journal.delete(await journal.append(b"before anything is numbered"))
        await trio.testing.wait_all_tasks_blocked()
        await owner.use(200)
    assert would
    assert not wrong


async def test_an_owner_whose_state_is_gone_leaves_no_checkpoint(store: Store) -> None:
    async with store.journal() as journal:
        owner = Owner(journal)
        await owner.use(40)
        assert any(not record.tombstone and record.kind == 9 for record in store.records())
        owner.highest = 0
        asked = owner.asked
        while owner.asked < asked + 2:
            await journal.delete(await journal.append(bytes(2000)))
    assert [record for record in store.records() if not record.tombstone and record.kind == 9] == []


async def test_a_checkpoint_larger_than_a_segment_gets_a_segment_of_its_own_size(store: Store) -> None:
    journal = store.journal()
    journal.attach(make_owner(checkpoint=lambda: [CheckpointRecord(9, bytes(40_000))]))
    async with journal:
        await journal.append_many([bytes(3000)] * 12)
    assert [len(record.payload) for record in store.records() if record.kind == 9] == [40_000]
    assert len([record for record in store.records() if record.kind == 1]) == 12


async def test_a_checkpoint_that_no_batch_holds_ends_the_journal(store: Store) -> None:
    too_large = [CheckpointRecord(9, bytes(BATCH_BYTES_MAX + 1))]
    with pytest.raises(InvariantError, match="a checkpoint fits in a batch"):
        async with store.journal() as journal:
            journal.attach(make_owner(checkpoint=lambda: too_large))
            for _ in range(60):
                await journal.append(bytes(900))
    assert journal.state == "failed"
