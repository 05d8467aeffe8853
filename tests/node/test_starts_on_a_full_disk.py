"""A start that has something to write and no room for it: it waits, says for what, and goes on when there is room."""

from __future__ import annotations

import math
import random

import pytest
import trio

from meshq.limits import KIB
from meshq.testing import SimDisk
from tests.node.lives import bodies, lives
from tests.node.test_large_on_a_full_disk import on
from tests.node.test_sends_on_a_full_disk import BODY, fill

#: Definitions of more bytes than a journal keeps in reserve.
MANY = [f"one-of-many-queues-{number:05}" for number in range(6_000)]


def waiting(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "start_waits"]


async def test_a_start_without_room_for_its_records_says_what_it_waits_for(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(random.Random(1))
    async with lives(**on(disk, 128 * KIB)) as node:
        async with node.client(call_timeout=5) as client:
            sent = await fill(disk, client)
            await node.end("killed")
        disk.capacity_bytes = disk.tree.used_bytes()
        node.settings["queues"] = ["q", "in", *MANY]
        started = trio.Event()

        async def start() -> None:
            await node.start()
            started.set()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(start)
            await trio.sleep(1)
            assert waiting(caplog) == []
            await trio.sleep(60)
            assert not started.is_set()
            (said,) = waiting(caplog)
            assert said.startswith("the start waits for the disk, which has no room for ")
            # Of each queue its address and itself; a few of them had room.
            assert len(MANY) < int(said.split()[-2]) <= 2 * len(MANY)
            disk.capacity_bytes = math.inf
            with trio.fail_after(60):
                await started.wait()
        async with node.client() as client, client.consumer("q") as consumer:
            assert {*MANY} <= {*await client.queues()}
            assert await bodies(consumer) == [BODY] * sent
        # Once the room is there nobody is warned of it.
        caplog.clear()
        await node.again()
        assert waiting(caplog) == []
