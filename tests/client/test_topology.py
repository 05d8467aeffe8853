"""A client is told who is in the cluster of its broker, and tells its program."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from meshq import Broker, Client, Connected, TopologyChanged, TopologyNode
from meshq.abc import NodeDescription, ToldNode
from meshq.client.link._topology import topology_changed
from tests.cluster.hosts import hosts
from tests.cluster.kit import mesh, until
from tests.cluster.test_discovery import finders, joined
from tests.cluster.test_topology import FAST, IN_A_ROW


def names(nodes: Sequence[TopologyNode]) -> list[str]:
    return [one.name for one in nodes]


def known(client: Client) -> dict[str, int]:
    return {one.name: one.distance for one in client.topology()}


async def test_a_client_knows_the_nodes_as_they_are_now_and_is_told_of_each_change() -> None:
    async with mesh("abc", others=IN_A_ROW) as nodes, nodes.client("b") as client:
        events = client.events()
        await nodes.joined()
        await until(lambda: known(client) == {"a": 1, "b": 0, "c": 1})
        assert [one.primary for one in client.topology()] == ["inproc://a", "inproc://b", "inproc://c"]
        assert client.topology()[0].node_id == bytes(nodes.brokers["a"].node_id).hex()
        nodes.urls["d"] = "inproc://d"
        await nodes.start("d")
        await until(lambda: names(client.topology()) == ["a", "b", "c", "d"])
        await nodes.stop("a")
        await until(lambda: names(client.topology()) == ["b", "c", "d"])
        seen: list[tuple[list[str], list[str]]] = []
        while not (seen and seen[-1][1] == ["a"]):
            event = await anext(events)
            assert isinstance(event, TopologyChanged) and not event.changed
            seen.append((names(event.joined), names(event.left)))
        joined = [name for joined, _ in seen for name in joined]
        assert joined[-1] == "d" and len(set(joined)) == len(joined)


async def test_a_client_goes_on_to_be_told_of_nodes_when_the_discovery_endpoint_is_gone() -> None:
    """Topology comes over the client's own connection: discovery is for the first one."""
    async with finders("ab") as nodes:
        await joined(nodes, *"ab")
        async with nodes.dial("a") as client:
            await until(lambda: known(client) == {"a": 0, "b": 1})
            nodes.network.datagrams.cut()
            nodes.static["c"] = [nodes.url("b")]
            await nodes.start("c")
            await until(lambda: known(client) == {"a": 0, "b": 1, "c": 1})
            await nodes.known("c").wait_for(nodes=3, timeout=10)
            await nodes.crash("b")
            await until(lambda: known(client) == {"a": 0, "c": 1})


async def test_a_client_of_a_broker_without_a_cluster_knows_that_one_and_is_told_of_no_change() -> None:
    async with Broker("only", data_dir=None) as broker, broker.client() as client:
        assert [(one.name, one.distance, one.primary, one.backup) for one in client.topology()] == [("only", 0, "", "")]


async def test_a_node_in_its_next_life_is_a_change_and_no_other_node() -> None:
    async with hosts("ab", cluster=FAST) as nodes:
        await nodes.joined()
        async with nodes.dial("a") as client:
            await until(lambda: known(client) == {"a": 0, "b": 1})
            before = client.topology()
            await nodes.crash("b")
            await nodes.start("b")
            await nodes.joined()
            await until(lambda: known(client) == {"a": 0, "b": 1})
            assert client.topology() == before


def described(name: str, **about: str) -> NodeDescription:
    return NodeDescription(node_id=name.encode() * 16, name=name, version=1, **about)


@pytest.mark.parametrize(
    ("before", "now", "joined", "left", "changed"),
    [
        ([], ["a", "b"], ["b"], [], []),
        (["a", "b"], ["b", "c"], ["c"], ["a"], []),
        (["a", "b"], ["a", "b"], [], [], None),
    ],
)
def test_joined_and_left_are_the_differences(
    before: list[str], now: list[str], joined: list[str], left: list[str], changed: list[str] | None
) -> None:
    old, new = (
        [ToldNode(about=described(name), distance=min(at, 1)) for at, name in enumerate(nodes)]
        for nodes in (before, now)
    )
    event = topology_changed(old, new, at=1.0, peer="x")
    if changed is None:
        assert event is None
        return
    assert event is not None
    assert (names(event.joined), names(event.left), names(event.changed)) == (joined, left, changed)


def test_another_backup_is_a_change() -> None:
    old = ToldNode(about=described("a"))
    new = ToldNode(about=described("a", backup="tcp://spare:1"))
    event = topology_changed([old], [new], at=1.0, peer="x")
    assert event is not None
    assert [(one.name, one.backup) for one in event.changed] == [("a", "tcp://spare:1")]
    assert event.code == "topology"
    assert Connected.code == "connected"
