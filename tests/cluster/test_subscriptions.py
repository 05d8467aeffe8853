"""Queues that take only some messages, subscriptions and requests, over several nodes."""

from __future__ import annotations

import trio
import trio.testing

from meshq import Message, NotFoundError
from tests.cluster.kit import Mesh, mesh
from tests.node.lives import bodies


async def everywhere(nodes: Mesh, queue: str, consumers: int) -> None:
    """All nodes know of so many consumers of a queue."""
    await nodes.joined(queue=queue, consumers=consumers)


async def test_another_node_is_dealt_only_what_its_queue_takes() -> None:
    async with mesh("ab", mode="strict") as nodes, nodes.client("a") as here, nodes.client("b") as there:
        for client in (here, there):
            await client.create_address("news", routing="multicast")
        await there.create_queue("even", address="news", routing="multicast", filter="even")
        await here.create_queue("odd", address="news", routing="multicast", filter="NOT even")
        await nodes.joined()
        await trio.testing.wait_all_tasks_blocked()
        messages = [Message(b"%d" % number, properties={"even": number % 2 == 0}) for number in range(20)]
        await here.send_many("news", [*messages, Message(b"neither")])
        await trio.testing.wait_all_tasks_blocked()
        assert [delivery.body for delivery in await nodes.drain("b", "even")] == [b"%d" % n for n in range(0, 20, 2)]
        assert [delivery.body for delivery in await nodes.drain("a", "odd")] == [b"%d" % n for n in range(1, 20, 2)]
        assert nodes.brokers["a"].statistics().unrouted == 1
        assert nodes.brokers["b"].statistics().unrouted == 0
        assert await nodes.left() == {}


async def test_a_subscription_on_each_node_gets_every_message() -> None:
    async with mesh("ab") as nodes, nodes.client("a") as here, nodes.client("b") as there:
        await nodes.joined()
        async with (
            here.subscribe("news") as one,
            there.subscribe("news", filter="n > 1") as two,
            there.subscribe("news", name="desk", durable=True) as three,
        ):
            await everywhere(nodes, "news::desk", 1)
            await trio.testing.wait_all_tasks_blocked()
            for number, client in ((1, here), (2, there), (3, here)):
                await client.send("news", b"%d" % number, properties={"n": number})
            assert sorted(await bodies(one)) == [b"1", b"2", b"3"]
            assert sorted(await bodies(two)) == [b"2", b"3"]
            assert sorted(await bodies(three)) == [b"1", b"2", b"3"]
        await trio.testing.wait_all_tasks_blocked()
        await here.send("news", b"gathered")
        assert [delivery.body for delivery in await nodes.drain("b", "news::desk")] == [b"gathered"]
        assert await nodes.left() == {}


async def test_a_request_is_answered_by_whoever_is_at_another_node() -> None:
    async with mesh("ab") as nodes, nodes.client("a") as asker, nodes.client("b") as server:
        await nodes.joined()
        async with server.consumer("work") as consumer, trio.open_nursery() as nursery:
            await everywhere(nodes, "work", 1)

            async def answer() -> None:
                async for message in consumer:
                    await message.reply(message.body.upper())
                    await message.ack()

            nursery.start_soon(answer)
            known = nodes.brokers["b"].statistics().addresses
            assert (await asker.request("work", b"x", timeout=5)).body == b"X"
            nursery.cancel_scope.cancel()
        (name,) = [name for name in await asker.queues() if name.startswith("$temporary.")]
        await asker.delete_queue(name)
        await trio.testing.wait_all_tasks_blocked()
        # The other node has forgotten its address, too.
        assert nodes.brokers["b"].statistics().addresses == known
        for client in (asker, server):
            try:
                await client.send(name, b"x")
            except NotFoundError:
                continue
            raise AssertionError("it was made")
