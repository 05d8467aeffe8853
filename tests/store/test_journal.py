"""The journal as its owner sees it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq.env import real_env
from meshq.errors import (
    BusyError,
    ClosedError,
    JournalBrokenError,
    NotFoundError,
    SettingsError,
    UsageError,
)
from meshq.limits import RECORD_BYTES_MAX, SEGMENT_BYTES_MAX
from meshq.store import Journal
from tests.store.kit import Store, make_owner, replayed


async def test_what_was_appended_is_there_after_reopening(store: Store) -> None:
    async with store.journal() as journal:
        assert await journal.append(b"one") == 1
        assert await journal.append_many([b"two", b"three"]) == [2, 3]
        assert await journal.append_many([]) == []
        await journal.delete(2)
        assert await replayed(journal) == [(1, b"one"), (3, b"three")]
    async with store.journal() as journal:
        assert await replayed(journal) == [(1, b"one"), (3, b"three")]
        assert await journal.append(b"five") == 5


async def test_an_acknowledged_record_is_on_disk_before_append_returns(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"one")
        for image in store.disk.crash_images():
            crashed = Store(disk=image)
            assert [record.payload for record in crashed.records()] == [b"one"]


async def test_a_deleted_record_stays_deleted_and_cannot_be_deleted_again(store: Store) -> None:
    async with store.journal() as journal:
        position = await journal.append(b"x")
        await journal.delete(position)
        for missing in (position, 0, 99):
            with pytest.raises(NotFoundError, match=str(missing)):
                await journal.delete(missing)
    assert store.records() == [] or all(record.tombstone for record in store.records())


async def test_a_record_that_is_not_durable_yet_can_be_deleted(store: Store) -> None:
    async with store.journal() as journal:
        position = journal.append_nowait(1, [b"x"])
        await journal.delete(position)
        assert await replayed(journal) == []


async def test_building_a_journal_touches_nothing(store: Store) -> None:
    journal = store.journal()
    assert store.disk.calls == 0
    assert journal.state == "new"
    assert "new" in repr(journal)
    await journal.aclose()
    assert journal.state == "closed"
    assert store.disk.calls == 0


@pytest.mark.parametrize("size", [1023, SEGMENT_BYTES_MAX + 1])
def test_a_segment_size_out_of_range_is_refused_with_the_range(store: Store, size: int) -> None:
    with pytest.raises(SettingsError, match=rf"segment_bytes={size}.*1024 to {SEGMENT_BYTES_MAX}"):
        store.journal(segment_bytes=size)


@pytest.mark.parametrize("directory", ["", "a\0b"])
def test_a_journal_has_a_directory_and_never_that_of_everything(directory: str) -> None:
    with pytest.raises(SettingsError, match="directory="):
        Journal(directory)


def test_a_node_id_of_another_length_is_refused(store: Store) -> None:
    with pytest.raises(SettingsError, match="16 bytes"):
        store.journal(node_id=b"short")


async def test_the_node_id_is_random_at_first_and_then_stays(store: Store) -> None:
    async with store.journal() as journal:
        first = journal.node_id
    async with store.journal() as journal:
        assert journal.node_id == first
    other = Store()
    other.lives = 7
    async with other.journal() as journal:
        assert journal.node_id != first


async def test_a_store_of_another_node_is_refused_and_not_changed(store: Store) -> None:
    async with store.journal(node_id=b"a" * 16) as journal:
        assert journal.node_id == b"a" * 16
    calls = {name: store.disk.content(name) for name in store.disk.files()}
    with pytest.raises(SettingsError, match=(b"a" * 16).hex()):
        async with store.journal(node_id=b"b" * 16):
            pass
    assert calls == {name: store.disk.content(name) for name in store.disk.files()}


async def test_the_node_id_is_not_known_before_the_journal_is_open(store: Store) -> None:
    with pytest.raises(UsageError):
        _ = store.journal().node_id
    with pytest.raises(ClosedError):
        store.journal().statistics()


async def test_a_second_journal_on_the_directory_is_refused_with_its_name(store: Store) -> None:
    async with store.journal() as journal:
        with pytest.raises(BusyError, match="/store"):
            async with store.journal():
                pass
        await journal.append(b"the first one goes on")
    async with store.journal() as journal:
        assert await replayed(journal) == [(1, b"the first one goes on")]


async def test_a_journal_is_opened_once_and_runs_once(store: Store) -> None:
    async with store.journal() as journal:
        with pytest.raises(BusyError):
            await journal.open()
        with pytest.raises(UsageError):
            await journal.run()
        with pytest.raises(UsageError):
            journal.recovered()


async def test_a_closed_journal_says_so(store: Store) -> None:
    async with store.journal() as journal:
        pass
    with pytest.raises(ClosedError):
        await journal.append(b"x")
    await journal.aclose()
    assert journal.state == "closed"


@pytest.mark.parametrize("kind", [0, -1, 256])
async def test_a_kind_out_of_range_is_refused(store: Store, kind: int) -> None:
    async with store.journal() as journal:
        with pytest.raises(UsageError, match="1 to 255"):
            journal.append_nowait(kind, [b"x"])
        assert journal.last == 0


async def test_a_record_that_is_too_large_is_refused_and_the_largest_is_not(store: Store) -> None:
    async with store.journal() as journal:
        with pytest.raises(UsageError, match=str(RECORD_BYTES_MAX)):
            await journal.append(bytes(RECORD_BYTES_MAX + 1))
        assert await journal.append(bytes(RECORD_BYTES_MAX)) == 1
        assert await journal.append(b"after it") == 2
    assert [len(record.payload) for record in store.records()] == [RECORD_BYTES_MAX, 8]


async def test_a_tombstone_about_nothing_is_refused(store: Store) -> None:
    async with store.journal() as journal:
        with pytest.raises(UsageError, match="a tombstone needs"):
            journal.append_nowait(2, [b"x"], tombstone=True)


@pytest.mark.parametrize("target", [0, -3, 2, math.inf])
async def test_a_record_has_earlier_targets_only(store: Store, target: int) -> None:
    async with store.journal() as journal:
        await journal.append(b"x")
        for targets in ({"deletes": [1, target]}, {"refs": [target]}):
            with pytest.raises(UsageError, match="earlier records"):
                journal.append_nowait(2, [], tombstone=True, **targets)
        assert journal.last == 1


async def test_what_the_body_raises_leaves_the_block_as_it_was(store: Store) -> None:
    class OwnError(Exception):
        pass

    error = OwnError()
    with pytest.raises(OwnError) as caught:
        async with store.journal() as journal:
            await journal.append(b"x")
            raise error
    assert caught.value is error
    assert journal.state == "closed"
    assert [record.payload for record in store.records()] == [b"x"]


async def test_a_cancelled_block_flushes_and_closes(store: Store) -> None:
    with trio.CancelScope() as scope:
        async with store.journal() as journal:
            journal.append_nowait(1, [b"placed"], lazy=True)
            scope.cancel()
            await trio.sleep_forever()
    assert scope.cancelled_caught
    assert journal.state == "closed"
    assert [record.payload for record in store.records()] == [b"placed"]


async def test_a_disk_that_fails_cancels_the_body_and_is_what_the_block_raises(store: Store) -> None:
    reached = False
    with pytest.raises(JournalBrokenError) as caught:
        async with store.journal() as journal:
            await journal.append(b"x")
            store.disk.faults.inject("sync", path=".seg")
            journal.append_nowait(1, [b"y"])
            await trio.sleep_forever()
            reached = True
    assert not reached
    assert isinstance(caught.value.__cause__, OSError)
    assert caught.value.outcome == "unknown"
    assert journal.state == "failed"


async def test_an_error_of_the_body_goes_along_when_the_disk_fails(store: Store) -> None:
    with pytest.raises(JournalBrokenError) as caught:
        async with store.journal() as journal:
            store.disk.faults.inject("sync", path=".seg")
            try:
                await journal.append(b"x")
            except JournalBrokenError:
                raise KeyError("the body's own") from None
    assert isinstance(caught.value.__context__, KeyError)


async def test_an_interrupt_of_the_body_goes_before_a_failure_of_the_disk(store: Store) -> None:
    with pytest.raises(KeyboardInterrupt):
        async with store.journal() as journal:
            store.disk.faults.inject("sync", path=".seg")
            with pytest.raises(JournalBrokenError):
                await journal.append(b"x")
            raise KeyboardInterrupt
    assert journal.state == "failed"


async def test_a_disk_that_fails_while_the_journal_is_closed_is_what_the_block_raises(store: Store) -> None:
    with pytest.raises(JournalBrokenError) as caught:
        async with store.journal() as journal:
            journal.append_nowait(1, [b"x"], lazy=True)
            store.disk.faults.inject("sync", path=".seg")
    assert isinstance(caught.value.__cause__, OSError)
    assert journal.state == "failed"


async def test_an_owner_with_a_nursery_of_its_own_runs_the_pieces(store: Store) -> None:
    journal = store.journal()
    await journal.open()
    assert list(journal.recovered()) == []
    early = journal.append_nowait(1, [b"placed before it runs"])
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await journal.wait_durable(early)
        late = journal.append_nowait(1, [b"flushed by aclose"], lazy=True)
        await journal.aclose()
    assert journal.durable == late
    assert len(store.records()) == 2


async def test_aclose_flushes_what_was_placed_although_run_was_cancelled(store: Store) -> None:
    journal = store.journal()
    await journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        await journal.append(b"x")
        nursery.cancel_scope.cancel()
    journal.append_nowait(1, [b"y"])
    await journal.aclose()
    assert [record.payload for record in store.records()] == [b"x", b"y"]


async def test_aclose_without_run_flushes_too(store: Store) -> None:
    journal = store.journal()
    await journal.open()
    journal.append_nowait(1, [b"x"])
    await journal.aclose()
    assert [record.payload for record in store.records()] == [b"x"]


async def test_two_tasks_may_close_at_once(store: Store) -> None:
    journal = store.journal()
    await journal.open()
    journal.append_nowait(1, [b"x"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.aclose)
        nursery.start_soon(journal.aclose)
    assert journal.state == "closed"


async def test_a_clean_end_leaves_no_preallocated_segment_and_seals_the_last_one(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"x")
        await trio.sleep(10)
    assert set(store.report().sums()) == {
        *("lock", "identity", "manifest", "header", "batch", "watermark", "index", "zeros"),
    }
    assert all(entry.sealed for entry in store.manifest().entries)


async def test_a_journal_without_records_leaves_no_segment(store: Store) -> None:
    async with store.journal():
        await trio.sleep(10)
    assert store.segments() == []


async def test_a_defect_in_a_callback_comes_out_as_itself(store: Store) -> None:
    def on_durable(position: int) -> None:
        raise ZeroDivisionError

    journal = store.journal()
    journal.attach(make_owner(durable_moved=on_durable))
    await journal.open()
    journal.append_nowait(1, [b"x"])
    with pytest.raises(ZeroDivisionError):
        await journal.run()
    assert journal.state == "failed"
    await journal.aclose()


async def test_what_is_not_bytes_is_refused_and_the_journal_goes_on(store: Store) -> None:
    body = bytearray(b"two")
    wrongs: list[Any] = ["text", None, 7, ["a"]]
    async with store.journal() as journal:
        assert await journal.append(b"one") == 1
        for wrong in wrongs:
            with pytest.raises(SettingsError, match="payload="):
                await journal.append(wrong)
            with pytest.raises(SettingsError, match="payload="):
                await journal.append_many([b"never", wrong])
        for odd in ("1", None, 1.0):
            with pytest.raises(SettingsError, match="position="):
                await journal.delete(odd)  # type: ignore[arg-type]
        with pytest.raises(SettingsError, match="payload="):
            await journal.append_many(b"abc")  # type: ignore[arg-type]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.append, body)
            for _ in range(2):
                await trio.lowlevel.checkpoint()
            # What is changed after the call has begun is not what was given.
            body[:] = b"!!!"
        assert await replayed(journal) == [(1, b"one"), (2, b"two")]


@pytest.mark.real
async def test_the_real_disk_keeps_a_journal(tmp_path: Path) -> None:
    directory = tmp_path / "deep" / "data"
    async with Journal(directory) as journal:
        await journal.append_many([b"a", b"b"])
        await journal.delete(1)
        # A third, if the machine took so long that the journal was idle and wrote its watermark.
        assert journal.statistics().syncs in (2, 3)
    async with Journal(directory, env=real_env()) as journal:
        assert await replayed(journal) == [(2, b"b")]
    for path in directory.rglob("*"):
        assert path.stat().st_mode & 0o077 == 0, f"{path} is open to others"


@pytest.mark.real
async def test_a_relative_directory_stays_where_it_was_when_the_program_changes_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    async with Journal("data", segment_bytes=64 * 1024) as journal:
        monkeypatch.chdir(tmp_path / "elsewhere")
        await journal.append_many([bytes(5_000)] * 60)
    assert list((tmp_path / "elsewhere").iterdir()) == []
    async with Journal(tmp_path / "data") as journal:
        assert len(await replayed(journal)) == 60
