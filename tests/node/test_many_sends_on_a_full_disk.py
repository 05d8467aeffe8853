"""Many sends at once to a disk that is about to be full: whatever was placed has its room, and consumers go on."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
import trio

from meshq import AddressFullError, CallTimeoutError, TransactionRolledBackError
from meshq.limits import KIB
from meshq.testing import SimDisk
from tests.node.lives import Lives, bodies, lives
from tests.node.test_large_on_a_full_disk import on

SENDERS = 40
BATCHES = 6


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.parametrize("room", [448, 512, 640, 768])
@pytest.mark.parametrize("size", [150, 300, 900])
async def test_more_than_the_reserve_sent_at_once_is_stored_or_refused_and_what_is_stored_comes(
    killed: bool, room: int, size: int
) -> None:
    disk = SimDisk(random.Random(1))
    stored: list[bytes] = []
    async with lives(**on(disk, 128 * KIB)) as node, node.client(call_timeout=20) as client:
        await client.send("q", b"first")
        disk.capacity_bytes = disk.used_bytes() + room * KIB

        async def send(number: int) -> None:
            async with node.client(call_timeout=20) as one:
                for turn in range(BATCHES):
                    batch = [b"%d-%d-%d-" % (number, turn, row) + bytes(size) for row in range(60)]
                    try:
                        await one.send_many("q", batch)
                    except (AddressFullError, CallTimeoutError) as error:
                        assert error.outcome == "not_done"
                    else:
                        stored.extend(batch)

        async with trio.open_nursery() as nursery:
            for number in range(SENDERS):
                nursery.start_soon(send, number)
        assert 0 < len(stored) < SENDERS * BATCHES * 60 and node.broker.statistics().journal.full
        if killed:
            with trio.fail_after(60):
                await node.again(killed=True)
        async with node.client(call_timeout=20) as late:
            with trio.fail_after(60):
                async with late.consumer("q") as consumer:
                    got = await bodies(consumer, quiet=10)
            assert Counter(got) == Counter([b"first", *stored])
            await trio.sleep(10)
            await late.send("q", b"again")
        disk.capacity_bytes = math.inf


async def commit(node: Lives, number: int, stored: list[bytes], unknown: list[bytes]) -> None:
    """Three small transactions of one client, and what became of them."""
    async with node.client(call_timeout=20) as one:
        for turn in range(3):
            batch = [b"%d-%d-%d-" % (number, turn, row) + bytes(300) for row in range(25)]
            try:
                async with one.transaction() as tx:
                    for body in batch:
                        await tx.send("q", body)
            except (AddressFullError, CallTimeoutError, TransactionRolledBackError) as error:
                if error.outcome == "unknown":
                    unknown.extend(batch)
            else:
                stored.extend(batch)


@pytest.mark.slow
@pytest.mark.parametrize("room", [448, 512, 768])
async def test_many_small_transactions_at_once_are_stored_or_refused_and_what_is_stored_comes(room: int) -> None:
    disk = SimDisk(random.Random(1))
    stored: list[bytes] = []
    unknown: list[bytes] = []
    async with lives(**on(disk, 128 * KIB)) as node, node.client(call_timeout=20) as client:
        await client.send("q", b"first")
        disk.capacity_bytes = disk.used_bytes() + room * KIB
        async with trio.open_nursery() as nursery:
            for number in range(150):
                nursery.start_soon(commit, node, number, stored, unknown)
        assert 0 < len(stored) < 150 * 3 * 25 and node.broker.statistics().journal.full
        async with node.client(call_timeout=20) as late:
            with trio.fail_after(60):
                async with late.consumer("q") as consumer:
                    got = Counter(await bodies(consumer, quiet=10))
            assert not Counter([b"first", *stored]) - got, "what was committed comes"
            assert not got - Counter([b"first", *stored, *unknown]), "what was refused does not"
            await trio.sleep(10)
            await late.send("q", b"again")
        disk.capacity_bytes = math.inf
