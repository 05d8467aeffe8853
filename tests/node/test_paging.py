"""Queues that outgrow memory: what they hold goes to the disk and comes back, in order, over restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
import trio.testing

from meshq import AddressSettings, Client, Consumer, Message
from tests.node.lives import Lives, TrioWall, bodies, lives, machine
from tests.process import ENDS, End

MIB = 1 << 20
#: A message, and how many of them are several times what memory may take.
SIZE = 4_000
COUNT = 1_000


def body(number: int) -> bytes:
    return b"%d." % number + bytes(SIZE)


@asynccontextmanager
async def paged(**settings: Any) -> AsyncIterator[tuple[Lives, Client]]:
    """A broker with little memory and small pages."""
    address = {"#": AddressSettings(page_size_bytes=65_536, **settings.pop("address", {}))}
    settings = {"env": machine(wall=TrioWall()), "memory_limit": MIB, "address_settings": address, **settings}
    async with lives(**settings) as node, node.client() as client:
        yield node, client


async def fill(client: Client, address: str = "work", count: int = COUNT, **options: Any) -> None:
    for start in range(0, count, 5):
        numbered = range(start, min(start + 5, count))
        await client.send_many(address, [Message(body(number), **options) for number in numbered])


def used(node: Lives) -> int:
    statistics = node.broker.statistics()
    assert statistics.memory_used <= MIB + 5 * (SIZE + 1_000)
    return statistics.memory_used


async def numbers(consumer: Consumer, quiet: float = 0.5) -> list[int]:
    return [int(one.split(b".")[0]) for one in await bodies(consumer, quiet)]


async def test_a_queue_larger_than_memory_is_delivered_whole_and_in_order() -> None:
    async with paged() as (node, client):
        await fill(client)
        found = await client.queue("work")
        assert found.ready == COUNT and found.paged > COUNT // 2 and used(node) < MIB
        assert found.paged_bytes > found.paged * SIZE
        async with client.consumer("work") as consumer:
            assert await numbers(consumer) == list(range(COUNT))
        found = await client.queue("work")
        assert (found.ready, found.paged, found.acknowledged) == (0, 0, COUNT)
        assert node.broker.statistics().memory_used == 0


@pytest.mark.parametrize("end", ENDS)
async def test_what_was_paged_is_there_after_a_restart_and_memory_stays_bounded(end: End) -> None:
    async with paged() as (node, client):
        await fill(client)
        async with client.consumer("work", window=50) as consumer:
            first = [int(one.body.split(b".")[0]) for one in await consumer.receive_many(30, timeout=1)]
            assert first == list(range(30))
        await node.again(end=end)
        assert used(node) < MIB and (await client.queue("work")).paged > COUNT // 2
        async with client.consumer("work") as consumer:
            assert await numbers(consumer) == list(range(COUNT))


async def test_acknowledgements_in_the_middle_survive() -> None:
    async with paged() as (node, client):
        await fill(client)
        async with client.consumer("work", filter="priority = 4", window=COUNT, window_bytes=1 << 30) as consumer:
            taken = await consumer.receive_many(COUNT, timeout=5)
            odd = [one for one in taken if int(one.body.split(b".")[0]) % 2]
            await consumer.ack(*odd, confirm=True)
        await node.again(killed=True)
        async with client.consumer("work") as consumer:
            got = await numbers(consumer)
        gone = {int(one.body.split(b".")[0]) for one in odd}
        assert got == [number for number in range(COUNT) if number not in gone]


async def test_several_queues_that_share_messages() -> None:
    async with paged() as (node, client):
        for name in ("a", "b"):
            await client.create_queue(name, address="work", routing="multicast")
        await fill(client)
        async with client.consumer("a") as consumer:
            assert await numbers(consumer) == list(range(COUNT))
        assert used(node) < MIB
        async with client.consumer("b") as consumer:
            assert await numbers(consumer) == list(range(COUNT))
        assert node.broker.statistics().memory_used == 0


async def test_a_filter_looks_at_what_is_on_the_disk() -> None:
    async with paged() as (node, client):
        async with client.producer("work") as producer:
            for number in range(COUNT):
                await producer.send(body(number), properties={"n": number})
        async with client.consumer("work", filter=f"n >= {COUNT - 3}") as consumer:
            assert await numbers(consumer) == [COUNT - 3, COUNT - 2, COUNT - 1]
        used(node)
        async with client.consumer("work") as consumer:
            assert await numbers(consumer) == list(range(COUNT - 3))


async def test_browsing_shows_what_is_on_the_disk_and_takes_nothing() -> None:
    async with paged() as (node, client):
        await fill(client)
        async with client.consumer("work", browse=True) as consumer:
            assert [int(one.body.split(b".")[0]) async for one in consumer] == list(range(COUNT))
        assert (await client.queue("work")).ready == COUNT and used(node) < MIB


async def test_what_a_filter_has_to_look_at_on_the_disk_goes_before_what_is_less_urgent() -> None:
    async with paged() as (node, client):
        async with client.producer("work") as producer:
            for number in range(COUNT):
                await producer.send(body(number), properties={"n": number}, priority=5)
            await producer.send(body(COUNT), properties={"n": COUNT}, priority=4)
        assert (await client.queue("work")).paged and used(node)
        async with client.consumer("work", filter=f"n >= {COUNT - 2}", window=1) as consumer:
            assert await numbers(consumer) == [COUNT - 2, COUNT - 1, COUNT]


async def test_what_is_urgent_goes_first_wherever_it_is() -> None:
    async with paged() as (_, client):
        await fill(client, count=COUNT // 2)
        await fill(client, count=COUNT // 2, priority=9)
        async with client.consumer("work") as consumer:
            assert await numbers(consumer) == 2 * list(range(COUNT // 2))


async def test_groups_keep_their_order() -> None:
    async with paged() as (node, client):
        async with client.producer("work") as producer:
            for number in range(COUNT):
                await producer.send(body(number), group=f"g{number % 7}")
        await node.again(killed=True)
        got: list[int] = []
        async with client.consumer("work", window=40) as ann, client.consumer("work", window=40) as bob:
            while len(got) < COUNT:
                for consumer in (ann, bob):
                    batch = await consumer.receive_many(40, timeout=0.2)
                    got += [int(one.body.split(b".")[0]) for one in batch]
                    await consumer.ack(*batch)
        assert sorted(got) == list(range(COUNT))
        for group in range(7):
            mine = [number for number in got if number % 7 == group]
            assert mine == sorted(mine)


async def test_groups_with_filters_that_come_later() -> None:
    async with paged() as (node, client):
        async with client.producer("work") as producer:
            for number in range(COUNT):
                await producer.send(body(number), group=f"g{number % 7}", properties={"n": number})
        await node.again(killed=True)
        async with client.consumer("work", filter=f"n >= {COUNT - 7}") as consumer:
            assert sorted(await numbers(consumer)) == list(range(COUNT - 7, COUNT))
        async with client.consumer("work") as consumer:
            assert sorted(await numbers(consumer)) == list(range(COUNT - 7))


async def test_the_newest_of_each_value_is_kept_also_of_what_is_on_the_disk() -> None:
    async with paged() as (node, client):
        async with client.producer("work") as producer:
            for number in range(COUNT):
                await producer.send(body(number), properties={"v": number % 500})
        await client.set_address_settings("work", AddressSettings(default_last_value_key="v"))
        async with client.consumer("work") as consumer:
            assert await numbers(consumer) == list(range(500, COUNT))
        assert (await client.queue("work")).replaced == 500
        await fill(client, count=10)
        await node.again(killed=True)
        async with client.consumer("work") as consumer:
            assert len(await numbers(consumer)) == 10


async def test_delayed_messages_are_paged_and_come_when_they_are_due() -> None:
    async with paged() as (node, client):
        await fill(client, delay=0.3)
        found = await client.queue("work")
        assert found.paged > COUNT // 2 and used(node) < MIB
        async with client.consumer("work") as consumer:
            assert sorted(await numbers(consumer, 2.0)) == list(range(COUNT))


async def test_what_expires_on_the_disk_goes_where_it_belongs() -> None:
    async with paged(address={"expiry_address": "late"}) as (node, client):
        await fill(client, ttl=1.5)
        assert (await client.queue("work")).paged > COUNT // 2
        await trio.sleep(3)
        assert (await client.queue("work")).expired == COUNT and used(node) < MIB
        async with client.consumer("late") as consumer:
            assert sorted(await numbers(consumer)) == list(range(COUNT))


async def test_messages_on_the_disk_are_moved_redriven_and_purged() -> None:
    async with paged() as (node, client):
        await fill(client)
        assert await client.move_messages("work", "there") == COUNT
        assert used(node) < MIB and (await client.queue("there")).paged > COUNT // 2
        await node.again(killed=True)
        assert await client.redrive("there") == COUNT
        async with client.consumer("work", window=10) as consumer:
            taken = await consumer.receive_many(10, timeout=1)
            assert [int(one.body.split(b".")[0]) for one in taken] == list(range(10))
            await consumer.ack(*taken, confirm=True)
        assert await client.purge_queue("work") == COUNT - 10
        assert node.broker.statistics().memory_used == 0


async def test_what_comes_back_goes_first_again() -> None:
    async with paged() as (_, client):
        await fill(client)
        async with client.consumer("work", window=200) as consumer:
            taken = await consumer.receive_many(200, timeout=1)
            await consumer.ack(*taken[100:])
        async with client.consumer("work") as consumer:
            rest = [number for number in range(COUNT) if not 100 <= number < len(taken)]
            assert await numbers(consumer) == rest


async def test_an_address_is_paged_by_its_own_bound() -> None:
    settings = {"small": AddressSettings(max_size_bytes=200_000, page_size_bytes=65_536)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await fill(client, "small", 200)
        await fill(client, "large", 200)
        small, large = await client.queue("small"), await client.queue("large")
        assert small.paged > 100 and large.paged == 0
        async with client.consumer("small") as consumer:
            assert await numbers(consumer) == list(range(200))


async def test_an_address_is_paged_by_messages() -> None:
    settings = {"small": AddressSettings(max_size_messages=50, page_size_bytes=65_536)}
    async with lives(address_settings=settings) as node, node.client() as client:
        await fill(client, "small", 500)
        found = await client.queue("small")
        assert found.ready == 500 and found.ready - found.paged < 100
        async with client.consumer("small") as consumer:
            assert await numbers(consumer) == list(range(500))


async def test_who_waits_for_messages_and_who_sends_go_on_together() -> None:
    async with paged() as (node, client), trio.open_nursery() as nursery:
        await fill(client, count=500)
        nursery.start_soon(fill, client)
        got: list[int] = []
        async with client.consumer("work", window=20) as consumer:
            while len(got) < 500 + COUNT:
                batch = await consumer.receive_many(20, timeout=2)
                got += [int(one.body.split(b".")[0]) for one in batch]
                await consumer.ack(*batch)
                used(node)
        assert got == [*range(500), *range(COUNT)]
