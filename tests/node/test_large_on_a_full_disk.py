"""Large batches and a disk that has no room for them: refused whole, and nobody else stands still."""

from __future__ import annotations

import math
import random
from typing import Any

import attrs
import pytest
import trio

from meshq import AddressFullError, Client, JournalSettings
from meshq.limits import KIB, MIB
from meshq.testing import SimDisk
from tests.node.lives import Lives, TrioWall, bodies, lives, machine

BODY = bytes(100_000)
LARGE = b"large" + bytes(1_500_000)


def on(disk: SimDisk, segment_bytes: int = MIB) -> dict[str, Any]:
    """A broker with small segments on this disk."""
    env = attrs.evolve(machine(wall=TrioWall()), disk=disk.mount())
    return {"env": env, "journal": JournalSettings(segment_bytes=segment_bytes), "queues": ["q", "in"]}


def leave(disk: SimDisk, room: int) -> None:
    disk.capacity_bytes = disk.used_bytes() + room


async def commit(client: Client, count: int) -> None:
    async with client.transaction() as tx:
        for number in range(count):
            await tx.send("q", b"%d" % number + BODY)


async def drain(client: Client, count: int) -> None:
    """What is there can be consumed to its end, and calls are answered."""
    assert await client.recover() == []
    async with client.consumer("in", window=10) as consumer:
        for _ in range(count):
            delivery = await consumer.receive()
            assert delivery is not None
            await consumer.ack(delivery, confirm=True)


async def once(node: Lives, client: Client, stored: list[bytes]) -> None:
    """Exactly these are in the queue, in this life and in the next."""
    assert (await client.queue("q")).ready == len(stored)
    await node.again(killed=True)
    async with client.consumer("q") as consumer:
        assert [body[:5] for body in await bodies(consumer)] == [body[:5] for body in stored]


@pytest.mark.parametrize("room", [0, 300_000, 3 * MIB])
@pytest.mark.parametrize("count", [60, 4])
async def test_a_transaction_without_room_is_refused_and_everything_else_goes_on(room: int, count: int) -> None:
    disk = SimDisk(random.Random(1))
    if room > MIB and count < 10:
        room = MIB // 2
    async with lives(**on(disk)) as node, node.client() as client, node.client() as other:
        await other.send_many("in", [bytes(2_000)] * 300)
        leave(disk, room)
        stored: list[bytes] = []
        with pytest.raises(AddressFullError) as caught:
            # Those of less than a segment find the room that was made for others.
            for _ in range(5):
                await commit(client, count)
                stored += [b"%d" % number + BODY for number in range(count)]
        assert caught.value.outcome == "not_done"
        assert len(stored) <= 2 * count
        await drain(other, 300)
        disk.capacity_bytes = math.inf
        await trio.sleep(60)
        assert not node.broker.statistics().journal.full
        await commit(client, count)
        stored += [b"%d" % number + BODY for number in range(count)]
        await once(node, client, stored)


@pytest.mark.parametrize("segment_bytes", [MIB, 64 * KIB])
async def test_a_large_message_without_room_is_refused_and_everything_else_goes_on(segment_bytes: int) -> None:
    disk = SimDisk(random.Random(1))
    async with (
        lives(**on(disk, segment_bytes)) as node,
        node.client(min_large_message_size=4 * MIB) as client,
        node.client() as other,
    ):
        await other.send_many("in", [bytes(2_000)] * 100)
        await client.send("q", LARGE)
        leave(disk, MIB)
        with pytest.raises(AddressFullError) as caught:
            await client.send("q", LARGE)
        assert caught.value.outcome == "not_done"
        # The disk has room for small ones.
        await client.send("q", b"small")
        await drain(other, 100)
        disk.capacity_bytes = math.inf
        await client.send("q", LARGE)
        await once(node, client, [LARGE, b"small", LARGE])


async def test_large_messages_and_small_ones_keep_their_order() -> None:
    sent = [b"%04d" % number + bytes(1_500_000 if number % 3 else 10) for number in range(20)]
    async with (
        lives(**on(SimDisk(random.Random(1)))) as node,
        node.client(min_large_message_size=4 * MIB) as client,
        client.producer("q") as producer,
    ):
        for body in sent:
            await producer.send(body)
        await producer.flush()
        await once(node, client, sent)
