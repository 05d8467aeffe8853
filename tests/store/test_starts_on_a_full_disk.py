"""Journals that were killed on a full disk: each start serves, and none of them takes space that the next one needs."""

from __future__ import annotations

import errno
import math
import random

import pytest
import trio

from meshq.errors import AddressFullError, JournalBrokenError
from meshq.store import CheckpointRecord
from meshq.testing import SimDisk
from tests.store.kit import SEGMENT_BYTES, Store, make_owner

BODY = bytes(900)


def mark() -> list[CheckpointRecord]:
    """A checkpoint of an owner."""
    return [CheckpointRecord(7, b"mark")]


async def filled(store: Store, room: int) -> list[int]:
    """The positions in a store whose last life was killed when the disk was full."""
    store.disk.capacity_bytes = room
    journal = store.journal()
    journal.attach(make_owner(checkpoint=mark))
    await journal.open()
    positions: list[int] = []
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        with pytest.raises(AddressFullError):
            while True:
                positions.append(journal.append_nowait(1, [BODY]))
                await journal.wait_durable(positions[-1])
        await trio.sleep(10)
        store.disk.kill()
        nursery.cancel_scope.cancel()
    return positions


async def life(store: Store, deletes: list[int], *, patience: float = 60) -> bool:
    """Run one life that is killed after these records are deleted; return whether the disk was full."""
    journal = store.journal()
    journal.attach(make_owner(checkpoint=mark))
    await journal.open()
    assert {record.position for record in journal.recovered() if not record.tombstone}.issuperset(deletes)
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        for position in deletes:
            with trio.fail_after(patience):
                await journal.wait_durable(journal.append_nowait(2, [], tombstone=True, deletes=[position]))
        await trio.sleep(5)
        full = journal.full
        store.disk.kill()
        nursery.cancel_scope.cancel()
    return full


@pytest.mark.slow
async def test_fifty_starts_on_a_full_disk_write_nothing_that_stays(store: Store) -> None:
    positions = await filled(store, 20 * SEGMENT_BYTES)
    used: list[int] = []
    for _ in range(50):
        await life(store, [])
        # What else there is was made ahead, and is removed by the next start.
        used.append(sum(store.disk.open(path).size() for path in store.segments()))
    assert max(used) == max(used[:3])
    assert used[-1] <= used[0]
    assert {record.position for record in store.records() if record.kind == 1} == set(positions)
    await drained(store, positions)


@pytest.mark.slow
@pytest.mark.parametrize("room", [6, 20, 40])
@pytest.mark.parametrize("at_a_time", [1, 3, 1_000])
async def test_a_store_drained_by_many_short_lives_frees_its_space(store: Store, room: int, at_a_time: int) -> None:
    positions = await filled(store, room * SEGMENT_BYTES)
    for _ in range(50):
        deletes, positions = positions[:at_a_time], positions[at_a_time:]
        if not deletes:
            break
        await life(store, deletes)
    await drained(store, positions)


async def drained(store: Store, positions: list[int]) -> None:
    """What is left can be consumed one by one, and then there is room."""
    async with store.journal() as journal:
        for position in positions:
            with trio.fail_after(60):
                await journal.wait_durable(journal.append_nowait(2, [], tombstone=True, deletes=[position]))
        await trio.sleep(60)
        assert not journal.full
        await journal.append(b"goes on")


@pytest.mark.parametrize("free", [0, 512, 4096])
async def test_a_tail_without_space_for_a_copy_is_made_durable_in_place(free: int) -> None:
    kept = 0
    for seed in range(20):
        store = Store(disk=SimDisk(random.Random(seed)))
        with pytest.raises(JournalBrokenError):
            async with store.journal() as journal:
                await journal.append(b"durable")
                store.disk.faults.inject("sync", path=store.segments()[0])
                await journal.append(b"written, and the sync failed")
        for path in store.disk.files():
            if path.endswith("ballast") or (path.endswith(".seg") and path not in store.segments()):
                store.disk.remove(path)
        store.disk.capacity_bytes = store.disk.used_bytes() + free
        found = None
        for _ in range(3):
            journal = store.journal()
            await journal.open()
            records = [record.payload for record in journal.recovered() if record.kind == 1]
            assert found in (None, records)
            found = records
            store.disk.power_loss()
        assert found is not None
        assert found[0] == b"durable"
        kept += len(found) == 2
        store.disk.capacity_bytes = math.inf
        assert [record.payload for record in store.records() if record.kind == 1] == found
    assert kept >= 3


async def test_a_start_without_space_for_a_manifest_goes_on(store: Store) -> None:
    async with store.journal() as journal:
        positions = await journal.append_many([BODY] * 30)
        await trio.sleep(1)
        twin = Store(disk=store.disk.copy())
    twin.disk.faults.inject("write", errno.ENOSPC, path="manifest", times=4)
    async with twin.journal() as journal:
        for position in positions:
            await journal.delete(position)
        await journal.append(b"next")
    assert [record.payload for record in twin.records() if not record.tombstone] == [b"next"]


async def test_any_other_error_of_a_start_ends_it(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"one")
        await journal.append(b"two")
        twin = Store(disk=store.disk.copy())
    twin.disk.faults.inject("truncate", errno.EIO)
    with pytest.raises(JournalBrokenError):
        async with twin.journal():
            await trio.sleep(1)


async def test_nothing_is_cut_before_the_owner_has_read_the_records(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"one")
        await journal.append(b"two")
        twin = Store(disk=store.disk.copy())
    (path,) = twin.segments()
    before = twin.disk.content(path)
    journal = twin.journal()
    await journal.open()
    assert [record.payload for record in journal.recovered()] == [b"one", b"two"]
    assert twin.disk.content(path) == before
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await trio.sleep(1)
        assert len(twin.disk.content(path)) < len(before)
        await journal.aclose()


async def test_a_start_drops_what_nobody_needs_and_cuts_what_was_made_ahead(store: Store) -> None:
    for _ in range(5):
        await life(store, [])
    manifest = store.manifest()
    assert len(manifest.entries) <= 2
    for path in store.segments()[:-1]:
        assert store.disk.open(path).size() < SEGMENT_BYTES
