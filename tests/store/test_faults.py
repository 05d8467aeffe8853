"""Errors of the disk, one at a time, at every call: fail-stop, and nothing acknowledged is lost."""

from __future__ import annotations

import contextlib
import errno
import math
import random

import pytest
import trio

from meshq.errors import AddressFullError, JournalBrokenError
from meshq.store import Journal
from meshq.testing import DiskCall, DiskOperation, SimDisk
from qa.journal.model import journal_env
from tests.store.kit import SEGMENT_BYTES, Store, make_owner, replayed

CALLS: tuple[DiskCall, ...] = ("create", "write", "sync", "replace", "remove", "sync_directory")


async def _short_run(store: Store, acknowledged: dict[int, bytes]) -> None:
    """A few segments, with deletes, reclaiming and a compaction; ``acknowledged`` is what must be there."""
    async with store.journal() as journal:
        for number in range(14):
            payload = b"%d" % number + bytes(1500)
            position = await journal.append(payload)
            acknowledged[position] = payload
            if number % 3:
                # Neither there nor gone until it is acknowledged.
                del acknowledged[position]
                await journal.delete(position)
        store.failpoint["journal.compact_early"] = True
        await trio.sleep(3)


async def _count_calls(call: DiskCall) -> int:
    counted = 0

    def count(operation: DiskOperation) -> None:
        nonlocal counted
        counted += operation.call == call

    store = Store()
    store.disk.watch = count
    await _short_run(store, {})
    return counted


@pytest.mark.slow
@pytest.mark.parametrize("call", CALLS)
async def test_an_error_of_any_call_stops_the_journal_and_loses_nothing(call: DiskCall) -> None:
    total = await _count_calls(call)
    assert total >= 5
    stopped = 0
    for number in range(total):
        store = Store()
        acknowledged: dict[int, bytes] = {}
        store.disk.faults.inject(call, errno.EIO, skip=number)
        synced: list[str] = []
        store.disk.watch = lambda operation, synced=synced: _note(operation, synced)
        try:
            await _short_run(store, acknowledged)
        except JournalBrokenError as error:
            stopped += 1
            assert isinstance(error.__cause__, OSError)
            assert error.outcome == ("not_done" if "can't be opened" in str(error) else "unknown")
        store.disk.watch = None
        # The process ends; what it wrote is in the cache, durable or not, and then the power goes, too.
        for end in (store.disk.kill, store.disk.power_loss):
            end()
            found = {record.position: record.payload for record in store.records() if not record.tombstone}
            assert {p: found.get(p) for p in acknowledged} == acknowledged, f"{call} number {number}"
    assert stopped >= total - 6, "only calls while closing can fail without being told"


def _note(operation: DiskOperation, synced: list[str]) -> None:
    if operation.call == "sync":
        synced.append(operation.path)


@pytest.mark.parametrize("call", ["write", "sync", "replace"])
async def test_a_journal_that_has_failed_leaves_no_file_open(call: DiskCall) -> None:
    for number in range(16):
        store = Store()
        disk = store.disk.mount()
        store.disk.faults.inject(call, errno.EIO, skip=number)
        with contextlib.suppress(JournalBrokenError):
            async with store.journal(env=journal_env(disk)) as journal:
                await journal.append_many([bytes(1500)] * 40)
        assert not disk.files, f"{call} number {number}"


async def test_a_failed_sync_is_never_tried_again(store: Store) -> None:
    synced: list[str] = []
    store.disk.watch = lambda operation: _note(operation, synced)
    with pytest.raises(JournalBrokenError):
        async with store.journal() as journal:
            await journal.append(b"x")
            path = next(path for path in reversed(synced) if path.endswith(".seg"))
            store.disk.faults.inject("sync", path=path)
            synced.clear()
            await journal.append(b"y")
    assert path not in synced


async def test_the_lock_is_released_last_also_after_a_failure(store: Store) -> None:
    with pytest.raises(JournalBrokenError):
        async with store.journal() as journal:
            store.disk.faults.inject("sync", path=".seg")
            await journal.append(b"x")
    async with store.journal() as journal:
        await journal.append(b"z")


async def test_what_was_in_the_cache_only_is_made_durable_before_it_is_served() -> None:
    served = 0
    for seed in range(20):
        store = Store(disk=SimDisk(random.Random(seed)))
        with pytest.raises(JournalBrokenError):
            async with store.journal() as journal:
                await journal.append(b"durable")
                store.disk.faults.inject("sync", path=store.segments()[0])
                await journal.append(b"written, and the sync failed")
        journal = store.journal()
        await journal.open()
        found = [record.payload for record in journal.recovered()]
        assert found[0] == b"durable"
        served += len(found) == 2
        # The pages count as clean, so nothing but another write makes them durable.
        store.disk.power_loss()
        assert [record.payload for record in store.records()] == found
        await journal.aclose()
    assert served >= 3


async def test_short_writes_are_continued(store: Store) -> None:
    store.disk.faults.short_write_rate = 0.5
    async with store.journal() as journal:
        await journal.append_many([bytes(500)] * 40)
    assert store.disk.faults.counts["disk.short_write"] > 10
    assert len(store.records()) == 40


async def test_an_opening_that_fails_gives_the_lock_back(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"x")
    store.disk.faults.inject("read", path=".seg")
    with pytest.raises(JournalBrokenError) as caught:
        async with store.journal():
            pass
    assert caught.value.outcome == "not_done"
    async with store.journal() as journal:
        assert await replayed(journal) == [(1, b"x")]


async def test_a_replay_on_a_disk_that_cannot_be_read_says_so(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"x")
        store.disk.faults.inject("read", path=".seg")
        with pytest.raises(JournalBrokenError):
            await replayed(journal)
        assert await replayed(journal) == [(1, b"x")]


# -- a full disk ---------------------------------------------------------------------------------------------------


async def _fill(journal: Journal) -> list[int]:
    """Append until there is no room."""
    positions: list[int] = []
    with pytest.raises(AddressFullError) as caught:
        while True:
            positions.append(journal.append_nowait(1, [bytes(900)]))
            with trio.move_on_after(60):
                await journal.wait_durable(positions[-1])
    assert caught.value.outcome == "not_done"
    return positions


@pytest.mark.parametrize("room", [0, 100, SEGMENT_BYTES // 2, SEGMENT_BYTES, 3 * SEGMENT_BYTES + 100])
async def test_on_a_full_disk_records_are_refused_and_tombstones_go_on_until_there_is_space(
    store: Store, room: int
) -> None:
    changes: list[bool] = []
    async with store.journal() as journal:
        journal.attach(make_owner(full_changed=lambda: changes.append(journal.full)))
        positions = await journal.append_many([bytes(900)] * 50)
        await journal.append(b"first")
        await trio.sleep(1)
        store.disk.capacity_bytes = store.disk.used_bytes() + room
        positions += await _fill(journal)
        assert journal.full
        assert journal.statistics().full
        assert changes == [True]
        # Draining is possible, and what it gives back is found without anybody asking.
        for position in positions:
            await journal.wait_durable(journal.append_nowait(2, [], tombstone=True, deletes=[position]))
        await trio.sleep(60)
        assert not journal.full
        assert changes == [True, False] * (len(changes) // 2)
        await journal.append(b"last")
    assert [record.payload for record in store.records() if record.kind == 1] == [b"first", b"last"]


async def test_a_full_disk_that_is_enlarged_is_noticed(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"first")
        store.disk.capacity_bytes = 0
        positions = await _fill(journal)
        await trio.sleep(100)
        assert journal.full
        store.disk.capacity_bytes = math.inf
        await trio.sleep(10)
        assert not journal.full
        assert await journal.append(b"last") == positions[-1] + 1


@pytest.mark.parametrize("error", [errno.EMFILE, errno.ENFILE])
async def test_no_descriptor_for_a_new_file_is_no_broken_disk(store: Store, error: int) -> None:
    async with store.journal() as journal:
        await journal.append(b"first")
        await trio.sleep(1)
        store.disk.faults.inject("create", error, times=40)
        positions = await _fill(journal)
        assert journal.full and journal.state == "open"
        # What is here can be drained meanwhile.
        await journal.wait_durable(journal.append_nowait(2, [], tombstone=True, deletes=[positions[0]]))
        await trio.sleep(1_000)
        assert not journal.full
        await journal.append(b"last")
    assert [record.payload for record in store.records() if len(record.payload) < 900 and record.kind == 1] == [
        b"first",
        b"last",
    ]


async def test_a_manifest_without_space_takes_the_ballast_and_then_waits(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"first")
        await trio.sleep(1)
        for _ in range(3):
            store.disk.faults.inject("write", errno.ENOSPC, path="manifest", times=3)
            with trio.fail_after(100):
                await journal.append_many([bytes(900)] * 30)
    assert len(store.records()) == 91


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
async def test_closing_on_a_full_disk_ends_and_says_what_could_not_be_written(store: Store, error: int) -> None:
    with pytest.raises(JournalBrokenError), trio.fail_after(1_000):
        async with store.journal() as journal:
            await journal.append(b"first")
            await trio.sleep(1)
            store.disk.faults.inject("write", error, path=".seg", skip=20, times=math.inf)
            store.disk.faults.inject("create", error, times=math.inf)
            await _fill(journal)
    assert store.records()[0].payload == b"first"


async def test_closing_on_a_full_disk_with_nothing_left_to_write_is_no_failure(store: Store) -> None:
    async with store.journal() as journal:
        positions = await journal.append_many([bytes(900)] * 40)
        await trio.sleep(5)
        for position in positions[:39]:
            await journal.wait_durable(journal.append_nowait(2, [], tombstone=True, deletes=[position]))
        store.disk.capacity_bytes = 0
        store.disk.faults.inject("write", errno.ENOSPC, path="manifest", times=math.inf)
        # The reclaiming begins, and waits for room.
        await trio.sleep(2)
        journal.append_nowait(2, [b"half"], tombstone=True, refs=[positions[39]])
    assert journal.state == "closed"
    store.disk.capacity_bytes = math.inf
    assert [record.payload for record in store.records() if record.kind == 1 or record.refs] == [bytes(900), b"half"]


async def test_a_record_larger_than_the_reserve_waits_for_space(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"first")
        await trio.sleep(1)
        store.disk.capacity_bytes = store.disk.used_bytes()
        position = journal.append_nowait(1, [bytes(3 * SEGMENT_BYTES)])
        await trio.sleep(100)
        assert journal.durable < position
        store.disk.capacity_bytes = math.inf
        with trio.fail_after(20):
            await journal.wait_durable(position)


async def test_a_new_store_on_a_full_disk_is_refused(store: Store) -> None:
    store.disk.capacity_bytes = 50
    with pytest.raises(JournalBrokenError) as caught:
        async with store.journal():
            pass
    assert caught.value.outcome == "not_done"
    assert caught.value.__cause__ is not None
    store.disk.capacity_bytes = math.inf
    async with store.journal() as journal:
        await journal.append(b"x")
