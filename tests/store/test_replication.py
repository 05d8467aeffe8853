"""A journal with a sink: durable is what is on its own disk and wherever the sink says."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import trio
import trio.testing

from meshq.abc import ReplicatedBatch, ReplicationStart
from meshq.errors import BrokenError, JournalBrokenError
from meshq.ids import Position
from meshq.store import Journal
from meshq.store.formats._batch_format import CHECKPOINT_BATCH, SIZE_MASK
from meshq.store.formats._record import CheckpointRecord
from meshq.testing import InlineThreads, MemorySink
from qa.journal.model import journal_env
from tests.store.kit import Store, make_owner


async def append(journal: Journal, payload: bytes, done: list[bytes]) -> None:
    await journal.append(payload)
    done.append(payload)


async def test_a_record_is_durable_only_when_the_sink_has_it(store: Store) -> None:
    sink, told, done = MemorySink(held=True), list[int](), list[bytes]()
    async with store.journal(sink=sink) as journal, trio.open_nursery() as nursery:
        journal.attach(make_owner(durable_moved=told.append))
        nursery.start_soon(append, journal, b"one", done)
        await trio.sleep(100)
        # It is on this disk: what dies now is there afterwards, and nobody was told so.
        assert [record.payload for record in store.records()] == [b"one"]
        assert (done, told, journal.durable, journal.last) == ([], [], 0, 1)
        assert journal.statistics().lag_records == 1
        nursery.start_soon(append, journal, b"two", done)
        await trio.sleep(100)
        assert done == [] and sink.payloads() == [b"one", b"two"]
        sink.release()
        await trio.testing.wait_all_tasks_blocked()
        assert (sorted(done), told, journal.durable) == ([b"one", b"two"], [2], 2)


class GatedThreads(InlineThreads):
    """Threads in which one step waits until a test lets it go."""

    def __init__(self, step: str = "write") -> None:
        super().__init__()
        self.step = step
        self.gate = trio.Event()

    async def run(self, function: Callable[..., Any], *arguments: object, pool: str = "default") -> Any:
        if getattr(function, "__name__", "") == self.step:
            await self.gate.wait()
        return await super().run(function, *arguments, pool=pool)


async def test_a_sink_that_is_faster_than_the_disk_makes_nothing_durable(store: Store) -> None:
    sink, threads, told, done = MemorySink(), GatedThreads(), list[int](), list[bytes]()
    async with store.journal(sink=sink, env=journal_env(store.disk, threads=threads)) as journal:
        journal.attach(make_owner(durable_moved=told.append))
        async with trio.open_nursery() as nursery:
            nursery.start_soon(append, journal, b"x", done)
            await trio.sleep(100)
            assert (sink.told, told, done, journal.durable) == (1, [], [], 0)
            threads.gate.set()
        assert (told, done, journal.durable) == ([1], [b"x"], 1)


async def test_a_disk_that_fails_confirms_nothing_although_the_sink_has_it(store: Store) -> None:
    sink = MemorySink()
    with pytest.raises(JournalBrokenError) as caught:
        async with store.journal(sink=sink) as journal:
            await journal.append(b"before")
            # The spare segment is made: the next sync is that of the next batch.
            await trio.sleep(20)
            store.disk.faults.inject("sync", path=".seg")
            await journal.append(b"x")
    assert caught.value.outcome == "unknown"
    assert sink.payloads() == [b"before", b"x"] and journal.durable == 1
    assert sink.ended


async def test_a_sink_that_lags_delays_and_loses_nothing(store: Store) -> None:
    sink = MemorySink(delay=0.5)
    async with store.journal(sink=sink) as journal:
        for number in range(20):
            before = trio.current_time()
            assert await journal.append(b"%d" % number) == number + 1
            assert trio.current_time() - before >= 0.5
    assert b"".join(sink.payloads()) == b"".join(b"%d" % number for number in range(20))
    assert sink.ended


async def test_a_sink_that_fails_ends_the_journal_and_nothing_is_confirmed(store: Store) -> None:
    sink, told, failures = MemorySink(held=True), list[int](), list[object]()
    reason = BrokenError("no majority")
    with pytest.raises(JournalBrokenError) as caught:
        async with store.journal(sink=sink) as journal:
            journal.attach(make_owner(durable_moved=told.append, failed=failures.append))
            async with trio.open_nursery() as nursery:
                nursery.start_soon(journal.append, b"x")
                await trio.testing.wait_all_tasks_blocked()
                sink.fail(reason)
    assert caught.value.outcome == "unknown" and caught.value.__cause__ is reason
    assert "replication failed: no majority" in str(caught.value)
    assert (told, len(failures), journal.state, journal.durable) == ([], 1, "failed", 0)
    with pytest.raises(JournalBrokenError) as refused:
        journal.append_nowait(1, [b"y"])
    assert refused.value.outcome == "not_done"
    # On this disk the record is there: a start finds it.
    assert [record.payload for record in store.records()] == [b"x"]


@pytest.mark.parametrize("checkpoints", [*range(4)] * 5)
async def test_no_batch_is_begun_after_the_journal_has_failed(store: Store, checkpoints: int) -> None:
    failures: list[object] = []
    late: list[ReplicatedBatch] = []

    class Watched(MemorySink):
        def place(self, batch: ReplicatedBatch) -> None:
            if failures:
                late.append(batch)
            super().place(batch)

    sink = Watched()
    with pytest.raises(JournalBrokenError):
        async with store.journal(sink=sink) as journal:
            journal.attach(make_owner(failed=failures.append))
            # There is a segment with space: the next batch is written as soon as the commit task takes it.
            await journal.append(b"first")
            await trio.testing.wait_all_tasks_blocked()
            journal.append_nowait(1, [b"placed a few turns before the sink fails"])
            for _ in range(checkpoints):
                await trio.lowlevel.checkpoint()
            sink.fail(BrokenError("no majority"))
            await trio.sleep_forever()
    assert len(failures) == 1 and late == []
    assert [record.payload for record in store.records()] == sink.payloads()


async def test_a_batch_that_waited_for_a_new_segment_is_not_written_after_a_failure(store: Store) -> None:
    sink, threads = MemorySink(held=True), GatedThreads("write_segment_header")
    with pytest.raises(JournalBrokenError):
        async with store.journal(sink=sink, env=journal_env(store.disk, threads=threads)) as journal:
            journal.append_nowait(1, [b"x"])
            await trio.testing.wait_all_tasks_blocked()
            sink.fail(BrokenError("no majority"))
            await trio.testing.wait_all_tasks_blocked()
            threads.gate.set()
            await trio.sleep_forever()
    assert sink.payloads() == [] and store.records() == []


async def test_a_failure_while_the_journal_is_closed_is_one(store: Store) -> None:
    sink = MemorySink(held=True)
    journal = store.journal(sink=sink)
    await journal.open()
    position = journal.append_nowait(1, [b"x"])
    caught: list[JournalBrokenError] = []

    async def wait() -> None:
        with pytest.raises(JournalBrokenError) as error:
            await journal.wait_durable(position)
        caught.append(error.value)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        nursery.start_soon(journal.aclose)
        await trio.testing.wait_all_tasks_blocked()
        assert journal.state == "open" and sink.ended
        sink.fail(BrokenError("the partner is gone"))
    assert journal.state == "failed" and [error.outcome for error in caught] == ["unknown"]


async def test_closing_waits_for_the_sink(store: Store) -> None:
    sink, closed = MemorySink(held=True), trio.Event()
    journal = store.journal(sink=sink)
    await journal.open()

    async def close() -> None:
        await journal.aclose(sink_timeout=math.inf)
        closed.set()

    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        journal.append_nowait(1, [b"x"])
        nursery.start_soon(close)
        await trio.sleep(100)
        assert sink.ended and not closed.is_set() and journal.durable == 0
        sink.release()
        await closed.wait()
    assert (journal.state, journal.durable) == ("closed", 1)
    assert all(entry.sealed for entry in store.manifest().entries)


async def release_in_an_hour(sink: MemorySink) -> None:
    """Release a sink, so that a close without a limit ends."""
    await trio.sleep(3_600)
    sink.release()


async def test_a_sink_that_never_answers_holds_up_no_close(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    sink, caught = MemorySink(held=True), list[JournalBrokenError]()
    journal = store.journal(sink=sink)
    await journal.open()

    async def wait(position: int) -> None:
        with pytest.raises(JournalBrokenError) as error:
            await journal.wait_durable(position)
        caught.append(error.value)

    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        nursery.start_soon(wait, journal.append_nowait(1, [b"x"]))
        nursery.start_soon(release_in_an_hour, sink)
        begun = trio.current_time()
        await journal.aclose(sink_timeout=7)
        assert trio.current_time() - begun == 7
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert journal.durable == 0
    assert journal.state == "failed" and [error.outcome for error in caught] == ["unknown"]
    assert [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "replication_unfinished"] == [
        "the records after position 0 are not confirmed: the sink has the records up to 0, and not up to 1, 7 s after"
        " the journal was closed"
    ]
    assert [record.payload for record in store.records()] == [b"x"]


async def test_the_sink_gets_every_batch_in_order_with_the_owners_checkpoints(store: Store) -> None:
    sink = MemorySink()
    async with store.journal(sink=sink) as journal:
        journal.attach(make_owner(checkpoint=lambda: [CheckpointRecord(9, b"soft state")]))
        for number in range(60):
            await journal.wait_durable(journal.append_nowait(7, [b"%d " % number, bytes(500)]))
        last, batches = journal.last, sink.batches
    assert journal.statistics().segments > 2
    assert batches[0].first == 1 and batches[-1].last == last
    assert all(one.last + 1 == following.first for one, following in itertools.pairwise(batches))
    assert any(batch.flags & CHECKPOINT_BATCH for batch in batches)
    for batch in batches:
        assert sum(row & SIZE_MASK for row in batch.rows) == sum(map(len, batch.parts))
        assert len(batch.rows) == batch.last + 1 - batch.first


async def test_the_next_life_begins_behind_what_is_there(store: Store) -> None:
    first, second = MemorySink(), MemorySink()
    async with store.journal(sink=first) as journal:
        await journal.append_many([b"one", b"two"])
        identity = (journal.node_id, journal.journal_id)
    async with store.journal(sink=second) as journal:
        await journal.append(b"three")
    assert first.start is not None and second.start is not None
    assert (first.start.last, second.start.last) == (0, 2)
    assert (second.start.node_id, second.start.journal_id) == identity
    assert second.payloads() == [b"three"]


async def test_a_journal_writes_the_same_bytes_with_a_sink_and_without(store: Store) -> None:
    async def life(sink: MemorySink | None) -> dict[str, bytes]:
        other = Store()
        async with other.journal(sink=sink) as journal:
            for number in range(40):
                position = await journal.append(b"%d" % number + bytes(700))
                if number % 3:
                    await journal.delete(position)
            await trio.sleep(20)
        return {path: other.disk.content(path) for path in other.disk.files()}

    assert await life(MemorySink()) == await life(None)


async def test_a_run_that_is_cancelled_leaves_the_rest_to_aclose(store: Store) -> None:
    sink = MemorySink(held=True)
    journal = store.journal(sink=sink)
    await journal.open()
    async with trio.open_nursery() as nursery:
        await nursery.start(journal.run)
        journal.append_nowait(1, [b"x"])
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert (journal.state, journal.durable) == ("open", 0)
    sink.release()
    await journal.aclose()
    assert (journal.state, journal.durable) == ("closed", 1)


class RefusingSink(MemorySink):
    """A sink that raises when it is called."""

    def __init__(self, call: str, error: Exception) -> None:
        super().__init__()
        self.call = call
        self.error = error

    def begin(self, start: ReplicationStart) -> None:
        super().begin(start)
        self._raise("begin")

    def place(self, batch: ReplicatedBatch) -> None:
        self._raise("place")
        super().place(batch)

    async def durable_beyond(self, position: Position) -> Position:
        await trio.lowlevel.checkpoint()
        self._raise("durable_beyond")
        return await super().durable_beyond(position)

    def end(self) -> None:
        super().end()
        self._raise("end")

    def _raise(self, call: str) -> None:
        if call == self.call:
            raise self.error


async def test_a_sink_that_does_not_begin_leaves_the_store_unlocked(store: Store) -> None:
    reason = BrokenError("no role")
    journal = store.journal(sink=RefusingSink("begin", reason))
    with pytest.raises(JournalBrokenError, match="replication failed: no role") as caught:
        await journal.open()
    assert caught.value.outcome == "not_done" and caught.value.__cause__ is reason
    assert journal.state == "closed"
    await journal.aclose()
    async with store.journal() as following:
        await following.append(b"x")


class ScriptedSink(MemorySink):
    """A sink that tells the positions that a test says."""

    def __init__(self) -> None:
        super().__init__(held=True)
        self.tell, self._positions = trio.open_memory_channel[int](10)

    async def durable_beyond(self, position: Position) -> Position:
        return Position(await self._positions.receive())


@pytest.mark.parametrize("call", ["place", "durable_beyond", "end"])
async def test_an_error_of_the_sink_while_closing_fails_the_journal_and_unlocks_the_store(
    store: Store, call: str
) -> None:
    reason = ValueError("a mistake in the sink")
    journal = store.journal(sink=RefusingSink(call, reason))
    await journal.open()
    journal.append_nowait(1, [b"x"])
    await journal.aclose()
    assert journal.state == "failed" and journal.durable == 0
    with pytest.raises(JournalBrokenError, match="replication failed: a mistake in the sink") as caught:
        journal.append_nowait(1, [b"y"])
    assert caught.value.__cause__ is reason
    await journal.aclose()
    async with store.journal() as following:
        await following.append(b"x")


async def test_a_mistake_of_the_owner_while_closing_is_told_and_unlocks_the_store(store: Store) -> None:
    def checkpoint() -> list[CheckpointRecord]:
        raise RuntimeError("a mistake of the owner")

    sink = MemorySink()
    journal = store.journal(sink=sink)
    await journal.open()
    journal.attach(make_owner(checkpoint=checkpoint))
    journal.append_nowait(1, [b"x"])
    with pytest.raises(RuntimeError, match="a mistake of the owner"):
        await journal.aclose()
    assert journal.state == "failed" and sink.ended
    await journal.aclose()
    async with store.journal() as following:
        await following.append(b"x")


class OddSink(MemorySink):
    """A sink whose answers are no positions."""

    def __init__(self, told: object) -> None:
        super().__init__()
        self.answer: Any = told

    async def durable_beyond(self, position: Position) -> Position:
        await super().durable_beyond(position)
        answer: Position = self.answer
        return answer


@pytest.mark.parametrize("told", [None, "1", 1.0, True, math.inf, math.nan])
async def test_a_position_of_another_type_fails_the_journal_in_order(store: Store, told: Any) -> None:
    with pytest.raises(JournalBrokenError, match=f"the sink told position {told!r}, which is not"):
        async with store.journal(sink=OddSink(told)) as journal:
            await journal.append(b"x")
    assert journal.durable == 0


class SinkOfTasks(MemorySink):
    """A sink with a task of its own, which fails when the sink is cancelled."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    async def durable_beyond(self, position: Position) -> Position:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._fail)
            await trio.sleep_forever()

    async def _fail(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            raise self.error


async def test_an_error_of_a_sink_that_is_cancelled_fails_the_journal_in_order(store: Store) -> None:
    reason = BrokenError("the partner is gone")
    with pytest.raises(JournalBrokenError, match="replication failed: the partner is gone") as caught:
        async with store.journal(sink=SinkOfTasks(reason)) as journal:
            journal.append_nowait(1, [b"x"])
            await trio.testing.wait_all_tasks_blocked()
    assert caught.value.__cause__ is reason and journal.durable == 0


@pytest.mark.parametrize(("told", "asked"), [(1, 2), (2, 2), (4, 2)])
async def test_a_position_that_the_sink_can_not_have_fails_the_journal(store: Store, told: int, asked: int) -> None:
    sink = ScriptedSink()
    with pytest.raises(JournalBrokenError, match=f"told position {told}, .* beyond {asked} and at most 3") as caught:
        async with store.journal(sink=sink) as journal, trio.open_nursery() as nursery:
            nursery.start_soon(journal.append_many, [b"one", b"two", b"three"])
            await trio.testing.wait_all_tasks_blocked()
            await sink.tell.send(asked)
            await trio.testing.wait_all_tasks_blocked()
            assert journal.durable == asked
            await sink.tell.send(told)
    assert caught.value.outcome == "unknown" and journal.durable == asked


async def test_nothing_is_durable_after_a_failure_while_the_close_waits_for_the_sink(store: Store) -> None:
    sink, closed = MemorySink(held=True), trio.Event()
    journal = store.journal(sink=sink)
    await journal.open()
    position = journal.append_nowait(1, [b"x"])

    async def close() -> None:
        await journal.aclose()
        closed.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(close)
        await trio.testing.wait_all_tasks_blocked()
        store.disk.faults.inject("read", path=".seg")
        with pytest.raises(JournalBrokenError):
            await journal.read([position])
        await trio.testing.wait_all_tasks_blocked()
        assert closed.is_set()
        sink.release()
    assert (journal.state, journal.durable) == ("failed", 0)
    with pytest.raises(JournalBrokenError):
        await journal.wait_durable(position)


async def test_a_close_wakes_who_waits_for_what_the_sink_has(store: Store) -> None:
    sink, woken = ScriptedSink(), list[int]()
    store.failpoint["journal.batch_of_one"] = True
    journal = store.journal(sink=sink)
    await journal.open()

    async def wait(position: int) -> None:
        await journal.wait_durable(position)
        woken.append(position)

    async with trio.open_nursery() as nursery:
        for payload in (b"one", b"two"):
            nursery.start_soon(wait, journal.append_nowait(1, [payload]))
        nursery.start_soon(journal.aclose)
        await trio.testing.wait_all_tasks_blocked()
        for position in (1, 2):
            await sink.tell.send(position)
            await trio.testing.wait_all_tasks_blocked()
            assert woken[-1:] == [position] and journal.durable == position
    assert journal.state == "closed"


async def test_a_run_that_begins_while_the_journal_is_closed_returns(store: Store) -> None:
    sink = MemorySink(held=True)
    journal = store.journal(sink=sink)
    await journal.open()
    journal.append_nowait(1, [b"x"])
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.aclose)
        await trio.testing.wait_all_tasks_blocked()
        await nursery.start(journal.run)
        sink.release()
    assert (journal.state, journal.durable) == ("closed", 1)
