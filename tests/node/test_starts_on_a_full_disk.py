"""A start that has something to write and no room for it serves, says what waits, and goes on when there is room."""

from __future__ import annotations

import errno
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
    return [one.getMessage() for one in caplog.records if getattr(one, "event", "") in ("start_waits", "queues_wait")]


@pytest.mark.slow
@pytest.mark.parametrize("segment_bytes", [64 * KIB, 128 * KIB])
@pytest.mark.parametrize("names", [1_000, 6_000])
async def test_a_start_without_room_for_its_queues_serves_and_makes_them_when_there_is_some(
    segment_bytes: int, names: int, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk(random.Random(1))
    async with lives(**on(disk, segment_bytes)) as node:
        async with node.client(call_timeout=5) as client:
            sent = await fill(disk, client)
            await node.end("killed")
        disk.capacity_bytes = disk.used_bytes()
        node.settings["queues"] = ["q", "in", *MANY[:names]]
        caplog.clear()
        with trio.fail_after(60):
            await node.start()
        (said,) = waiting(caplog)
        assert said.endswith("queues of the settings: they are made when it has some")
        assert 0 < int(said.removeprefix("the disk has no room for ").split()[0]) <= names
        async with node.client(call_timeout=5) as client, client.consumer("q") as consumer:
            with trio.fail_after(60):
                assert await bodies(consumer) == [BODY] * sent
            disk.capacity_bytes = math.inf
            await trio.sleep(90)
            assert {*MANY[:names]} <= {*await client.queues()}
        # Once the room is there nobody is warned of it.
        caplog.clear()
        await node.again()
        assert waiting(caplog) == []
        async with node.client() as client:
            assert {*MANY[:names]} <= {*await client.queues()}


async def test_a_start_on_a_full_disk_warns_at_once_of_its_own(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(random.Random(1))
    async with lives(**on(disk, 128 * KIB)) as node:
        async with node.client(call_timeout=5) as client:
            await fill(disk, client)
            await node.end("killed")
        disk.capacity_bytes = disk.used_bytes()
        # Of the life that filled the disk nothing is read.
        caplog.clear()
        await node.start()
        await trio.sleep(1)
        (said,) = [one.getMessage() for one in caplog.records if getattr(one, "event", "") == "disk_full"]
        assert said == "the disk of /data/hq is full: consumers are served, senders wait or are refused"


async def test_a_start_that_waits_for_the_disk_says_so_and_goes_on_when_it_writes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    disk = SimDisk(random.Random(1))
    async with lives(**on(disk, 128 * KIB)) as node:
        await node.end("killed")
        node.settings["queues"] = ["q", "in", "new"]
        caplog.clear()
        # The journal is opened by three writes.
        disk.faults.inject("write", errno.ENOSPC, skip=3, times=math.inf)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(node.start)
            await trio.sleep(60)
            said = waiting(caplog)
            disk.faults.injections.clear()
        assert said == ["the start waits for the disk, which has no room for 2 records"]
        async with node.client() as client:
            assert "new" in await client.queues()
