"""A node whose disk is full: what is there can be drained, and what is drained makes room."""

from __future__ import annotations

import math
import random

import pytest
import trio

from meshq.node import Broker
from meshq.node._node import Node
from meshq.node._store import journal_of
from meshq.settings import JournalSettings
from meshq.testing import SimDisk
from meshq.wire import BY_NAME, FrameType
from qa.journal.model import ROOT_DIRECTORY, journal_env
from tests.broker.kit import House, RawClient, with_ids

SEGMENT_BYTES = 64 * 1024


async def start(disk: SimDisk, nursery: trio.Nursery) -> Node:
    """A node on the disk, running."""
    env = journal_env(disk)
    journal = JournalSettings(segment_bytes=SEGMENT_BYTES)
    broker = Broker("node", data_dir=ROOT_DIRECTORY, journal=journal, queues=["q"], stop_timeout=5, env=env)
    settings = broker._settings
    node = await Node.open(settings, env, journal_of(settings, env))
    await node.start(nursery)
    return node


def client_of(node: Node) -> RawClient:
    """A raw client of a node's core."""
    house = House(node.core)
    house.auto = False
    house.sessions = node.sessions
    return house.client()


async def opened(node: Node, client: RawClient, producer: bytes = b"p" * 16) -> int:
    channel = client.produce(producer=producer)
    await settled(node)
    client.numbers[channel] = 0
    return channel


async def settled(node: Node) -> None:
    assert node._journal is not None
    await node._journal.wait_durable(node._journal.last)
    await trio.sleep(0.05)


@pytest.mark.parametrize("ids", [False, True])
async def test_a_full_disk_is_drained_and_takes_messages_again(ids: bool) -> None:
    disk = SimDisk(random.Random(1))
    async with trio.open_nursery() as nursery:
        node = await start(disk, nursery)
        client = client_of(node)
        producer = await opened(node, client)
        disk.capacity_bytes = disk.used_bytes() + 6 * SEGMENT_BYTES
        sent = 0
        while not client.refused() and client.sent < client.granted:
            sent += 1
            names = [f"id-{sent}-{row}" if ids else "" for row in range(4)]
            client.put(producer, *[bytes(1_000)] * 4, envelopes=with_ids(*names))
            await settled(node)
        assert node._journal is not None and node._journal.full
        assert not client.refused() or client.refused()[0][2] == BY_NAME["address_full"].number
        stored = 4 * (sent - len(client.refused()))
        # Whoever opens now waits for credit; whoever consumes gets everything.
        late = client_of(node)
        assert late.granted == 0
        consumer = late.consume()
        await settled(node)
        taken = 0
        while taken < stored:
            got = late.got(consumer)
            assert len(got) > taken, "a full disk keeps nobody from draining it"
            late.settle(consumer, (taken + 1, len(got)))
            taken = len(got)
            await settled(node)
        await trio.sleep(60)
        assert not node._journal.full
        assert late.granted > 0
        producer = await opened(node, late, b"q" * 16)
        late.put(producer, b"goes on")
        await settled(node)
        assert late.confirmed == [(producer, 1)]
        chunks = node.core.router.addresses["q"].duplicates._chunks
        assert [bool(chunk.record) for chunk in chunks] == [True] * (stored // 4 if ids else 0)
        disk.capacity_bytes = math.inf
        await node.stop()
        nursery.cancel_scope.cancel()
    await node.close()
    async with trio.open_nursery() as nursery:
        node = await start(disk, nursery)
        assert node.core.router.queues["q"].counts.ready == 1
        assert len(node.core.router.addresses["q"].duplicates) == (stored if ids else 0)
        nursery.cancel_scope.cancel()
    await node.close()


async def test_a_session_that_waits_for_a_full_disk_is_told_when_it_may_go_on() -> None:
    disk = SimDisk(random.Random(1))
    async with trio.open_nursery() as nursery:
        node = await start(disk, nursery)
        node.core.memory.blocked = True
        client = client_of(node)
        # Nothing is granted, which says why.
        assert [frame.first for frame in client.all(FrameType.CREDIT)] == [0]
        node._room()
        assert [frame.first > 0 for frame in client.all(FrameType.CREDIT)] == [False, True]
        nursery.cancel_scope.cancel()
    await node.close()
