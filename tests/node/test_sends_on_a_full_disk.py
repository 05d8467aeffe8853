"""Sends to a broker whose disk is full: refused, or given up in time; whoever consumes goes on."""

from __future__ import annotations

import math
import random

import pytest
import trio

from meshq import AddressFullError, CallTimeoutError, Client
from meshq.limits import KIB
from meshq.testing import SimDisk
from tests.node.lives import bodies, lives
from tests.node.test_large_on_a_full_disk import on

BODY = bytes(3_000)


async def fill(disk: SimDisk, client: Client, room: int = 1024 * KIB) -> int:
    disk.capacity_bytes = disk.used_bytes() + room
    sent = 0
    with pytest.raises((AddressFullError, CallTimeoutError)) as caught:
        while True:
            await client.send("q", BODY)
            sent += 1
    assert caught.value.outcome == "not_done"
    return sent


@pytest.mark.parametrize("killed", [False, True])
async def test_call_timeout_holds_for_a_send_that_waits_for_room(
    killed: bool, caplog: pytest.LogCaptureFixture
) -> None:
    disk = SimDisk(random.Random(1))
    async with lives(**on(disk, 128 * KIB)) as node, node.client(call_timeout=5) as client:
        sent = await fill(disk, client)
        if killed:
            # What is left behind the ends of segments is room again.
            await node.again(killed=True)
            await trio.sleep(1)
            sent += await fill(disk, client, 0)
        await trio.sleep(1)
        assert node.broker.statistics().journal.full
        (said,) = {one.getMessage() for one in caplog.records if getattr(one, "event", "") == "disk_full"}
        assert said == "the disk of /data/hq is full: consumers are served, senders wait or are refused"
        async with node.client(call_timeout=5) as late:
            begun = trio.current_time()
            with pytest.raises(CallTimeoutError, match="no room on the broker's disk") as caught:
                await late.send("q", BODY)
            assert caught.value.outcome == "not_done"
            assert 4.9 < trio.current_time() - begun < 6
            # Whoever waits longer than that goes on when there is room.
            async with trio.open_nursery() as nursery, node.client(call_timeout=600) as patient:
                nursery.start_soon(patient.send, "q", b"later")
                await trio.sleep(20)
                async with late.consumer("q") as consumer:
                    found = await bodies(consumer, quiet=30)
            assert found == [BODY] * sent + [b"later"]
            await late.send("q", b"again")
        disk.capacity_bytes = math.inf
