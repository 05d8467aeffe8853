"""How long a link tries: without an end unless it was told otherwise, and what becomes of a node that is given up."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
import trio

from meshq import ClusterConnection, Delivery
from meshq.testing import MemoryNetwork
from tests.cluster.hosts import NETWORK, hosts
from tests.cluster.kit import Mesh, bodies, mesh, until
from tests.cluster.test_lost_nodes import numbered, state

#: What a cluster connection has that was told nothing of it.
DEFAULTS: dict[str, Any] = {"retry_interval": 0.5, "max_retry_interval": 2.0}
#: Fifty of the longest waits.
LONG_S = 100.0


@pytest.mark.slow
@pytest.mark.parametrize("absent_s", [10.0, LONG_S])
async def test_with_the_defaults_a_link_tries_until_its_node_is_there_at_first_and_after_each_restart(
    absent_s: float,
) -> None:
    async with hosts("ab", cluster=DEFAULTS) as nodes:
        there: list[Delivery] = []
        await nodes.joined()
        await nodes.nursery.start(nodes.serve_queue, "b", there)
        for times in range(3):
            await nodes.crash("b")
            if not times:
                # At first: this node has begun after the other one had ended.
                await nodes.crash("a")
                await nodes.start("a")
            await trio.sleep(absent_s)
            assert state(nodes, "a") in ("connecting", "away")
            await nodes.start("b")
            began = trio.current_time()
            await nodes.known("a").wait_for(nodes=2, queue="q", consumers=1, timeout=10)
            assert trio.current_time() - began < 3
            await nodes.send("a", numbered(10, 10 * times))
            # What was acknowledged right before a kill may come again.
            wanted = {*numbered(10, 10 * times)}
            await until(lambda wanted=wanted: wanted <= {*bodies(there)})


@pytest.mark.parametrize("mode", ["on_demand", "strict"])
@pytest.mark.parametrize("linked_first", [False, True])
async def test_a_node_that_three_attempts_did_not_reach_is_down_and_gets_nothing_until_it_announces_itself(
    linked_first: bool, mode: str
) -> None:
    attempts = {"reconnect_attempts" if linked_first else "initial_connect_attempts": 3}
    patient = {"check_period": 100 * LONG_S, **attempts}
    async with hosts("ab", mode=mode, cluster={**DEFAULTS, **patient}, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        # A link that was hardly there is not dialed at once.
        await trio.sleep(60)
        if linked_first:
            await nodes.crash("b")
        else:
            await nodes.crash("a", "b")
            await nodes.start("a")
        # Dialed at once, and again after each of two waits.
        await trio.sleep(0.9)
        assert state(nodes, "a") != "down"
        share = 5 if mode == "strict" else 0
        await nodes.send("a", numbered(10))
        assert nodes.known("a").peers()[0].waiting == share
        await trio.sleep(0.2)
        assert state(nodes, "a") == "down"
        for first in (10, 20, 30):
            await nodes.send("a", numbered(10, first))
            await trio.sleep(LONG_S)
            # What had waited is kept, and nothing comes to it.
            assert state(nodes, "a") == "down"
            assert nodes.known("a").peers()[0].waiting == share
            assert (await nodes.left("a"))["a/q"] == first + 10 - share
        await nodes.start("b")
        await nodes.joined()
        await until(lambda: nodes.known("a").peers()[0].waiting == 0)
        assert (await nodes.left("b")).get("b/q", 0) == share
        await nodes.nursery.start(nodes.serve_queue, "b", [])
        await nodes.known("a").wait_for(queue="q", consumers=1, timeout=5)


@pytest.mark.slow
async def test_without_a_word_of_it_nodes_come_with_the_default_user_and_password() -> None:
    logins: dict[str, dict[str, str]] = {
        "a": {},
        "b": {"user": "ACTIVEMQ.CLUSTER.ADMIN.USER", "password": "CHANGE ME!!"},
        "c": {"user": "ACTIVEMQ.CLUSTER.ADMIN.USER", "password": "CHANGE ME!"},
        "d": {"user": "ACTIVEMQ.CLUSTER.ADMIN.USEr", "password": "CHANGE ME!!"},
    }
    async with mesh("", root="simulated") as nodes:
        network = MemoryNetwork(random.Random(0), NETWORK)
        nodes.nursery.start_soon(network.run)
        nodes.env = attrs.evolve(nodes.env, network=network.host("127.0.0.1"))
        nodes.urls |= {name: f"tcp://127.0.0.1:{port}" for port, name in enumerate(logins, 5_000)}
        for name, login in logins.items():
            others = [other for other in logins if other != name]
            nodes.own[name] = {
                "services": [ClusterConnection("mesh", connector=name, static_connectors=others, **login)]
            }
            await nodes.start(name)
        await nodes.known("a").wait_for(nodes=2, timeout=5)
        await nodes.known("b").wait_for(nodes=2, timeout=5)
        await trio.sleep(60)
        assert linked(nodes, "a") == ["b"]
        assert linked(nodes, "b") == ["a"]
        assert linked(nodes, "c") == linked(nodes, "d") == []


def linked(nodes: Mesh, name: str) -> list[str]:
    return [peer.node_name for peer in nodes.known(name).peers() if peer.connected]
