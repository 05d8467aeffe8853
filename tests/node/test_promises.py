"""What is promised about messages and queues, as a user of a broker sees it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
import trio

from meshq import Broker, Client, Delivery, Message, abc, connect
from tests.node.lives import machine
from tests.process import ENDS, End, Process


@pytest.fixture
def env() -> abc.Env:
    """The outside of one machine, with an empty disk."""
    return machine()


@asynccontextmanager
async def life(env: abc.Env, name: str = "shop", *, end: End = "stopped") -> AsyncIterator[Client]:
    """A client of a broker that ends in one of the ways in which brokers end."""
    process = Process(env)
    async with trio.open_nursery() as nursery:
        broker = Broker(name, data_dir=f"/data/{name}", env=process.env)
        await nursery.start(process.live, broker)
        async with connect(f"inproc://{name}", env=env) as client:
            yield client
            if end != "stopped":
                await process.end(end)
        await broker.stop()


async def drain(client: Client, queue: str) -> list[Delivery]:
    """Receive and acknowledge all that a queue has to give."""
    got: list[Delivery] = []
    async with client.consumer(queue) as consumer:
        while batch := await consumer.receive_many(1_000, timeout=1):
            got += batch
            await consumer.ack(*batch, confirm=True)
    return got


def bodies(deliveries: list[Delivery]) -> list[bytes]:
    return [delivery.body for delivery in deliveries]


async def test_each_queue_of_an_address_keeps_a_copy_and_nodes_may_have_queues_of_one_name(env: abc.Env) -> None:
    async with life(env) as here, life(env, "other") as there:
        for client in (here, there):
            await client.create_address("news", routing="multicast")
            await client.create_queue("desk", address="news", routing="multicast")
        await here.create_queue("archive", address="news", routing="multicast")
        await here.send("news", b"here")
        await there.send("news", b"there")
        assert bodies(await drain(here, "news::desk")) == [b"here"]
        assert bodies(await drain(here, "news::archive")) == [b"here"]
        assert bodies(await drain(there, "news::desk")) == [b"there"]


async def test_ten_messages_to_two_equal_consumers_are_five_each_and_none_twice(env: abc.Env) -> None:
    async with life(env) as client, client.session() as second:
        await client.create_queue("orders")
        async with client.consumer("orders") as one, second.consumer("orders") as two:
            for number in range(10):
                await client.send("orders", b"%d" % number)
            shares = []
            for consumer in (one, two):
                share = []
                while (delivery := await consumer.receive(timeout=1)) is not None:
                    share.append(delivery)
                await consumer.ack(*share, confirm=True)
                shares.append(bodies(share))
        assert [len(share) for share in shares] == [5, 5]
        assert sorted(shares[0] + shares[1]) == [b"%d" % number for number in range(10)]
        assert (await client.queue("orders")).ready == 0


@pytest.mark.parametrize("end", ENDS)
async def test_a_restart_keeps_what_is_durable_and_nothing_else(env: abc.Env, end: End) -> None:
    async with life(env, end=end) as client:
        for number in range(10):
            await client.send("orders", b"%d" % number, durable=number % 2 == 0)
        assert (await client.queue("orders")).ready == 10
    async with life(env) as client:
        assert bodies(await drain(client, "orders")) == [b"0", b"2", b"4", b"6", b"8"]


Sender = Callable[[Client, list[Message]], Awaitable[object]]


async def one_by_one(client: Client, messages: list[Message]) -> None:
    """Each is confirmed before the next."""
    for message in messages:
        await client.send("orders", message)


async def with_a_producer(client: Client, messages: list[Message]) -> None:
    """All are confirmed at the end."""
    async with client.producer("orders") as producer:
        for message in messages:
            await producer.send(message)


async def in_a_transaction(client: Client, messages: list[Message]) -> None:
    """All or none."""
    async with client.transaction() as transaction:
        for message in messages:
            await transaction.send("orders", message)


SENDERS: dict[str, Sender] = {
    "one by one": one_by_one,
    "together": lambda client, messages: client.send_many("orders", messages),
    "by a producer": with_a_producer,
    "in a transaction": in_a_transaction,
}


@pytest.mark.parametrize("end", ["killed", "power"])
@pytest.mark.parametrize("how", SENDERS)
async def test_a_crash_right_behind_the_confirm_keeps_what_is_durable_and_nothing_else(
    env: abc.Env, how: str, end: End
) -> None:
    expected: list[bytes] = []
    for number in range(4):
        # The last of them is durable in every other life: nothing behind it has its confirm wait any longer.
        messages = [Message(b"%d.%d" % (number, part), durable=(part + number) % 2 == 0) for part in range(6)]
        expected += [message.body for message in messages if message.durable]
        async with life(env, end=end) as client:
            await SENDERS[how](client, messages)
    async with life(env) as client:
        assert bodies(await drain(client, "orders")) == expected


@pytest.mark.parametrize("leaves", [True, False])
async def test_what_was_acknowledged_is_gone_and_what_was_seen_comes_again_marked_and_counted(
    env: abc.Env, leaves: bool
) -> None:
    async with life(env) as client, client.session() as second:
        await client.send_many("orders", [b"done", b"seen", b"prefetched"])
        async with second.consumer("orders") as consumer:
            first, seen = [await consumer.receive(timeout=1) for _ in range(2)]
            assert first is not None and seen is not None
            assert [(one.redelivered, one.delivery_count) for one in (first, seen)] == [(False, 1)] * 2
            await first.ack(confirm=True)
            if not leaves:
                # Its session ends, and nobody says what was handed over.
                await second.close()
        again = await drain(client, "orders")
        assert await drain(client, "orders") == []
    assert bodies(again) == [b"seen", b"prefetched"]
    assert (again[0].redelivered, again[0].delivery_count) == (True, 2)
    if leaves:
        assert (again[1].redelivered, again[1].delivery_count) == (False, 1)


@pytest.mark.parametrize("end", ENDS)
async def test_a_hundred_messages_come_in_their_order_before_and_after_a_restart(env: abc.Env, end: End) -> None:
    async with life(env, end=end) as client:
        await client.send_many("orders", [b"%d" % number for number in range(1, 61)])
        async with client.consumer("orders", window=20) as consumer:
            taken = await consumer.receive_many(20, timeout=1)
            assert bodies(taken) == [b"%d" % number for number in range(1, 21)]
            await consumer.ack(*taken[:10], confirm=True)
            # These go back to their place, before what nobody has seen.
            for delivery in reversed(taken[10:]):
                await delivery.nack()
            await client.flush()
    async with life(env) as client:
        await client.send_many("orders", [b"%d" % number for number in range(61, 101)])
        assert bodies(await drain(client, "orders")) == [b"%d" % number for number in range(11, 101)]


@pytest.mark.parametrize("end", ENDS)
async def test_a_message_that_is_sent_again_after_a_restart_is_still_one(env: abc.Env, end: End) -> None:
    async with life(env, end=end) as client:
        await client.send("orders", b"42 umbrellas", duplicate_id="order 7")
    async with life(env) as client:
        await client.send("orders", b"42 umbrellas", duplicate_id="order 7")
        await client.send("orders", b"a teapot", duplicate_id="order 8")
        assert bodies(await drain(client, "orders")) == [b"42 umbrellas", b"a teapot"]


@pytest.mark.parametrize("end", ENDS)
async def test_an_empty_queue_is_there_again_and_who_the_node_is_has_a_directory(env: abc.Env, end: End) -> None:
    async with life(env, end=end) as client:
        await client.create_queue("empty")
        await client.create_address("news", routing="multicast")
        await client.create_queue("desk", address="news", routing="multicast", filter="region = 'emea'")
    async with life(env) as client:
        assert env.disk.names("/data/shop") == ["bindings", "journal", "large", "lock", "paging"]
        assert env.disk.names("/data/shop/bindings") == ["identity-0", "identity-1"]
        assert await client.queues() == ["desk", "empty"]
        await client.send_many("news", [Message(b"1", properties={"region": region}) for region in ("us", "emea")])
        assert (await client.queue("desk")).ready == 1


@pytest.mark.parametrize("end", ENDS)
async def test_the_id_after_20000_takes_the_place_of_the_oldest_also_after_a_restart(env: abc.Env, end: End) -> None:
    async def send(client: Client, *numbers: int) -> int:
        """So many of them were stored."""
        before = (await client.queue("orders")).ready
        await client.send_many("orders", [Message(b"x", duplicate_id=str(number)) for number in numbers])
        return (await client.queue("orders")).ready - before

    async with life(env, end=end) as client:
        await client.create_queue("orders")
        assert await send(client, *range(1, 20_001)) == 20_000
        assert await send(client, 1, 2, 20_000) == 0
        assert await send(client, 20_001) == 1
    async with life(env) as client:
        assert await send(client, 2, 3, 20_001) == 0
        # The oldest has left, and its second message has thrown out the next one.
        assert await send(client, 1) == 1
        assert await send(client, 2) == 1
        assert await send(client, 20_000, 20_001, 1, 2) == 0
