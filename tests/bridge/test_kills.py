"""The kit's kill is one: after it nothing is written and nothing is said, and a bridge begins with what was synced."""

from __future__ import annotations

import trio

from tests.bridge.kit import bridge_of, bridge_to, numbered, until, world

DURABLE = {"queues": ["out"]}


async def test_a_broker_that_is_stopped_writes_to_the_end() -> None:
    """What the next test looks at is something."""
    async with world() as made:
        await made.start("near", bridge_to("far"), **DURABLE)
        await made.send("near", "out", numbered(10))
        before = made.disks["near"].calls
        await made.stop("near")
        assert made.disks["near"].calls > before


async def test_nothing_is_written_or_sent_after_a_kill_and_the_next_life_goes_on() -> None:
    async with world() as made:
        await made.start("far", queues=["in"])
        near = await made.start("near", bridge_to("far"), **DURABLE)
        disk = made.disks["near"]
        async with made.here("near") as client:
            await client.send_many("out", numbered(300))
        # Some of it is there, and its acknowledgements are on their way to the disk.
        await until(lambda: bridge_of(near).statistics().carried > 0)
        made.lose_power("near")
        calls, unsynced = disk.calls, disk.unsynced()
        content = {path: disk.content(path) for path in disk.files()}
        await made.lives["near"].ended()
        there = await made.count("far", "in")
        await trio.sleep(60)
        assert (disk.calls, disk.unsynced()) == (calls, unsynced)
        assert {path: disk.content(path) for path in disk.files()} == content
        assert await made.count("far", "in") == there
        await made.start("near")
        assert sorted(await made.drain("far", "in")) == sorted(numbered(300))
