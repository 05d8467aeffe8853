"""What the calls of a journal raise when they are wrong, the disk is full or fails, or the journal is closed."""

from __future__ import annotations

import errno
from collections.abc import Awaitable, Callable

import pytest
import trio

from meshq import limits
from meshq.errors import AddressFullError, ClosedError, DamagedError, JournalBrokenError, UsageError
from meshq.store import Journal
from tests.store.kit import Store

#: Every call that writes.
WRITES: dict[str, Callable[[Journal], Awaitable[object]]] = {
    "append": lambda journal: journal.append(bytes(900)),
    "append_many": lambda journal: journal.append_many([bytes(900)] * 3),
}


@pytest.mark.parametrize("call", WRITES)
async def test_on_a_full_disk_nothing_is_written_and_that_is_said(store: Store, call: str) -> None:
    async with store.journal() as journal:
        await journal.append(b"first")
        await trio.sleep(1)
        store.disk.capacity_bytes = store.disk.used_bytes()
        with pytest.raises(AddressFullError, match="no room") as caught:
            while True:
                with trio.move_on_after(60):
                    await WRITES[call](journal)
        assert caught.value.outcome == "not_done"
        store.disk.capacity_bytes = 1 << 30


async def test_of_records_one_of_which_is_too_large_those_before_it_are_written(store: Store) -> None:
    async with store.journal() as journal:
        with pytest.raises(UsageError, match=rf"at most {limits.RECORD_BYTES_MAX} bytes") as caught:
            await journal.append_many([b"first", bytes(limits.RECORD_BYTES_MAX + 1), b"last"])
        assert caught.value.outcome == "not_done"
        await journal.append(b"next")
    assert [record.payload for record in store.records()] == [b"first", b"next"]


@pytest.mark.parametrize("call", [*WRITES, "delete"])
async def test_when_the_disk_fails_it_is_unknown_what_was_written(store: Store, call: str) -> None:
    with pytest.raises(JournalBrokenError, match="the journal's disk failed"):
        async with store.journal() as journal:
            position = await journal.append(b"first")
            store.disk.faults.inject("sync", errno.EIO, path=store.segments()[0])
            with pytest.raises(JournalBrokenError, match="the journal's disk failed") as caught:
                await (journal.delete(position) if call == "delete" else WRITES[call](journal))
            assert caught.value.outcome == "unknown"
            assert caught.value.__cause__ is not None


@pytest.mark.parametrize("call", [*WRITES, "delete"])
async def test_a_journal_that_is_closed_writes_nothing(store: Store, call: str) -> None:
    async with store.journal() as journal:
        position = await journal.append(b"first")
    with pytest.raises(ClosedError, match="the journal is closed") as caught:
        await (journal.delete(position) if call == "delete" else WRITES[call](journal))
    assert caught.value.outcome == "not_done"


async def test_a_journal_that_is_not_open_does_not_run(store: Store) -> None:
    journal = store.journal()
    with pytest.raises(UsageError, match="this one is new") as caught:
        await journal.run()
    assert caught.value.outcome == "not_done"


async def test_what_was_there_is_read_once_between_opening_and_running(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"first")
    journal = store.journal()
    with pytest.raises(UsageError, match="once, between open and run"):
        journal.recovered()
    await journal.open()
    assert [record.payload for record in journal.recovered()] == [b"first"]
    with pytest.raises(UsageError, match="once, between open and run") as caught:
        journal.recovered()
    assert caught.value.outcome == "not_done"
    await journal.aclose()


async def test_what_can_not_be_read_again_is_told_while_it_is_read(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"first")
    for fault, expected in (("read", OSError), ("gone", DamagedError)):
        journal = store.journal()
        await journal.open()
        records = journal.recovered()
        if fault == "read":
            store.disk.faults.inject("read", errno.EIO, path=".seg")
        else:
            store.disk.remove(store.segments()[0])
            store.damaged = True
        with pytest.raises(expected):
            list(records)
        store.disk.faults.clear()
        await journal.aclose()


async def test_records_that_stand_together_are_refused_as_one(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"first")
        with pytest.raises(UsageError, match=rf"at most {limits.BATCH_BYTES_MAX} bytes") as usage:
            together(journal, limits.BATCH_BYTES_MAX)
        await trio.sleep(1)
        store.disk.capacity_bytes = store.disk.used_bytes()
        with pytest.raises(AddressFullError, match="no room") as full:
            while True:
                with trio.move_on_after(60):
                    together(journal, 2_000)
                    await journal.wait_durable(journal.last)
        store.disk.capacity_bytes = 1 << 30
    with pytest.raises(ClosedError, match="the journal is closed") as closed:
        together(journal, 100)
    assert {error.value.outcome for error in (usage, full, closed)} == {"not_done"}


async def test_records_that_stand_together_are_refused_by_a_disk_that_has_failed(store: Store) -> None:
    with pytest.raises(JournalBrokenError):
        async with store.journal() as journal:
            await journal.append(b"first")
            store.disk.faults.inject("sync", errno.EIO, path=store.segments()[0])
            with pytest.raises(JournalBrokenError):
                await journal.append(b"second")
            with pytest.raises(JournalBrokenError, match="the journal's disk failed") as caught:
                together(journal, 100)
            assert caught.value.outcome == "not_done"


def together(journal: Journal, size_bytes: int) -> None:
    """Two records that are there together, or not at all."""
    with journal.atomic_batch(size_bytes):
        for _ in range(2):
            journal.append_nowait(1, [bytes(900)])
