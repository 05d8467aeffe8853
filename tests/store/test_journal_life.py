"""The life cycle of a journal: a table that says what may follow what, and what each call does in each state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from meshq.errors import BusyError, ClosedError, InvariantError, JournalBrokenError, UsageError
from meshq.store import Journal
from meshq.store.commit._journal_life import JOURNAL_TRANSITIONS, JournalLife
from meshq.testing import InlineThreads
from qa.journal.model import journal_env
from tests.store.kit import Store


class SlowThreads(InlineThreads):
    """Threads in which one step waits until a test lets it go."""

    def __init__(self, step: str = "recover") -> None:
        super().__init__()
        self.step = step
        self.go_on = trio.Event()
        self.waits = trio.Event()

    async def run(self, function: Callable[..., Any], *arguments: object, pool: str = "default") -> Any:
        if getattr(function, "__name__", "") == self.step:
            self.waits.set()
            # As with a real thread, a cancellation does not end the call.
            with trio.CancelScope(shield=True):
                await self.go_on.wait()
        return await super().run(function, *arguments, pool=pool)


async def test_a_journal_that_is_closed_while_it_is_opened_is_closed_when_the_step_is_done(store: Store) -> None:
    threads = SlowThreads()
    journal = store.journal(env=journal_env(store.disk, threads=threads))
    ended: list[str] = []

    async def open_it() -> None:
        with pytest.raises(ClosedError, match="closed while it was being opened"):
            await journal.open()
        ended.append("open")

    async def close_it() -> None:
        await journal.aclose()
        assert journal.state == "closed"
        ended.append("aclose")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_it)
        await threads.waits.wait()
        nursery.start_soon(close_it)
        nursery.start_soon(close_it)
        await trio.testing.wait_all_tasks_blocked()
        # The lock is held as long as the step may write.
        assert not ended and journal.state == "opening"
        with pytest.raises(BusyError):
            await store.journal().open()
        threads.go_on.set()
    assert sorted(ended) == ["aclose", "aclose", "open"]
    with pytest.raises(ClosedError):
        journal.append_nowait(1, [b"x"])
    async with store.journal() as following:
        await following.append(b"the store is as good as new")


async def test_a_journal_that_was_never_opened_can_be_closed_and_touches_nothing(store: Store) -> None:
    journal = store.journal()
    await journal.aclose()
    await journal.aclose()
    assert journal.state == "closed" and store.disk.files() == []


async def test_a_journal_that_is_closed_before_its_tasks_begin_writes_what_was_placed(store: Store) -> None:
    async with store.journal() as journal:
        journal.append_nowait(1, [b"placed before any task ran"])
    assert [record.payload for record in store.records()] == [b"placed before any task ran"]


async def test_a_journal_whose_run_was_cancelled_takes_records_until_it_is_closed(store: Store) -> None:
    journal = store.journal()
    await journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        nursery.cancel_scope.cancel()
    assert journal.state == "open"
    journal.append_nowait(1, [b"late"])
    await journal.aclose()
    assert [record.payload for record in store.records()] == [b"late"]


async def _run_with_refusal(journal: Journal, refused: list[UsageError]) -> None:
    try:
        await journal.run()
    except UsageError as error:
        refused.append(error)


@pytest.mark.parametrize("first_run", ["before aclose", "during aclose"])
async def test_a_second_run_is_refused_while_the_last_records_are_written(store: Store, first_run: str) -> None:
    threads, refused = SlowThreads("write_segment_header"), list[UsageError]()
    journal = store.journal(env=journal_env(store.disk, threads=threads))
    await journal.open()
    async with trio.open_nursery() as nursery:
        if first_run == "before aclose":
            nursery.start_soon(journal.run)
            await trio.testing.wait_all_tasks_blocked()
        journal.append_nowait(1, [b"x"])
        nursery.start_soon(journal.aclose)
        await threads.waits.wait()
        if first_run == "during aclose":
            # ``aclose`` came before the task of ``run`` began, and writes the record itself.
            await journal.run()
        nursery.start_soon(_run_with_refusal, journal, refused)
        await trio.testing.wait_all_tasks_blocked()
        threads.go_on.set()
    assert ["does not run yet" in str(error) for error in refused] == [True]
    assert journal.state == "closed"
    assert [record.payload for record in store.records()] == [b"x"]


async def test_a_failed_journal_stays_failed_when_it_is_closed(store: Store) -> None:
    journal = store.journal()
    await journal.open()
    store.disk.faults.inject("sync", path=".seg")
    journal.append_nowait(1, [b"x"])
    with pytest.raises(JournalBrokenError):
        await journal.run()
    await journal.aclose()
    await journal.aclose()
    assert journal.state == "failed"
    store.disk.faults.clear()
    async with store.journal() as following:
        assert following.state == "open"


def test_every_state_has_a_word_for_owners_and_an_illegal_event_changes_nothing() -> None:
    seen = set()
    for state, legal in JOURNAL_TRANSITIONS.items():
        for event in ("open", "recover", "run", "halt", "close", "fail", "end"):
            life = JournalLife()
            life._life.state = state
            seen.add(life.shown)
            if event in legal:
                assert life.on(event) == legal[event]
            else:
                with pytest.raises(InvariantError, match=event):
                    life.on(event)
                assert life.state == state
    assert seen == {"new", "opening", "open", "failed", "closed"}


def test_only_the_first_error_is_the_reason_and_a_closed_journal_has_none() -> None:
    life = JournalLife()
    for event in ("open", "recover", "run"):
        life.on(event)
    assert life.taking and not life.ending and not life.closing
    assert life.fail(OSError("first"))
    assert not life.fail(OSError("second"))
    assert "first" in str(life.broken()) and life.ending and not life.taking
    closed = JournalLife()
    closed.on("close")
    assert not closed.fail(OSError("late")) and closed.failure is None


async def test_a_journal_without_a_working_directory_is_not_opened_and_can_be_closed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = Journal("relative", env=journal_env(store.disk))
    removed = tmp_path / "removed"
    removed.mkdir()
    monkeypatch.chdir(removed)
    removed.rmdir()
    with pytest.raises(JournalBrokenError, match="can't be opened") as caught:
        await journal.open()
    assert caught.value.outcome == "not_done" and journal.state == "closed"
    await journal.aclose()


async def test_a_journal_that_is_closed_while_it_is_locked_recovers_nothing(store: Store) -> None:
    threads = SlowThreads("_enter_directory")
    journal = store.journal(env=journal_env(store.disk, threads=threads))

    async def open_it() -> None:
        with pytest.raises(ClosedError, match="closed while it was being opened"):
            await journal.open()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(open_it)
        await threads.waits.wait()
        nursery.start_soon(journal.aclose)
        await trio.testing.wait_all_tasks_blocked()
        threads.go_on.set()
    assert journal.state == "closed"
    assert [path for path in store.disk.files() if not path.endswith("/lock")] == []
    async with store.journal() as following:
        await following.append(b"x")
