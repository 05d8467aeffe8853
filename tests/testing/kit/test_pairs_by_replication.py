"""Clusters whose nodes have backups by replication: who serves, what a fault costs, and when all is still."""

from __future__ import annotations

import pytest
import trio

from meshq.testing import Cluster, simulate
from tests.testing.kit.test_cluster import receive, send
from tests.testing.kit.test_pairs import orders
from tests.testing.kit.worlds import in_cluster


def test_each_node_has_a_backup_that_is_in_sync_when_the_cluster_has_formed() -> None:
    async def test(cluster: Cluster) -> None:
        assert cluster.nodes == ["n0", "n1", "n0b", "n1b"]
        assert cluster.alive == ["n0", "n1"]
        for name in cluster.alive:
            broker = cluster.broker(name)
            assert (broker.ha.policy, broker.ha.role) == ("replication_primary", "primary")
            assert [(one.name, one.in_sync) for one in broker.ha.replicas] == [(f"{name}b", True)]
            assert broker.cluster("cluster").nodes() == 2
            assert cluster.broker(f"{name}b").ha.policy == "replication_backup"

    in_cluster(test, nodes=2, ha="replication")


@pytest.mark.parametrize(
    "fault", ["kill", *(pytest.param(one, marks=pytest.mark.slow) for one in ("power_loss", "stop", "pause"))]
)
def test_a_backup_serves_what_was_confirmed_when_its_node_is_lost(fault: str) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a", b"b")
        if fault == "stop":
            await cluster.stop("n0")
        else:
            getattr(cluster, fault)("n0")
        await cluster.settled()
        assert cluster.alive == ["n0b"]
        if fault == "pause":
            cluster.resume("n0")
        else:
            await cluster.restart("n0")
        await cluster.settled()
        assert repr(cluster) == "<Cluster n0: waiting, n0b: active>"
        # It follows now, and has everything.
        cluster.kill("n0b")
        await cluster.settled()
        assert cluster.alive == ["n0"]
        assert await receive(cluster) == [b"a", b"b"]

    in_cluster(test, nodes=1, ha="replication")


@pytest.mark.slow
def test_a_node_with_an_older_copy_does_not_serve_alone() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.kill("n0b")
        await send(cluster, "n0", b"a")
        cluster.kill("n0")
        cluster.node("n0b").start()
        await trio.sleep(30)
        await cluster.settled()
        assert cluster.alive == []
        await cluster.healed()
        assert await receive(cluster) == [b"a"]

    in_cluster(test, nodes=1, ha="replication")


def test_a_fault_of_the_disk_hits_one_node_of_a_pair() -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a")
        cluster.disk("n0", "eio")
        async with cluster.client(reconnect_attempts=1000) as client:
            await client.send("orders", b"b", duplicate_id="b")
        assert cluster.alive == ["n0b"]
        assert await receive(cluster) == [b"a", b"b"]

    in_cluster(test, nodes=1, ha="replication")


@pytest.mark.slow
def test_a_cut_between_the_nodes_of_a_pair_lets_one_of_them_serve() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.cut("n0", "n0b")
        for number in range(20):
            await send(cluster, "n0", b"%d" % number)
            await trio.sleep(1)
        assert cluster.alive == ["n0"]
        cluster.heal()
        await cluster.settled()
        cluster.kill("n0")
        await cluster.settled()
        assert await receive(cluster) == [b"%d" % number for number in range(20)]

    in_cluster(test, nodes=1, ha="replication")


@pytest.mark.slow
def test_a_pair_by_replication_under_all_faults_delivers_each_order_once_and_in_order() -> None:
    report = simulate(orders, seeds=12, nodes=1, ha="replication", queues=["orders"], duration=10).check()
    assert all(report.counters[kind] for kind in ("kill", "power_loss", "pause", "restart", "eio_once"))
