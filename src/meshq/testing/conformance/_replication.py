"""The conformance suite for ``abc.ReplicationSink``."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio
import trio.testing

from meshq.abc import ReplicatedBatch, ReplicationSink, ReplicationStart
from meshq.errors import MeshqError
from meshq.ids import NodeId, Position
from meshq.testing.conformance._assertions import expect, expect_equal

MakeSink = Callable[[], ReplicationSink]
ReadBatches = Callable[[ReplicationSink], Sequence[ReplicatedBatch]]

#: Seconds within which a sink without faults has what it was given, and after which it has nothing more to tell.
PATIENCE_S: Final = 60.0
#: The records that the journal of the suite had before.
BEFORE: Final = 7
#: A row of the batch format without its size: a data record of kind 1.
ROW: Final = 1 << 40 | 1 << 32


async def check_replication_sink(make_sink: MakeSink, read: ReadBatches | None = None) -> None:
    """Check that a sink keeps the contract of ``meshq.abc.ReplicationSink``.

    ``make_sink`` is called once for each check of ``REPLICATION_SINK_CHECKS``; it returns a sink of a journal of its
    own, all of whose partners can be reached.

    ``read`` returns the batches that a sink made durable, as they would be read elsewhere, in order.  Only with
    ``read`` does the suite notice a sink that drops a batch and says that the batch is durable, or changes a batch.

    Checkpoint: always.
    Cancellation: ends the check that runs.
    Raises:
        NonconformanceError: the sink breaks a promise.
    """
    for check in REPLICATION_SINK_CHECKS:
        await check(make_sink())
    if read is not None:
        await _what_is_durable_can_be_read(make_sink(), read)


class _Body(bytearray):
    """A buffer of which the suite can say whether a reference to it is kept."""


class _Journal:
    """The calls of a journal, and its rules: one begin, batches in order."""

    def __init__(self, sink: ReplicationSink) -> None:
        self.sink = sink
        self.last = Position(BEFORE)
        #: The batches, with bytes of their own.
        self.placed: list[ReplicatedBatch] = []
        #: The buffers that the sink was given.
        self.bodies: list[weakref.ref[_Body]] = []
        sink.begin(ReplicationStart(node_id=NodeId(bytes(range(16))), journal_id=bytes(range(16, 32)), last=self.last))

    def place(self, records: int) -> Position:
        first = Position(self.last + 1)
        self.last = Position(self.last + records)
        bodies = [_Body(b"the body of record %d" % number) for number in range(first, self.last + 1)]
        rows = [ROW | len(body) for body in bodies]
        copied = [bytes(body) for body in bodies]
        self.placed.append(ReplicatedBatch(first=first, last=self.last, flags=0, rows=rows, parts=copied))
        self.sink.place(ReplicatedBatch(first=first, last=self.last, flags=0, rows=list(rows), parts=list(bodies)))
        # The owner may use the bytes again.
        for body in bodies:
            body[:] = bytes(len(body))
        self.bodies += map(weakref.ref, bodies)
        return self.last

    async def durable(self, last: Position, promise: str) -> list[Position]:
        """The positions that the sink tells, until it has told the last one."""
        told = [Position(BEFORE)]
        with trio.move_on_after(PATIENCE_S) as scope:
            while told[-1] < last:
                told.append(await self.sink.durable_beyond(told[-1]))
                expect(told[-1] > told[-2], "durable_beyond returns a position beyond the given one")
                expect(told[-1] <= self.last, "no position lies behind the last batch")
        expect(not scope.cancelled_caught, promise)
        return told


async def _what_was_placed_becomes_durable(sink: ReplicationSink) -> None:
    journal = _Journal(sink)
    for records in (1, 3, 200):
        journal.place(records)
    await journal.durable(journal.last, "the records of all batches become durable")


async def _batches_become_durable_one_by_one(sink: ReplicationSink) -> None:
    journal = _Journal(sink)
    for _ in range(3):
        await journal.durable(journal.place(2), "a batch becomes durable without a batch behind it")


async def _a_batch_without_records_is_taken(sink: ReplicationSink) -> None:
    journal = _Journal(sink)
    journal.place(0)
    await journal.durable(journal.place(1), "a batch without records holds nothing up")


async def _nothing_is_told_about_records_that_were_not_placed(sink: ReplicationSink) -> None:
    journal = _Journal(sink)
    with trio.move_on_after(PATIENCE_S) as scope:
        await journal.sink.durable_beyond(Position(BEFORE))
    expect(scope.cancelled_caught, "durable_beyond waits while nothing was placed")
    await journal.durable(journal.place(5), "records become durable")
    with trio.move_on_after(PATIENCE_S) as scope:
        await journal.sink.durable_beyond(journal.last)
    expect(scope.cancelled_caught, "durable_beyond waits when all batches are durable")


async def _the_same_question_has_an_answer_again(sink: ReplicationSink) -> None:
    journal = _Journal(sink)
    journal.place(4)
    await journal.durable(journal.last, "records become durable")
    for before in range(BEFORE, journal.last):
        with trio.move_on_after(PATIENCE_S) as scope:
            again = await journal.sink.durable_beyond(Position(before))
            expect_equal(again, journal.last, "a position never falls")
        expect(not scope.cancelled_caught, "durable_beyond returns at once what is durable already")


async def _a_cancelled_question_loses_nothing(sink: ReplicationSink) -> None:
    journal = _Journal(sink)
    with trio.CancelScope() as scope:
        scope.cancel()
        await journal.sink.durable_beyond(Position(BEFORE))
    expect(scope.cancelled_caught, "durable_beyond is a checkpoint")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(journal.sink.durable_beyond, Position(BEFORE))
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    await journal.durable(journal.place(1), "a question that was cancelled may be repeated")


async def _no_buffer_is_kept(sink: ReplicationSink) -> None:
    journal = _Journal(sink)
    for records in (1, 3, 200):
        journal.place(records)
    await trio.testing.wait_all_tasks_blocked()
    gc.collect()
    kept = sum(body() is not None for body in journal.bodies)
    expect_equal(kept, 0, "a sink keeps no buffer after place: the owner may change the bytes")


async def _what_is_durable_can_be_read(sink: ReplicationSink, read: ReadBatches) -> None:
    journal = _Journal(sink)
    for records in (1, 3, 0, 200):
        journal.place(records)
    await journal.durable(journal.last, "the records of all batches become durable")
    expect_equal(_contents(read(sink)), _contents(journal.placed), "each batch can be read as it was placed")


def _contents(batches: Sequence[ReplicatedBatch]) -> list[tuple[int, int, int, list[int], bytes]]:
    """Return the contents of the batches that have records, with the bytes joined."""
    return [
        (batch.first, batch.last, batch.flags, list(batch.rows), b"".join(bytes(part) for part in batch.parts))
        for batch in batches
        if batch.rows
    ]


async def _the_end_settles_everything(sink: ReplicationSink) -> None:
    journal = _Journal(sink)
    journal.place(10)
    journal.place(1)
    journal.sink.end()
    try:
        await journal.durable(journal.last, "after the end the last position is told, or durable_beyond raises")
    except MeshqError as error:
        expect(error.outcome != "done", "an error does not say that the records are durable")


#: Every check of the suite, each of which has a sink of its own.
REPLICATION_SINK_CHECKS: Final[tuple[Callable[[ReplicationSink], Awaitable[None]], ...]] = (
    _what_was_placed_becomes_durable,
    _batches_become_durable_one_by_one,
    _a_batch_without_records_is_taken,
    _nothing_is_told_about_records_that_were_not_placed,
    _the_same_question_has_an_answer_again,
    _a_cancelled_question_loses_nothing,
    _no_buffer_is_kept,
    _the_end_settles_everything,
)
