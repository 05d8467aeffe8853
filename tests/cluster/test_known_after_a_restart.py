"""What a node knows of the others in its next life: durable queues of nodes that it has not met again."""

from __future__ import annotations

from typing import Any

import pytest
import trio

from meshq import Message
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import bodies, until
from tests.cluster.test_lost_nodes import FAST, FINITE, numbered, state


async def subscribed(nodes: Hosts, name: str = "sub", **settings: Any) -> None:
    """Make a durable subscription at b, which nobody consumes from then."""
    async with nodes.client("b") as client, client.subscribe("news", name=name, durable=True, **settings):
        pass


async def known(nodes: Hosts) -> None:
    await nodes.joined()
    async with nodes.client("a") as client:
        await client.create_address("news", routing="multicast")
    await trio.sleep(0.2)


async def publish(nodes: Hosts, count: int, **properties: Any) -> None:
    async with nodes.client("a") as client:
        await client.send_many("news", [Message(body, properties=properties) for body in numbered(count)])


async def settled_and_crashed(nodes: Hosts) -> None:
    """What the nodes know of each other is written, and something after it; then both crash, and a comes back."""
    await trio.sleep(0.5)
    await nodes.send("a", [b"x"], "own")
    await nodes.crash("b")
    await nodes.crash("a")
    await nodes.start("a")


@pytest.mark.parametrize("mode", ["on_demand", "strict"])
@pytest.mark.parametrize("how", ["crash", "stop"])
async def test_a_restart_of_the_sender_forgets_no_durable_subscription_elsewhere(how: str, mode: str) -> None:
    async with hosts(mode=mode, cluster=FAST) as nodes:
        await subscribed(nodes)
        await known(nodes)
        await nodes.crash("b")
        for life in range(2):
            await (nodes.crash("a") if how == "crash" else nodes.stop("a"))
            await nodes.start("a")
            await publish(nodes, 10)
            assert nodes.known("a").peers()[0].waiting == 10 * (life + 1)
            assert nodes.known("a").nodes() == 1
        await nodes.start("b")
        await nodes.joined()
        got = await nodes.drain("b", "news::sub")
        assert bodies(got) == numbered(10) * 2


async def test_a_durable_subscription_that_was_made_while_the_nodes_were_linked_is_not_forgotten_either() -> None:
    async with hosts(cluster=FAST) as nodes:
        await known(nodes)
        await subscribed(nodes)
        await settled_and_crashed(nodes)
        await publish(nodes, 10)
        assert nodes.known("a").peers()[0].waiting == 10


async def test_a_filter_of_a_durable_subscription_elsewhere_is_known_after_a_restart() -> None:
    async with hosts(cluster=FAST) as nodes:
        await subscribed(nodes, filter="colour = 'red'")
        await known(nodes)
        await nodes.crash("b")
        await nodes.crash("a")
        await nodes.start("a")
        await publish(nodes, 5, colour="blue")
        await publish(nodes, 7, colour="red")
        assert nodes.known("a").peers()[0].waiting == 7


async def test_a_subscription_that_ended_is_forgotten_over_a_restart_and_what_is_not_durable_never_kept() -> None:
    async with hosts(cluster=FAST) as nodes:
        await subscribed(nodes, "one")
        await subscribed(nodes, "two")
        async with nodes.client("b") as client:
            await client.create_queue("passing", address="news", routing="multicast", durable=False)
            await known(nodes)
            await client.unsubscribe("news", "one")
        await settled_and_crashed(nodes)
        await publish(nodes, 10)
        await nodes.start("b")
        await nodes.joined()
        await until(lambda: nodes.known("a").peers()[0].waiting == 0)
        assert await nodes.left("b") == {"b/news::two": 10}
        assert nodes.brokers["b"].statistics().unrouted == 0


@pytest.mark.parametrize("linked_first", [True, False])
async def test_nothing_waits_after_a_restart_for_a_queue_elsewhere_that_is_not_durable(linked_first: bool) -> None:
    async with hosts(cluster=FAST) as nodes:
        await known(nodes)
        if not linked_first:
            await nodes.crash("a")
        async with nodes.client("b") as client:
            await client.create_queue("passing", address="news", routing="multicast", durable=False)
        if not linked_first:
            await nodes.start("a")
            await nodes.joined()
        await trio.sleep(0.5)
        await publish(nodes, 1)
        await until(lambda: nodes.known("a").peers()[0].waiting == 0)
        await nodes.send("a", [b"x"], "own")
        assert await nodes.left("b") == {"b/passing": 1}
        await nodes.crash("b")
        await nodes.crash("a")
        await nodes.start("a")
        await publish(nodes, 10)
        assert nodes.known("a").peers()[0].waiting == 0


@pytest.mark.parametrize("waits", [True, False])
async def test_what_a_node_had_that_left_goes_with_a_restart_unless_something_waits(waits: bool) -> None:
    async with hosts(cluster=FAST) as nodes:
        await subscribed(nodes)
        await known(nodes)
        await nodes.stop("b")
        await until(lambda: state(nodes, "a") == "left")
        if waits:
            await publish(nodes, 1)
        await trio.sleep(0.5)
        for _ in range(2):
            await nodes.crash("a")
            await nodes.start("a")
        await publish(nodes, 10)
        assert nodes.brokers["a"].statistics().ready == (11 if waits else 0)


async def test_a_node_that_is_given_up_is_known_again_in_the_next_life() -> None:
    async with hosts(cluster={**FINITE, "initial_connect_attempts": 100}) as nodes:
        await subscribed(nodes)
        await known(nodes)
        await nodes.crash("b")
        await until(lambda: state(nodes, "a") == "down")
        await publish(nodes, 5)
        await nodes.crash("a")
        await nodes.start("a")
        await publish(nodes, 3)
        assert nodes.known("a").peers()[0].waiting == 3


@pytest.mark.parametrize("how", ["at once", "away", "down"])
async def test_of_a_node_in_whose_place_another_one_is_nothing_is_known_after_a_restart(how: str) -> None:
    async with hosts(cluster=FINITE if how == "down" else FAST) as nodes:
        await subscribed(nodes)
        await known(nodes)
        await nodes.crash("b")
        if how != "at once":
            await until(lambda: state(nodes, "a") == how)
        nodes.own["b"] = {"data_dir": "/data/new"}
        await nodes.start("b")
        await nodes.joined()
        await trio.sleep(0.5)
        await nodes.crash("b")
        await nodes.crash("a")
        await nodes.start("a")
        await publish(nodes, 3)
        assert nodes.brokers["a"].statistics().ready == 0


async def test_a_node_that_left_has_left_in_the_next_life_too() -> None:
    async with hosts(mode="strict", cluster=FAST, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        # Its confirm comes after its good-bye: so something waits, and the node is still known.
        nodes.network.delay("b", "a", 0.5, 0.5)
        await nodes.send("a", numbered(10))
        await nodes.stop("b")
        await until(lambda: state(nodes, "a") == "left")
        await nodes.crash("a")
        await nodes.start("a")
        before = nodes.known("a").peers()[0].waiting
        assert before > 0
        assert state(nodes, "a") == "left"
        await trio.sleep(5)
        assert state(nodes, "a") == "left"
        await nodes.send("a", numbered(10))
        assert nodes.known("a").peers()[0].waiting == before


async def test_a_node_that_is_not_listed_any_more_has_no_share_and_what_only_it_has_waits() -> None:
    listed = {**FAST, "allow_direct_connections_only": True}
    async with hosts(mode="strict", cluster=listed, broker={"queues": ["q"]}) as nodes:
        await subscribed(nodes)
        await known(nodes)
        await nodes.crash("b")
        await nodes.crash("a")
        nodes.others["a"] = []
        await nodes.start("a")
        await nodes.send("a", numbered(10))
        await publish(nodes, 3)
        assert nodes.known("a").peers() == []
        assert await nodes.left("a") == {"a/q": 10, f"a/{nodes.forward('b')}": 3}


@pytest.mark.parametrize("restarted", [True, False])
async def test_a_node_that_moved_to_another_url_gets_what_waits_for_it(*, restarted: bool) -> None:
    old, new = "tcp://b:5000?insecure=true", "tcp://b:5001?insecure=true"
    async with hosts(cluster=FAST, others={"a": [old, new]}) as nodes:
        await subscribed(nodes)
        await known(nodes)
        await nodes.crash("b")
        await until(lambda: nodes.known("a").peers()[0].state == "away")
        await publish(nodes, 10)
        if restarted:
            await nodes.crash("a")
            await nodes.start("a")
        nodes.urls["b"] = new
        await nodes.start("b")
        with trio.fail_after(30):
            await nodes.joined()
        await until(lambda: all(not peer.waiting for peer in nodes.known("a").peers()))
        assert [peer.state for peer in nodes.known("a").peers()][1] == "linked"
        await publish(nodes, 5)
        # And back again.
        await nodes.crash("b")
        await until(lambda: nodes.known("a").peers()[1].state == "away")
        nodes.urls["b"] = old
        await nodes.start("b")
        with trio.fail_after(30):
            await nodes.joined()
        assert nodes.known("a").peers()[0].state == "linked"
        got = await nodes.drain("b", "news::sub")
        assert bodies(got) == numbered(10) + numbered(5)
