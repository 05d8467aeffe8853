"""Clients that have connectors of their own for nodes, by the names that these have in the cluster."""

from __future__ import annotations

import math
from typing import Any

import attrs
import pytest

from meshq import ClientFactory, Endpoint, SettingsError
from meshq.client import factory_of as link_factory_of
from meshq.env import real_env
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import until
from tests.cluster.test_client_topology import FAST, LINKS, node_of

#: Where ``b`` says that it is, and nobody is.
NOWHERE = "tcp://nowhere:5000?insecure=true"
EXAMPLE = "(tcp://localhost:61616?name=node-0,tcp://localhost:61617?name=node-1)?ha=true&reconnectAttempts=-1"


def misplaced(**settings: Any) -> Any:
    """Nodes of which ``b`` tells a place where it is not."""
    urls = {"a": "tcp://a:5000?insecure=true", "b": NOWHERE}
    return hosts("ab", cluster=LINKS, own={"b": {"connectors": urls}}, **settings)


def factory_at(nodes: Hosts, url: str) -> ClientFactory:
    env = attrs.evolve(nodes.env, network=nodes.network.host("shop"), local={})
    return ClientFactory(url, env=env, insecure=True, **FAST)


async def places_of(nodes: Hosts, url: str) -> tuple[list[str], list[str]]:
    """The places of nodes and the spare ones, once a client was told."""
    async with factory_at(nodes, url).connect() as client:
        await until(lambda: len(client.topology()) == 2)
        known = client._targets.known(None)
        return sorted(map(str, known.nodes)), sorted(map(str, known.spares))


async def test_a_connector_of_the_clients_own_stands_for_the_one_that_the_topology_names() -> None:
    async with misplaced() as nodes:
        await nodes.joined()
        named = "(tcp://a:5000?name=a,tcp://b:5000?name=b)"
        assert await places_of(nodes, named) == (["tcp://a:5000", "tcp://b:5000"], [])
        other = "(tcp://a:5000?name=a,tcp://b:5000?name=c)"
        assert "tcp://nowhere:5000" in [place for places in await places_of(nodes, other) for place in places]


async def test_a_client_fails_over_to_a_node_by_its_own_connector() -> None:
    async with misplaced() as nodes:
        await nodes.joined()
        url = "(tcp://a:5000?name=a,tcp://b:5000?name=b)?ha=true&reconnectAttempts=-1&load_balancing=first_element"
        async with factory_at(nodes, url).connect() as client:
            assert node_of(client) == "a"
            await nodes.crash("a")
            await until(lambda: node_of(client) == "b")
            await client.send("q", b"x")


async def test_a_client_is_sent_to_the_target_of_a_handover_by_its_own_connector() -> None:
    async with misplaced() as nodes:
        await nodes.joined()
        url = "(tcp://a:5000,tcp://b:5000?name=b)?load_balancing=first_element"
        async with factory_at(nodes, url).connect() as client:
            await until(lambda: len(client.topology()) == 2)
            async with nodes.brokers["a"].drain("b"):
                pass
            await until(lambda: node_of(client) == "b")


def test_the_example_is_two_named_members_with_failover_and_attempts_without_end() -> None:
    factory = ClientFactory(EXAMPLE)
    first, second = Endpoint("tcp", "localhost", 61616), Endpoint("tcp", "localhost", 61617)
    assert factory.endpoints == (first, second)
    assert factory.settings.use_topology and factory.settings.reconnect_attempts == math.inf
    assert factory._book is not None
    assert factory._book._rules.names == {"node-0": first, "node-1": second}


def test_a_link_between_nodes_has_no_names() -> None:
    with pytest.raises(SettingsError, match="name"):
        link_factory_of("(tcp://127.0.0.1:1?name=a)", "static_connectors", env=real_env())
