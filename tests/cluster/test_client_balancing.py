"""Connections of one factory are spread over the nodes of a cluster."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack

import pytest

from meshq import BalancerPolicy, BalancerTarget, ClientFactory, ConnectionBrokenError, RoundRobin
from meshq.endpoint import Endpoint
from tests.cluster.hosts import hosts
from tests.cluster.kit import until
from tests.cluster.test_client_topology import LINKS, factory_of, node_of, told


async def begun(factory: ClientFactory, count: int) -> str:
    """The names of the nodes to which so many connections go, one after another."""
    async with AsyncExitStack() as stack:
        return "".join([node_of(await stack.enter_async_context(factory.connect())) for _ in range(count)])


@pytest.mark.parametrize("query", ["?use_topology=true", "?useTopologyForLoadBalancing=true", ""])
async def test_of_a_cluster_of_three_with_one_of_them_in_the_url_six_connections_are_two_each(query: str) -> None:
    async with hosts("abc", cluster=LINKS) as nodes:
        await nodes.joined()
        made = await begun(factory_of(nodes, "a", query=query), 6)
        assert Counter(made) == dict.fromkeys("abc", 2) and made == "abcabc"


@pytest.mark.parametrize("query", ["?use_topology=false", "?useTopologyForLoadBalancing=false"])
async def test_without_topology_all_six_are_at_the_one_that_the_url_lists(query: str) -> None:
    async with hosts("abc", cluster=LINKS) as nodes:
        await nodes.joined()
        assert await begun(factory_of(nodes, "a", query=query), 6) == "a" * 6


async def test_without_topology_nobody_is_dialed_who_is_not_listed_also_when_a_listed_one_is_gone() -> None:
    async with hosts("abc", cluster=LINKS) as nodes:
        await nodes.joined()
        two = factory_of(nodes, "ab", use_topology=False)
        assert Counter(await begun(two, 6)) == {"a": 3, "b": 3}
        await nodes.crash("a")
        assert await begun(two, 6) == "b" * 6
        await nodes.crash("b")
        with pytest.raises(ConnectionBrokenError):
            await begun(two, 1)


async def test_a_node_that_comes_back_at_another_port_gets_its_connections_again() -> None:
    async with hosts("abc", cluster=LINKS) as nodes:
        await nodes.joined()
        factory = factory_of(nodes)
        assert Counter(await begun(factory, 6)) == dict.fromkeys("abc", 2)
        async with factory.connect() as client:
            if node_of(client) == "c":
                await client.close()
            await nodes.crash("c")
            nodes.urls["c"] = "tcp://c:5001?insecure=true"
            nodes.others["c"] = ["a"]
            await nodes.start("c")
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(factory_of(nodes).connect())]
            await until(lambda: told(clients[0]) == "abc")
            # One of them has found that nobody answers at the former port.
            await begun(factory, 3)
            assert Counter(await begun(factory, 6)) == dict.fromkeys("abc", 2)


async def test_a_node_that_joins_later_is_among_those_for_new_connections() -> None:
    async with hosts("ab", cluster=LINKS) as nodes:
        await nodes.joined()
        factory = factory_of(nodes)
        async with factory.connect() as client:
            assert set(await begun(factory, 4)) == set("ab")
            nodes.urls["c"] = "tcp://c:5000?insecure=true"
            nodes.others["c"] = ["a"]
            await nodes.start("c")
            await until(lambda: told(client) == "abc")
            assert Counter(await begun(factory, 6)) == dict.fromkeys("abc", 2)


class Offered(RoundRobin):
    """A policy that remembers among which hosts it chose."""

    def __init__(self) -> None:
        super().__init__()
        self.hosts: list[str] = []

    def begin(self, chance: int) -> BalancerPolicy:
        return self

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        self.hosts.append("".join(Endpoint.parse(one.url).host for one in targets))
        return super().select(targets, key)


@pytest.mark.parametrize("stopped", [True, False])
async def test_a_node_that_has_left_is_no_longer_chosen_though_the_url_lists_it(stopped: bool) -> None:
    async with hosts("abc", cluster=LINKS) as nodes:
        await nodes.joined()
        policy = Offered()
        factory = factory_of(nodes, "abc", load_balancing=policy)
        async with AsyncExitStack() as stack:
            clients = [await stack.enter_async_context(factory.connect()) for _ in range(3)]
            assert policy.hosts == ["abc"] * 3
            if stopped:
                await nodes.brokers["b"].stop()
            else:
                await nodes.crash("b")
            await until(lambda: all(told(client) == "ac" for client in clients))
            policy.hosts.clear()
            assert Counter(await begun(factory, 4)) == {"a": 2, "c": 2}
            assert policy.hosts == ["ac"] * 4
