"""Nodes that learn of each other over their links: who lists one of a cluster links all, both ways."""

from __future__ import annotations

from typing import Any

import attrs
import pytest

from meshq import ClusterConnection, NotActiveError
from meshq.cluster._cluster_connection import PeerStatistics
from tests.cluster.hosts import Hosts, hosts
from tests.cluster.kit import Mesh, bodies, mesh, until

FAST: dict[str, Any] = {"connection_ttl": 2.0, "check_period": 0.5, "retry_interval": 0.1, "max_retry_interval": 0.5}
#: Each of four nodes lists one that was there before.
IN_A_ROW = {"a": [], "b": ["a"], "c": ["b"], "d": ["c"]}


def linked(nodes: Mesh, name: str) -> set[str]:
    """The names of the nodes to which a node has a link."""
    return {peer.node_name for peer in nodes.known(name).peers() if peer.connected}


def distances(nodes: Mesh, name: str) -> dict[str, int]:
    """What a node knows of the cluster."""
    return {one.name: one.distance for one in nodes.known(name).topology()}


def peers(connection: ClusterConnection) -> dict[str, PeerStatistics]:
    return {peer.connector: peer for peer in connection.peers()}


async def test_nodes_that_each_list_one_other_link_all_both_ways_and_share_messages() -> None:
    async with mesh("abcd", others=IN_A_ROW, broker={"queues": ["q"]}, mode="strict") as nodes:
        await nodes.joined()
        for name in nodes.brokers:
            others = set(nodes.brokers) - {name}
            assert linked(nodes, name) == others
            assert distances(nodes, name) == {name: 0, **dict.fromkeys(others, 1)}
            known = sorted((one.node_name, one.queue) for one in nodes.known(name).bindings())
            assert known == [(other, "q") for other in sorted(others)]
        assert sum(len(linked(nodes, name)) for name in nodes.brokers) == 12
        await nodes.send("d", (b"%d" % number for number in range(40)))
        found = sorted([len(await nodes.drain(name)) for name in nodes.brokers])
        assert found == [10, 10, 10, 10]


async def test_a_full_list_leads_to_the_same_cluster_as_one_other_in_each_list() -> None:
    async with mesh("abcd", broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        assert all(linked(nodes, name) == set("abcd") - {name} for name in "abcd")
        assert all(len(nodes.known(name).peers()) == 3 for name in "abcd")


async def test_a_node_that_lists_a_member_is_linked_with_a_third_one_that_nobody_told_it_of() -> None:
    """B joined A earlier, C lists only A: C and B end up connected."""
    async with mesh("abc", others={"a": [], "b": ["a"], "c": ["a"]}) as nodes:
        await nodes.joined()
        assert linked(nodes, "c") == {"a", "b"} and linked(nodes, "b") == {"a", "c"}


async def test_of_two_listed_nodes_one_has_to_run_and_the_third_is_found_by_either() -> None:
    for down in "ab":
        up = "b" if down == "a" else "a"
        async with mesh("", over="inproc") as nodes:
            nodes.urls.update({name: f"inproc://{name}" for name in "abcd"})
            nodes.others.update({"a": [], "b": [], "c": ["a", "b"], "d": ["a", "b"]})
            await nodes.start(up, "c", "d")
            await nodes.joined(up, "c", "d")
            assert linked(nodes, "d") == {up, "c"}, f"{down} is down"


async def test_with_direct_connections_only_nobody_is_linked_who_is_not_listed() -> None:
    """A lists B only, C joins B: A has no bridge to C, and knows of C all the same."""
    others = {"a": ["b"], "b": ["a"], "c": ["b"]}
    async with mesh("abc", others=others, cluster={"allow_direct_connections_only": True}) as nodes:
        await until(lambda: len(distances(nodes, "a")) == 3)
        assert linked(nodes, "a") == {"b"} and linked(nodes, "b") == {"a"} and linked(nodes, "c") == {"b"}
        assert distances(nodes, "a") == {"a": 0, "b": 1, "c": 2}
        # C listens to B over its link; B knows C, which has linked to B.
        assert distances(nodes, "b") == {"a": 1, "b": 0, "c": 1}
        assert distances(nodes, "c") == {"a": 2, "b": 1, "c": 0}


async def test_the_other_nodes_are_told_the_connector_that_is_named_without_its_options() -> None:
    async with hosts("ab", cluster=FAST, others={"a": [], "b": ["a"]}) as nodes:
        await nodes.joined()
        for name in "ab":
            places = {one.name: one.primary for one in nodes.known(name).topology()}
            assert places == {"a": "tcp://a:5000", "b": "tcp://b:5000"}


async def test_a_node_that_stops_and_a_node_that_dies_are_known_no_more_by_anybody() -> None:
    async with mesh("abcd", others=IN_A_ROW) as nodes:
        await nodes.joined()
        await nodes.stop("b")
        await until(lambda: all("b" not in distances(nodes, name) for name in "acd"))
        await nodes.kill("c")
        await until(lambda: all(distances(nodes, name) == {"a": name == "d", "d": name == "a"} for name in "ad"))
        # Nothing waits for either of them, and no durable queue of theirs is known.
        await until(lambda: set(peers(nodes.known("a"))) == {"inproc://d"})


async def test_a_node_that_returns_is_linked_with_all_again() -> None:
    async with mesh("abcd", others=IN_A_ROW, broker={"queues": ["q"]}) as nodes:
        await nodes.joined()
        for name, how in (("a", nodes.kill), ("d", nodes.stop), ("b", nodes.kill)):
            await how(name)
            left = [other for other in "abcd" if other != name]
            await until(lambda name=name, left=left: all(name not in distances(nodes, other) for other in left))
            await nodes.start(name)
            await nodes.joined()
            assert all(linked(nodes, other) == set("abcd") - {other} for other in "abcd")


async def test_a_network_that_falls_apart_and_together_again_is_one_cluster_again() -> None:
    async with hosts("abcd", cluster=FAST, others=IN_A_ROW) as nodes:
        await nodes.joined()
        nodes.network.partition(["a", "b"], ["c", "d"])
        for pair in (("a", "b"), ("c", "d")):
            await until(lambda pair=pair: all(set(distances(nodes, name)) == set(pair) for name in pair))
        nodes.network.heal()
        await nodes.joined()
        assert all(distances(nodes, name) == {other: int(other != name) for other in "abcd"} for name in "abcd")


async def test_messages_of_a_node_that_only_lists_reach_a_consumer_at_a_node_that_only_is_listed() -> None:
    async with mesh("abc", others={"a": [], "b": ["a"], "c": ["b"]}) as nodes:
        await nodes.joined()
        async with nodes.client("a") as client:
            await client.create_queue("q")
            async with client.consumer("q") as consumer:
                await nodes.known("c").wait_for(queue="q", consumers=1, timeout=10)
                await nodes.send("c", [b"one", b"two"])
                assert bodies([await consumer.receive(), await consumer.receive()]) == [b"one", b"two"]


async def test_a_broker_that_does_not_run_knows_no_topology() -> None:
    async with mesh("a") as nodes:
        connection = nodes.known("a")
        assert [one.name for one in connection.topology()] == ["a"]
        await nodes.stop("a")
        with pytest.raises(NotActiveError):
            connection.topology()


@attrs.define(eq=False)
class TwoClusters(Hosts):
    """Nodes of which one is in two clusters, with connections named after them."""

    def make(self, name: str) -> Any:
        member_of = {"a": ["eu", "us"], "b": ["eu"], "c": ["us"]}[name]
        broker = super().make(name)
        listed = [] if name == "a" else ["a"]
        services = [
            ClusterConnection(
                cluster, connector=name, static_connectors=listed, address=cluster, user="u", password="p", **FAST
            )
            for cluster in member_of
        ]
        return type(broker)(
            name,
            data_dir=f"/data/{name}",
            acceptors=[self.urls[name]],
            connectors=self.urls,
            services=services,
            env=self.lives[name].env,
        )


async def test_nodes_of_two_clusters_do_not_learn_of_each_other_by_the_node_that_is_in_both() -> None:
    async with hosts("abc", made_as=TwoClusters) as nodes:
        for cluster, name in (("eu", "b"), ("us", "c")):
            connection = nodes.brokers[name].cluster(cluster)
            await nodes.brokers["a"].cluster(cluster).wait_for(nodes=2, timeout=10)
            await connection.wait_for(nodes=2, timeout=10)
            assert {one.name for one in connection.topology()} == {"a", name}
            assert {peer.node_name for peer in connection.peers()} == {"a"}
