"""The suite for sinks: the sink in memory passes, and sinks that break a promise are found."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs
import pytest
import trio

from meshq.abc import ReplicatedBatch, ReplicationSink
from meshq.errors import JournalBrokenError
from meshq.ids import Position
from meshq.testing import REPLICATION_SINK_CHECKS, MemorySink, NonconformanceError, check_replication_sink

Check = Callable[[ReplicationSink], Awaitable[None]]


@pytest.mark.parametrize("check", REPLICATION_SINK_CHECKS)
@pytest.mark.parametrize("delay", [0.0, 3.0])
async def test_the_sink_in_memory_keeps_its_promises(check: Check, delay: float) -> None:
    await check(MemorySink(delay=delay))


class Boasting(MemorySink):
    """Tells a position that was never placed."""

    async def durable_beyond(self, position: Position) -> Position:
        return Position(await super().durable_beyond(position) + 1)


class Deaf(MemorySink):
    """Has nothing to tell."""

    async def durable_beyond(self, position: Position) -> Position:
        return await trio.sleep_forever()  # type: ignore[return-value]


class Repeating(MemorySink):
    """Tells where it is, whether there is more or not."""

    async def durable_beyond(self, position: Position) -> Position:
        await trio.lowlevel.checkpoint()
        return self._durable


class Once(MemorySink):
    """Answers each position once only."""

    def place(self, batch: ReplicatedBatch) -> None:
        super().place(batch)
        self._told = False

    async def durable_beyond(self, position: Position) -> Position:
        found = await super().durable_beyond(position)
        if self._told:
            await trio.sleep_forever()
        self._told = True
        return found


class OneBehind(MemorySink):
    """Has a batch only when the next one comes."""

    def _move(self) -> None:
        if len(self.batches) > 1:
            self._durable = self.batches[-2].last
            self._notify()


class Keeping(MemorySink):
    """Keeps the buffers of the owner, whose bytes change."""

    def place(self, batch: ReplicatedBatch) -> None:
        super().place(batch)
        self.batches[-1] = batch


class KeepingViews(MemorySink):
    """Keeps views of the buffers."""

    def place(self, batch: ReplicatedBatch) -> None:
        super().place(batch)
        self.batches[-1] = attrs.evolve(batch, parts=[memoryview(part) for part in batch.parts])


@pytest.mark.parametrize("broken", [Boasting, Deaf, Repeating, Once, OneBehind, Keeping, KeepingViews])
async def test_a_sink_that_breaks_a_promise_is_found(broken: Callable[[], ReplicationSink]) -> None:
    with pytest.raises(NonconformanceError):
        await check_replication_sink(broken)


class Dropping(MemorySink):
    """Drops a batch, and says that its records are durable."""

    def place(self, batch: ReplicatedBatch) -> None:
        super().place(batch)
        if len(self.batches) == 2:
            del self.batches[0]


class Mixing(MemorySink):
    """Stores the parts of a batch in another order."""

    def place(self, batch: ReplicatedBatch) -> None:
        super().place(attrs.evolve(batch, parts=batch.parts[::-1]))


class Forgetting(MemorySink):
    """Stores the bytes without their rows."""

    def place(self, batch: ReplicatedBatch) -> None:
        super().place(attrs.evolve(batch, rows=[0] * len(batch.rows)))


def read(sink: ReplicationSink) -> list[ReplicatedBatch]:
    assert isinstance(sink, MemorySink)
    return sink.batches


@pytest.mark.parametrize("broken", [Dropping, Mixing, Forgetting])
async def test_a_sink_that_has_something_else_than_was_placed_is_found_by_reading(
    broken: Callable[[], ReplicationSink],
) -> None:
    await check_replication_sink(MemorySink, read)
    await check_replication_sink(broken)
    with pytest.raises(NonconformanceError, match="each batch can be read as it was placed"):
        await check_replication_sink(broken, read)


async def test_an_error_at_the_end_may_not_say_that_all_is_done() -> None:
    def failing(outcome: str) -> ReplicationSink:
        class Failing(MemorySink):
            def end(self) -> None:
                self.fail(JournalBrokenError("too late", outcome=outcome))  # type: ignore[arg-type]

        return Failing()

    end = REPLICATION_SINK_CHECKS[-1]
    await end(failing("unknown"))
    with pytest.raises(NonconformanceError, match="does not say"):
        await end(failing("done"))
