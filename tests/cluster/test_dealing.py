"""Who gets what in each mode where nodes have queues of the same name, of different names, or none."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest
import trio

from meshq import AddressSettings, MessageRoute, NotFoundError
from tests.cluster.kit import Mesh, bodies, mesh

MODES = ("off", "strict", "on_demand", "off_with_redistribution")


def numbered(count: int, first: int = 0) -> list[bytes]:
    return [b"%d" % number for number in range(first, first + count)]


async def make(nodes: Mesh, node: str, *queues: str, address: str = "work", routing: str = "anycast") -> None:
    async with nodes.client(node) as client:
        await client.create_address(address, routing=routing)
        for queue in queues:
            await client.create_queue(queue, address=address, routing=routing)


async def settled(nodes: Mesh, *names: str) -> dict[str, int]:
    await trio.sleep(1)
    return await nodes.left(*names)


async def told(nodes: Mesh, target: str, at: str = "a") -> dict[str, str]:
    """What the node says of a message's way: queues elsewhere with the number of their node before their names."""
    async with nodes.client(at) as client:
        route: MessageRoute = await client.explain_route(target)
    ids = {bytes(broker.node_id).hex(): name for name, broker in nodes.brokers.items()}
    return {f"{ids[step.via.rpartition('.')[2]] if step.via else at}/{step.name}": step.gets for step in route.steps}


async def test_eight_messages_are_two_for_each_of_four_nodes_beginning_here_and_always_in_one_order() -> None:
    async with mesh("abcd", root="simulated") as nodes:
        order: list[str] = []
        into, out = trio.open_memory_channel[str](8)
        async with trio.open_nursery() as nursery:

            async def consume(name: str, *, task_status: trio.TaskStatus[None]) -> None:
                async with nodes.client(name) as client, client.consumer("q") as consumer:
                    task_status.started()
                    async for delivery in consumer:
                        await delivery.ack()
                        await into.send(name)

            for name in "abcd":
                await nursery.start(consume, name)
            await nodes.joined("a", "b", "c", "d", queue="q", consumers=4)
            connections = nodes.brokers["a"].statistics().connections
            async with nodes.client("a") as client:
                for number in range(8):
                    await client.send("q", b"%d" % number)
                    order.append(await out.receive())
                # Its own, and no other one.
                assert nodes.brokers["a"].statistics().connections - connections <= 1
            nursery.cancel_scope.cancel()
        assert order[:4] == order[4:]
        assert order[0] == "a" and sorted(order[:4]) == list("abcd")


@pytest.mark.parametrize(("mode", "elsewhere"), [("strict", 5), ("on_demand", 0), ("off", 0)])
async def test_with_the_only_consumer_here_strict_sends_half_away_and_demand_nothing(mode: str, elsewhere: int) -> None:
    async with mesh("ab", root="simulated", mode=mode) as nodes:
        for name in "ab":
            await make(nodes, name, "q", address="q")
        await nodes.joined("a", "b")
        async with (
            nodes.client("a") as here,
            here.consumer("q", filter="colour IS NULL"),
            nodes.client("b") as there,
            there.consumer("q", filter="colour = 'green'"),
        ):
            await nodes.joined("a", "b", queue="q", consumers=2)
            # Filters that don't fit are no reason for strict either.
            await nodes.send("a", numbered(10), "q")
            left = await settled(nodes)
        assert left == {key: count for key, count in {"a/q": 10 - elsewhere, "b/q": elsewhere}.items() if count}


@pytest.mark.parametrize("mode", MODES)
async def test_nothing_goes_to_a_node_without_the_queue(mode: str) -> None:
    async with mesh("abc", root="simulated", mode=mode) as nodes:
        await make(nodes, "a", "q", address="q")
        await make(nodes, "b", "other", address="other")
        # The address alone is no queue.
        await make(nodes, "c", address="q")
        await nodes.joined("a", "b", "c")
        await nodes.send("a", numbered(10), "q")
        assert await settled(nodes) == {"a/q": 10}
        assert all(peer.waiting == 0 for peer in nodes.known("a").peers())
        async with nodes.client("b") as client:
            assert "q" not in await client.queues()


@pytest.mark.parametrize(
    ("mode", "consumed", "expected"),
    [
        ("strict", "", {"a/q0": 5, "b/q1": 5}),
        ("strict", "b", {"a/q0": 5, "b/q1": 5}),
        ("on_demand", "", {"a/q0": 10}),
        ("on_demand", "b", {"b/q1": 10}),
        ("off", "b", {"a/q0": 10}),
        ("off_with_redistribution", "b", {"a/q0": 10}),
    ],
)
@pytest.mark.parametrize("together", [True, False])
async def test_queues_of_different_names_on_an_anycast_address_are_dealt_to_as_the_mode_says(
    mode: str, consumed: str, expected: dict[str, int], together: bool
) -> None:
    async with mesh("ab", root="simulated", mode=mode) as nodes:
        await make(nodes, "a", "q0")
        await make(nodes, "b", "q1")
        await nodes.joined("a", "b")
        async with AsyncExitStack() as stack:
            if consumed:
                there = await stack.enter_async_context(nodes.client("b"))
                await stack.enter_async_context(there.consumer("q1"))
                await nodes.joined("a", "b", queue="q1", consumers=1)
            said = await told(nodes, "work")
            assert {key for key, gets in said.items() if gets != "no"} == set(expected)
            for some in [numbered(10)] if together else [[body] for body in numbered(10)]:
                await nodes.send("a", some, "work")
            assert await settled(nodes) == expected


@pytest.mark.parametrize("mode", MODES)
async def test_each_name_of_a_multicast_address_gets_its_copy_wherever_it_is_unless_nothing_crosses(mode: str) -> None:
    async with mesh("ab", root="simulated", mode=mode) as nodes:
        await make(nodes, "a", "both", address="news", routing="multicast")
        await make(nodes, "b", "both", address="news", routing="multicast")
        async with (
            nodes.client("b") as there,
            there.subscribe("news", name="durable", durable=True),
            there.consumer("both"),
            there.subscribe("news") as fleeting,
        ):
            await nodes.joined("a", "b", queue="both", consumers=1)
            said = await told(nodes, "news")
            await nodes.send("a", numbered(4), "news")
            left = await settled(nodes)
            got = bodies(await fleeting.receive_many(10, timeout=0.1))
        both = {"strict": {"a/both": 2, "b/both": 2}, "on_demand": {"b/both": 4}}.get(mode, {"a/both": 4})
        own = {"b/news::durable": 4} if mode != "off" else {}
        assert {key: count for key, count in left.items() if "$" not in key} == both | own
        assert got == (numbered(4) if mode != "off" else [])
        told_of = {key for key, gets in said.items() if gets != "no" and "$" not in key}
        assert told_of == set(both | own)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("known_here", [True, False])
async def test_a_queue_that_is_named_is_the_one_of_that_name_wherever_it_is(mode: str, known_here: bool) -> None:
    async with mesh("ab", root="simulated", mode=mode) as nodes:
        await make(nodes, "a", *(["q0"] if known_here else []), address="work" if known_here else "another")
        await make(nodes, "b", "q0", "q1")
        await nodes.joined("a", "b")
        for target in ("work::q0", "work::q1"):
            said = await told(nodes, target)
            await nodes.send("a", numbered(4), target)
            left = {key: count for key, count in (await settled(nodes)).items() if target.endswith(key[2:])}
            name = target[6:]
            assert {key for key, gets in said.items() if gets != "no"} == set(left)
            if mode == "off":
                assert left == {f"a/{name}": 4}
            elif name == "q1" or not known_here:
                assert left == {f"b/{name}": 4}
            else:
                assert left == ({"a/q0": 2, "b/q0": 2} if mode == "strict" else {"a/q0": 4})
        async with nodes.client("a") as client:
            queues = [name for name in await client.queues() if not name.startswith("$")]
        # What is only elsewhere was not made here.
        assert queues == (["q0", "q1"] if mode == "off" else ["q0"] if known_here else [])


async def test_a_subscription_elsewhere_can_be_named() -> None:
    settings = {"address_settings": {"#": AddressSettings(auto_create_queues=False)}}
    async with mesh("ab", root="simulated", broker=settings) as nodes:
        await make(nodes, "b", address="news", routing="multicast")
        async with nodes.client("b") as there:
            for name in ("mine", "yours"):
                async with there.subscribe("news", name=name, durable=True):
                    pass
        await nodes.joined("a", "b")
        await nodes.send("a", numbered(3), "news::mine")
        assert await settled(nodes) == {"b/news::mine": 3}
        async with nodes.client("a") as client:
            with pytest.raises(NotFoundError):
                await client.send("news::theirs", b"x")


@pytest.mark.parametrize("count", [1, 3])
async def test_messages_of_transactions_are_dealt_in_turn_like_others(count: int) -> None:
    async with mesh("ab", root="simulated", mode="strict") as nodes:
        for name in "ab":
            await make(nodes, name, "q", address="q")
        await nodes.joined("a", "b")
        async with nodes.client("a") as client:
            for first in range(0, 10 * count, count):
                async with client.transaction() as tx:
                    for body in numbered(count, first):
                        await tx.send("q", body)
        assert await settled(nodes) == {"a/q": 5 * count, "b/q": 5 * count}


@pytest.mark.parametrize(("wanted", "routing"), [("anycast", "multicast"), ("multicast", "anycast")])
async def test_an_address_that_is_made_here_is_routed_as_it_is_elsewhere(wanted: str, routing: str) -> None:
    settings = {"address_settings": {"#": AddressSettings(default_routing=wanted)}}
    async with mesh("ab", root="simulated", broker=settings) as nodes:
        await make(nodes, "b", "q1", address="work", routing=routing)
        await nodes.joined("a", "b")
        async with nodes.client("b") as there, there.consumer("q1") as consumer:
            await nodes.joined("a", "b", queue="q1", consumers=1)
            await nodes.send("a", numbered(3), "work")
            assert bodies(await consumer.receive_many(3, timeout=1)) == numbered(3)


async def test_a_read_of_a_queue_that_is_elsewhere_makes_one_here_and_they_share() -> None:
    async with mesh("ab", root="simulated") as nodes:
        await make(nodes, "b", "q1")
        await nodes.joined("a", "b")
        async with (
            nodes.client("a") as here,
            here.consumer("work::q1") as near,
            nodes.client("b") as there,
            there.consumer("work::q1") as far,
        ):
            await nodes.joined("a", "b", queue="q1", consumers=2)
            await nodes.send("a", numbered(4), "work")
            got: Sequence[list[bytes]] = [bodies(await one.receive_many(2, timeout=1)) for one in (near, far)]
            assert got == [numbered(4)[::2], numbered(4)[1::2]]
