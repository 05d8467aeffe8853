"""A broker that was started again and drained gives the room back, although nobody sends any more."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from meshq.settings import JournalSettings
from tests.node.lives import Lives, bodies, lives
from tests.process import ENDS, End

#: Bodies of 2,000 bytes: some ten segments.
BODIES = [b"%05d" % number + bytes(2_000) for number in range(300)]


@asynccontextmanager
async def filled_before(end: End) -> AsyncIterator[Lives]:
    """A broker whose earlier life has filled a queue."""
    async with lives(journal=JournalSettings(segment_bytes=64 * 1024)) as node:
        async with node.client() as client:
            await client.create_queue("q")
            for first in range(0, len(BODIES), 20):
                await client.send_many("q", BODIES[first : first + 20])
        await node.again(end=end)
        yield node


@pytest.mark.parametrize("end", ENDS)
async def test_dead_segments_go_after_a_start_and_a_drain(end: End) -> None:
    async with filled_before(end) as node, node.client() as client:
        before = node.broker.statistics().journal
        async with client.consumer("q") as consumer:
            assert await bodies(consumer) == BODIES
        await trio.sleep(10)
        after = node.broker.statistics().journal
    assert before is not None and after is not None
    assert before.segments >= 9
    # What defines the queue, and what is written now.
    assert after.segments <= 2, after
    assert after.bytes < 64 * 1024


@pytest.mark.parametrize("end", ENDS)
async def test_dead_segments_go_after_a_start_and_a_purge(end: End) -> None:
    """What says how far the numbers of the queue reach lies among its messages, and lives."""
    async with filled_before(end) as node:
        async with node.client() as client:
            assert await client.purge_queue("q") == len(BODIES)
        await trio.sleep(10)
        journal = node.broker.statistics().journal
        assert journal is not None
        assert journal.segments <= 2 and journal.bytes < 16 * 1024, journal
        await node.again(end=end)
        async with node.client() as client:
            assert (await client.queue("q")).ready == 0


@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("seconds", [0.1, 10])
async def test_any_number_of_starts_without_traffic_leaves_no_more_files(end: End, seconds: float) -> None:
    async with lives(journal=JournalSettings(segment_bytes=64 * 1024)) as node:
        async with node.client() as client:
            await client.create_queue("q")
            for first in range(0, len(BODIES), 20):
                await client.send_many("q", BODIES[first : first + 20])
            async with client.consumer("q", window=10) as consumer:
                for _ in range(30):
                    delivery = await consumer.receive()
                    assert delivery is not None
                    await consumer.ack(delivery)
        counts: list[tuple[int, int]] = []
        for _ in range(12):
            await node.again(end=end)
            await trio.sleep(seconds)
            journal = node.broker.statistics().journal
            assert journal is not None
            files = [path for path in node.env.disk.files() if path.endswith(".seg")]  # type: ignore[attr-defined]
            counts.append((journal.segments, len(files)))
        # The first one may have to repeat, or to cover, what the life before it had left.
        assert len(set(counts[2:])) == 1, counts
        async with node.client() as client, client.consumer("q") as consumer:
            assert (await bodies(consumer))[-1] == BODIES[-1]
