"""A store that has rotted where a start does not look: found while the broker serves, told, and refused next time."""

from __future__ import annotations

import logging
import random

import attrs
import pytest
import trio

from meshq import Broker, DamagedError, JournalBrokenError, StoreDamaged
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.testing import SimDisk
from tests.node.lives import machine


async def test_damage_behind_an_index_is_told_and_the_rest_is_served(caplog: pytest.LogCaptureFixture) -> None:
    disk = SimDisk(random.Random(1))
    env = attrs.evolve(machine(), disk=disk.mount())
    async with Broker("hq", data_dir="/data/hq", env=env) as broker, broker.client() as client:
        for body in (b"gone", b"left"):
            await client.send("work", body * 1_000)
        async with client.consumer("work") as consumer:
            await consumer.ack(await consumer.receive(), confirm=True)
    async with Broker("hq", data_dir="/data/hq", env=env):
        # Its checkpoint says what only the dead record said.
        pass
    rotten = next(path for path in disk.files() if b"gone" * 1_000 in disk.content(path))
    offset = disk.content(rotten).index(b"gone" * 1_000)
    disk.flip_bit(rotten, 8 * offset)
    broker = Broker("hq", data_dir="/data/hq", env=env)
    events = broker.events()
    async with broker:
        assert broker.statistics().journal.unproven_segments > 0
        await trio.sleep(5)
        journal = broker.statistics().journal
        assert (journal.unproven_segments, journal.damaged_segments) == (0, 1)
        async with broker.client() as client, client.consumer("work") as consumer:
            assert (await consumer.receive()).body == b"left" * 1_000
    (told,) = [event async for event in events if isinstance(event, StoreDamaged)]
    assert told.file == rotten
    assert SEGMENT_HEADER_BYTES <= told.offset < offset
    assert [record.levelno for record in caplog.records if rotten in record.getMessage()] == [logging.ERROR]
    with pytest.raises(DamagedError, match=rotten):
        async with Broker("hq", data_dir="/data/hq", env=env):
            pass


async def test_a_message_that_has_rotted_behind_an_index_is_never_delivered() -> None:
    disk = SimDisk(random.Random(1))
    env = attrs.evolve(machine(), disk=disk.mount())
    async with Broker("hq", data_dir="/data/hq", env=env) as broker, broker.client() as client:
        await client.send("work", b"rotten" * 1_000)
    rotten = next(path for path in disk.files() if b"rotten" * 1_000 in disk.content(path))
    disk.flip_bit(rotten, 8 * disk.content(rotten).index(b"rotten" * 1_000))
    got: list[bytes] = []
    with pytest.raises(JournalBrokenError, match=rotten):
        async with Broker("hq", data_dir="/data/hq", env=env) as broker, broker.client() as client:
            # A start looks at what it needs of a message; the rest is proven when somebody wants it.
            assert broker.statistics().queues == 1
            async with client.consumer("work") as consumer:
                got.append((await consumer.receive(timeout=60)).body)
    assert not got
