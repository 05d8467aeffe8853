"""The queues behind other nodes: who is told of them, and of which."""

from __future__ import annotations

from collections import Counter
from itertools import cycle

import pytest
import trio

from meshq import AddressSettings
from meshq.abc import Service
from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.broker.session import _further_queues
from tests.cluster.chains import CHAIN, connections, numbered
from tests.cluster.kit import bodies, mesh
from tests.cluster.nodes import connection, nodes


async def test_nodes_without_hops_are_told_of_the_queues_of_their_peers_only() -> None:
    cluster = {
        "a": [connection("a", ["b"], allow_direct_connections_only=True)],
        "b": [connection("b", ["c"], max_hops=3, allow_direct_connections_only=True)],
        "c": [connection("c", ["d"], max_hops=3, allow_direct_connections_only=True)],
        "d": [connection("d", [], allow_direct_connections_only=True)],
    }
    async with nodes(cluster, ["q"]) as made:
        await made.known("b").wait_for(queue="q", queues=3, timeout=5)
        await trio.sleep(1)
        assert [(one.node_name, one.distance) for one in made.known("a").bindings()] == [("b", 1)]
        assert {one.node_name: one.distance for one in made.known("b").bindings()} == {"c": 1, "d": 2}


async def test_queues_of_one_cluster_are_not_told_in_another_one() -> None:
    cluster = {
        "a": [connection("a", ["b"], "one", max_hops=2, allow_direct_connections_only=True)],
        "b": [
            connection("b", ["c"], "one", address="shared", max_hops=2, allow_direct_connections_only=True),
            connection("b", ["d"], "two", address="other", max_hops=2, allow_direct_connections_only=True),
        ],
        "c": [connection("c", [], "one")],
        "d": [connection("d", [], "two")],
    }
    async with nodes(cluster, c={"queues": ["shared.q"]}, d={"queues": ["other.q"]}) as made:
        await made.known("b", "two").wait_for(queue="other.q", queues=1, timeout=5)
        await made.known("a", "one").wait_for(queue="shared.q", queues=1, timeout=5)
        await trio.sleep(1)
        assert [one.queue for one in made.known("a", "one").bindings()] == ["shared.q"]


async def test_a_cluster_whose_name_goes_on_behind_that_of_another_one_is_another_one() -> None:
    direct = {"max_hops": 2, "allow_direct_connections_only": True}
    cluster = {
        "a": [connection("a", ["b"], "mesh", **direct)],
        "b": [
            connection("b", [], "mesh", address="shared", **direct),
            connection("b", ["c"], "mesh.more", address="other", **direct),
        ],
        "c": [connection("c", [], "mesh.more")],
    }
    async with nodes(cluster, c={"queues": ["other.q"]}) as made:
        await made.known("b", "mesh.more").wait_for(queue="other.q", queues=1, timeout=5)
        await trio.sleep(1)
        assert made.known("a").bindings() == ()


async def test_a_node_in_two_clusters_of_such_names_starts_again_and_keeps_them_apart() -> None:
    names = cycle("bc")

    def more() -> list[Service]:
        return [connection(next(names), ["c"], "mesh.more", address="other", allow_direct_connections_only=True)]

    kept = {"address_settings": {"#": AddressSettings(auto_create_queues=False)}}
    async with mesh("bc", root="simulated", cluster={"address": "shared"}, services=more, broker=kept) as made:
        known = made.brokers["b"].cluster("mesh.more")
        async with made.client("c") as client:
            await client.create_queue("other.q")
        await known.wait_for(queue="other.q", queues=1, timeout=5)
        await made.kill("c")
        await made.send("b", numbered(10), "other.q")
        await made.kill("b")
        await made.start("b", "c")
        assert bodies(await made.drain("c", "other.q")) == numbered(10)
        await made.joined()


async def test_a_queue_more_on_an_address_has_no_other_one_described_again(monkeypatch: pytest.MonkeyPatch) -> None:
    described = Counter[str]()
    plain = _further_queues._described

    def counted(number: int, binding: RemoteBinding) -> bytes | None:
        described[binding.name] += 1
        return plain(number, binding)

    monkeypatch.setattr(_further_queues, "_described", counted)
    async with nodes(connections(CHAIN, max_hops=2)) as made, made.brokers["c"].client() as client:
        await client.create_address("news", routing="multicast")
        for number in range(20):
            await client.create_queue(f"s{number}", address="news", routing="multicast")
            await made.known("a").wait_for(address="news", queues=number + 1, exactly=True, timeout=5)
        assert described == {f"s{number}": 1 for number in range(20)}
        async with client.consumer("s3"):
            await made.known("a").wait_for(queue="s3", consumers=1, timeout=5)
        assert described["s3"] > 1 and described["s4"] == 1
