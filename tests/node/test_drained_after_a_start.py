"""A broker that was started again and drained gives the room back, although nobody sends any more."""

from __future__ import annotations

import pytest
import trio

from meshq.settings import JournalSettings
from tests.node.lives import bodies, lives
from tests.process import ENDS, End

#: Bodies of 2,000 bytes: some ten segments.
BODIES = [b"%05d" % number + bytes(2_000) for number in range(300)]


@pytest.mark.parametrize("end", ENDS)
async def test_dead_segments_go_after_a_start_and_a_drain(end: End) -> None:
    async with lives(journal=JournalSettings(segment_bytes=64 * 1024)) as node:
        async with node.client() as client:
            await client.create_queue("q")
            for first in range(0, len(BODIES), 20):
                await client.send_many("q", BODIES[first : first + 20])
        await node.again(end=end)
        async with node.client() as client:
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
