"""Who shares a sync with whom, who waits for what, and in which order one is told."""

from __future__ import annotations

import pytest
import trio

from meshq.errors import JournalBrokenError
from meshq.limits import LAZY_COMMIT_S
from meshq.store import Journal
from meshq.store.commit._inline_sync_plan import LONG_S, PAUSE_S_MIN, RECENT_MIN, SHORT_S, InlineSync
from tests.store.kit import Store, make_owner, replayed


async def _append(journal: Journal, count: int) -> None:
    for number in range(count):
        await journal.append(b"%d" % number)


async def test_tasks_that_place_together_share_a_sync(store: Store) -> None:
    async with store.journal() as journal:
        async with trio.open_nursery() as nursery:
            for _ in range(20):
                nursery.start_soon(_append, journal, 3)
        # Each task waits for its record before it places the next one: three rounds, with a little slack.
        assert journal.statistics().batches <= 6
        assert journal.statistics().last == 60


async def test_what_is_placed_in_one_turn_is_one_batch(store: Store) -> None:
    async with store.journal() as journal:
        for number in range(50):
            journal.append_nowait(1, [b"%d" % number])
        await journal.wait_durable(50)
        assert journal.statistics().batches == 1


async def test_a_large_batch_is_split_and_order_is_kept(store: Store) -> None:
    async with store.journal() as journal:
        for number in range(60):
            journal.append_nowait(1, [b"%d" % number, bytes(300)])
        await journal.wait_durable(60)
        assert journal.statistics().batches > 5
        assert [int(payload.rstrip(b"\0")) for _, payload in await replayed(journal)] == list(range(60))


async def test_lazy_records_wait_for_company_but_not_for_long(store: Store) -> None:
    async with store.journal() as journal:
        await journal.append(b"x")
        begun = trio.current_time()
        position = journal.append_nowait(1, [b"lazy"], lazy=True)
        await trio.sleep(LAZY_COMMIT_S / 2)
        assert journal.durable < position
        await trio.sleep(LAZY_COMMIT_S)
        assert journal.durable == position
        assert trio.current_time() - begun < 2 * LAZY_COMMIT_S


async def test_company_takes_lazy_records_along_at_once(store: Store) -> None:
    async with store.journal() as journal:
        begun = trio.current_time()
        journal.append_nowait(1, [b"lazy"], lazy=True)
        await journal.append(b"company")
        assert trio.current_time() == begun
        assert journal.durable == 2
        assert journal.statistics().batches == 1


@pytest.mark.parametrize("lingering", [False, True])
async def test_whoever_hurries_does_not_wait_for_company(store: Store, lingering: bool) -> None:
    async with store.journal() as journal:
        begun = trio.current_time()
        position = journal.append_nowait(1, [b"lazy"], lazy=True)
        if lingering:
            await trio.sleep(LAZY_COMMIT_S / 4)
            begun = trio.current_time()
        journal.request_commit()
        await trio.testing.wait_all_tasks_blocked()
        assert journal.durable == position
        assert trio.current_time() == begun


async def test_waiting_for_a_lazy_record_is_hurry_enough(store: Store) -> None:
    async with store.journal() as journal:
        begun = trio.current_time()
        await journal.wait_durable(journal.append_nowait(1, [b"lazy"], lazy=True))
        assert trio.current_time() == begun


async def test_with_its_failpoint_lazy_records_wait_much_longer(store: Store) -> None:
    store.failpoint["journal.lazy_long"] = True
    async with store.journal() as journal:
        journal.append_nowait(1, [b"lazy"], lazy=True)
        await trio.sleep(LAZY_COMMIT_S * 10)
        assert journal.durable == 0


async def test_with_its_failpoint_each_record_is_a_batch(store: Store) -> None:
    store.failpoint["journal.batch_of_one"] = True
    async with store.journal() as journal:
        await journal.append_many([b"a", b"b", b"c"])
        assert journal.statistics().batches == 3


async def test_durable_positions_are_told_in_order_and_after_the_sync(store: Store) -> None:
    told: list[int] = []
    store.failpoint["journal.batch_of_one"] = True

    async with store.journal() as journal:

        def on_durable(position: int) -> None:
            told.append(position)
            assert position == journal.durable
            assert len(store.records()) == position

        journal.attach(make_owner(durable_moved=on_durable))
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(_append, journal, 4)
    assert told == list(range(1, 13))


async def test_a_watermark_tells_nobody(store: Store) -> None:
    told: list[int] = []
    async with store.journal() as journal:
        journal.attach(make_owner(durable_moved=told.append))
        await journal.append(b"x")
        await trio.sleep(10)
        assert told == [1]
        assert journal.statistics().syncs == 2
        calls = store.disk.calls
        await trio.sleep(1_000)
        assert store.disk.calls == calls, "an idle journal does nothing"


async def test_waiting_for_what_was_never_placed_is_a_defect_of_the_caller(store: Store) -> None:
    async with store.journal() as journal:
        with pytest.raises(AssertionError):
            await journal.wait_durable(1)
        await journal.wait_durable(0)


async def test_a_cancelled_wait_leaves_the_record_placed(store: Store) -> None:
    async with store.journal() as journal:
        with trio.CancelScope() as scope:
            scope.cancel()
            await journal.append(b"x")
        assert scope.cancelled_caught
        await journal.wait_durable(1)
    assert [record.payload for record in store.records()] == [b"x"]


async def test_all_that_wait_are_told_when_the_disk_fails(store: Store) -> None:
    failures: list[object] = []
    outcomes: list[str] = []

    async def wait(position: int) -> None:
        with pytest.raises(JournalBrokenError) as caught:
            await journal.wait_durable(position)
        outcomes.append(caught.value.outcome)

    journal = store.journal()
    journal.attach(make_owner(failed=failures.append))
    await journal.open()
    store.failpoint["journal.batch_of_one"] = True
    store.disk.faults.inject("sync", path=".seg", skip=1)
    async with trio.open_nursery() as nursery:
        for position in [journal.append_nowait(1, [b"x"]) for _ in range(4)]:
            nursery.start_soon(wait, position)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(JournalBrokenError):
            await journal.run()
    assert outcomes == ["unknown"] * 4
    assert len(failures) == 1
    with pytest.raises(JournalBrokenError) as caught:
        journal.append_nowait(1, [b"y"])
    assert caught.value.outcome == "not_done"
    with pytest.raises(JournalBrokenError):
        await journal.wait_durable(1)
    await journal.aclose()
    assert journal.state == "failed"
    assert "failed" in repr(journal)


async def test_short_syncs_are_made_inline_when_nobody_else_could_run(store: Store) -> None:
    store.idle = lambda: True
    async with store.journal() as journal:
        await _append(journal, RECENT_MIN + 40)
        assert journal.statistics().inline_syncs > 0
        assert journal.statistics().inline_syncs < journal.statistics().syncs
        before = journal.statistics().inline_syncs
        store.failpoint["journal.thread_always"] = True
        await _append(journal, 5)
        store.failpoint.clear()
        store.idle = lambda: False
        await _append(journal, 5)
        assert journal.statistics().inline_syncs == before


def _history(*durations: float) -> InlineSync:
    inline = InlineSync()
    for duration in durations:
        inline.observe(duration, 0.0)
    return inline


def test_a_journal_without_a_history_syncs_in_a_thread() -> None:
    assert not _history().allows(1, 0.0)
    assert not _history(*[0.0001] * (RECENT_MIN - 1)).allows(1, 0.0)
    assert _history(*[0.0001] * RECENT_MIN).allows(1, 0.0)
    assert InlineSync().percentile(0.5) == 0.0


def test_syncs_that_are_not_short_and_batches_that_are_not_small_go_to_the_thread() -> None:
    assert not _history(*[SHORT_S * 2] * RECENT_MIN).allows(1, 0.0)
    assert not _history(*[0.0001] * RECENT_MIN).allows(1_000_000, 0.0)


def test_a_long_sync_ends_inline_syncs_for_a_pause_and_the_next_one_for_twice_that() -> None:
    inline = _history(*[0.0001] * 200)
    inline.observe(LONG_S * 2, 10.0)
    for _ in range(200):
        inline.observe(0.0001, 10.0)
    assert not inline.allows(1, 10.0 + PAUSE_S_MIN * 0.9)
    assert inline.allows(1, 10.0 + PAUSE_S_MIN)
    inline.observe(LONG_S * 2, 20.0)
    for _ in range(200):
        inline.observe(0.0001, 20.0)
    assert not inline.allows(1, 20.0 + PAUSE_S_MIN * 1.9)
    assert inline.allows(1, 20.0 + PAUSE_S_MIN * 2)
