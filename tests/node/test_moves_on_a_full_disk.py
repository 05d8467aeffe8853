"""What a node moves itself asks for room on the disk, too: what finds none stays, and nobody else stands still."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import trio

from meshq import AddressFullError, AddressSettings, Client, Message
from meshq.limits import KIB, MIB
from meshq.testing import SimDisk
from tests.node.lives import Lives, bodies, lives
from tests.node.test_large_on_a_full_disk import drain, leave, on

#: More than the reserve of so small a segment takes, as one run and as one message.
SEGMENT_BYTES = 64 * KIB
RUN = [b"%03d" % number + bytes(1_000) for number in range(60)]
ONE = [b"one" + bytes(64_000)]


async def begun(disk: SimDisk, node: Lives, client: Client, sent: list[bytes]) -> None:
    """Messages that are to be moved, and others that are to be drained; the disk has no room for more."""
    await client.send_many("in", [bytes(1_000)] * 50)
    for _ in range(4):
        await client.send_many("q", [Message(body, ttl=100) for body in sent])
    leave(disk, 0)


async def room_again(disk: SimDisk, node: Lives) -> None:
    disk.capacity_bytes = math.inf
    await trio.sleep(300)
    assert not node.broker.statistics().journal.full


async def again(disk: SimDisk, node: Lives, client: Client, sent: list[bytes]) -> None:
    """With room everything is in one place, in this life and in the next."""
    await room_again(disk, node)
    await node.again(killed=True)
    found: list[bytes] = []
    for name in ("q", "aside"):
        async with client.consumer(name) as consumer:
            found += await bodies(consumer)
    assert sorted(found) == sorted(sent * 4)


def moving(disk: SimDisk) -> dict[str, Any]:
    moves = AddressSettings(expiry_address="aside", dead_letter_address="aside")
    return {**on(disk, SEGMENT_BYTES), "queues": ["q", "in", "aside"], "address_settings": {"q": moves}}


async def reached(client: Client) -> list[bytes]:
    """What has arrived where it was to go."""
    async with client.consumer("aside", browse=True) as consumer:
        return [message.body async for message in consumer]


@pytest.mark.parametrize("sent", [RUN, ONE])
async def test_an_operators_move_is_refused_and_everything_else_goes_on(sent: list[bytes]) -> None:
    disk = SimDisk(random.Random(1))
    settings = {**on(disk, SEGMENT_BYTES), "queues": ["q", "in", "aside"]}
    async with lives(**settings) as node, node.client(min_large_message_size=4 * MIB) as client:
        async with node.client() as other:
            for _ in range(4):
                await client.send_many("q", sent)
            await client.send_many("in", [bytes(1_000)] * 50)
            leave(disk, 0)
            with trio.fail_after(60), pytest.raises(AddressFullError):
                for _ in range(20):
                    await client.move_messages("q", "aside")
                    await client.move_messages("aside", "q")
            with trio.fail_after(60):
                await drain(other, 50)
        await again(disk, node, client, sent)


async def test_room_is_asked_for_as_often_as_a_run_of_large_messages_needs_it() -> None:
    disk = SimDisk(random.Random(1))
    settings = {**on(disk, SEGMENT_BYTES), "queues": ["q", "aside"]}
    sent = [b"%03d" % number + bytes(50_000) for number in range(12)]
    async with lives(**settings) as node, node.client(min_large_message_size=4 * MIB) as client:
        await client.send_many("q", sent)
        with trio.fail_after(60):
            assert await client.move_messages("q", "aside") == len(sent)
        async with client.consumer("aside") as consumer:
            assert await bodies(consumer) == sent


@pytest.mark.slow
@pytest.mark.parametrize("sent", [RUN, ONE])
@pytest.mark.parametrize("why", ["expired", "rejected"])
@pytest.mark.parametrize("known", [False, True])
async def test_what_expires_or_is_rejected_stays_and_everything_else_goes_on(
    sent: list[bytes], why: str, known: bool
) -> None:
    disk = SimDisk(random.Random(1))
    async with lives(**moving(disk)) as node, node.client(min_large_message_size=4 * MIB) as client:
        async with node.client() as other:
            await begun(disk, node, client, sent)
            if known:
                with trio.fail_after(60), pytest.raises(AddressFullError):
                    while True:
                        await other.send("in", bytes(1_000))
            assert node.broker.statistics().journal.full is known
            if why == "expired":
                await trio.sleep(200)
                gone = len(await reached(client))
                if sent is RUN and not known:
                    # A run finds room in the segment that was made ahead.  Each run that has gone whole gives its own
                    # room back, and more goes, but a run is one record: what has gone of it in part gives nothing
                    # back.  How the parts of several runs come to lie decides whether the last of them goes, too; it
                    # stays only if there is no room for another segment.
                    journal = node.broker.statistics().journal
                    assert journal is not None
                    assert gone == len(sent) * 4 or (gone >= len(sent) and journal.full), gone
                    assert not journal.full or disk.free_bytes() < SEGMENT_BYTES
                else:
                    assert gone == 0
            else:
                async with client.consumer("q") as consumer:
                    await consumer.reject(*await consumer.receive_many(1_000))
            with trio.fail_after(60):
                await drain(other, 50)
        if why == "expired":
            await room_again(disk, node)
            assert len(await reached(client)) == len(sent) * 4
        await again(disk, node, client, sent)


async def test_what_is_larger_than_a_segment_expires_and_is_rejected_while_there_is_room() -> None:
    disk = SimDisk(random.Random(1))
    async with lives(**moving(disk)) as node, node.client(min_large_message_size=4 * MIB) as client:
        await client.send_many("q", [Message(ONE[0], ttl=10)] * 2)
        await client.send_many("q", ONE)
        async with client.consumer("q", window=1) as consumer:
            await trio.sleep(60)
            # One of the three is held, until it comes back.
            assert len(await reached(client)) == 1
            while delivery := await consumer.receive(timeout=30):
                await consumer.reject(delivery)
        assert sorted(await reached(client)) == [*ONE * 3]
