"""Clusters whose nodes have backups over a shared store: who serves, what a fault hits, and when all is still."""

from __future__ import annotations

import random

import pytest
import trio

from meshq.errors import JournalBrokenError, MeshqError, UsageError
from meshq.testing import Cluster, Fault, simulate
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.scenario._drawn_faults import drawn_faults
from meshq.testing.scenario._fault import KINDS
from tests.testing.kit.test_cluster import receive, send
from tests.testing.kit.worlds import in_cluster

PATIENT = {"initial_connect_attempts": 10_000, "reconnect_attempts": 10_000}


def test_each_node_has_a_backup_that_waits_and_is_known_when_the_cluster_has_formed() -> None:
    async def test(cluster: Cluster) -> None:
        assert cluster.nodes == ["n0", "n1", "n0b", "n1b"]
        assert cluster.alive == ["n0", "n1"]
        for name in cluster.alive:
            broker = cluster.broker(name)
            assert (broker.ha.policy, broker.ha.role) == ("shared_store_primary", "primary")
            assert [member.name for member in broker.ha.waiting] == [f"{name}b"]
            assert broker.cluster("cluster").nodes() == 2
            assert cluster.broker(f"{name}b").ha.policy == "shared_store_backup"
        assert cluster.url("n0b") == "tcp://n0b:61616?insecure=true"

    in_cluster(test, nodes=2, ha="shared_store")


@pytest.mark.parametrize("fault", ["kill", "power_loss"])
def test_a_backup_serves_what_was_confirmed_when_its_node_is_dead(fault: str) -> None:
    async def test(cluster: Cluster) -> None:
        await send(cluster, "n0", b"a", b"b")
        getattr(cluster, fault)("n0")
        await cluster.settled()
        assert cluster.alive == ["n0b"]
        assert await receive(cluster) == [b"a", b"b"]
        await cluster.restart("n0")
        assert repr(cluster) == "<Cluster n0: waiting, n0b: active>"
        await trio.sleep(1)
        await cluster.broker("n0b").ha.fail_back()
        await cluster.settled()
        assert cluster.alive == ["n0"]

    in_cluster(test, nodes=1, ha="shared_store")


def test_a_paused_node_keeps_its_store_and_a_stopped_one_is_not_followed() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.pause("n0")
        await trio.sleep(60)
        await cluster.settled()
        assert cluster.alive == []
        cluster.resume("n0")
        await trio.sleep(1)
        await cluster.settled()
        # Its lease was over: it has begun again, as a node that waits, and comes before its backup.
        assert cluster.alive == ["n0"]
        await cluster.stop("n0")
        await cluster.settled()
        assert cluster.alive == []
        await cluster.restart("n0")
        assert cluster.alive == ["n0"]

    in_cluster(test, nodes=1, ha="shared_store")


def test_a_fault_of_the_disk_hits_both_nodes_of_a_pair_and_no_other_one() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.disk("n0b", "eio")
        with pytest.raises(MeshqError):
            await send(cluster, "n0", b"a")
        await trio.sleep(10)
        assert isinstance(cluster.node("n0").error, JournalBrokenError)
        assert cluster.alive == ["n1"]
        await cluster.healed()
        assert len(cluster.alive) == 2
        await send(cluster, "n1", b"b")

    in_cluster(test, nodes=2, ha="shared_store")


def test_a_torn_write_is_the_one_of_the_node_that_was_named() -> None:
    async def test(cluster: Cluster) -> None:
        # The backup writes that it waits, again and again, and the node its lease.
        cluster.disk("n0", "torn")
        await trio.sleep(5)
        assert repr(cluster) == "<Cluster n0: dead, n0b: active>"

    in_cluster(test, nodes=1, ha="shared_store")


def test_a_takeover_that_has_not_come_yet_moves() -> None:
    async def test(cluster: Cluster) -> None:
        cluster.kill("n0")
        with pytest.raises(TimeoutError, match="n0b has not taken over yet") as caught:
            cluster.pause("n0b")
            cluster.resume("n0b")
            cluster.disk("n0b", "eio")
            await cluster.settled(timeout=0)
        assert caught.value is not None

    in_cluster(test, nodes=1, ha="shared_store")


def test_a_kind_of_backups_that_there_is_not_is_refused_with_those_that_there_are() -> None:
    text = r"^ha='colocated': this version of meshq has no such backups; allowed: 'replication', 'shared_store', None$"
    with pytest.raises(UsageError, match=text):
        ClusterPlan(ha="colocated")


def test_drawn_faults_leave_a_pair_a_node_that_can_serve_and_hit_backups_too() -> None:
    names = ClusterPlan(nodes=2, ha="shared_store").names
    hit: set[str] = set()
    for seed in range(300):
        faults = drawn_faults(random.Random(seed), [kind for kind in KINDS if kind != "flipped"], names, 60.0)
        hit.update(place for fault in faults for place in fault.where)
        for fault in faults:
            if fault.kind in ("pause", "restart", "eio", "eio_once", "enospc"):
                # Who shares the store of that node can't serve: the other pair can.
                other = [name for name in names if name[:2] != fault.where[0][:2]]
                down = {one.where[0] for one in faults if one.kind in ("kill", "power_loss") and lasts(one, fault.at)}
                assert not down.issuperset(other)
    assert hit.issuperset(names)


def lasts(fault: Fault, at: float) -> bool:
    """Whether a fault lasts at a time."""
    return fault.at <= at <= fault.at + fault.seconds


async def orders(cluster: Cluster) -> None:
    async with cluster.client(**PATIENT) as client:
        for number in range(5):
            await client.send("orders", b"%d" % number, duplicate_id=f"order-{number}")
            await trio.sleep(2)
    await cluster.healed()
    assert await receive(cluster) == [b"%d" % number for number in range(5)]


@pytest.mark.slow
def test_a_pair_under_all_faults_delivers_each_order_once_and_in_order() -> None:
    report = simulate(orders, seeds=12, nodes=1, ha="shared_store", queues=["orders"], duration=10).check()
    assert all(report.counters[kind] for kind in ("kill", "power_loss", "pause", "restart", "eio_once"))


def test_a_failure_with_backups_is_repeated_with_backups() -> None:
    async def nothing_is_there(cluster: Cluster) -> None:
        assert cluster.alive == []

    report = simulate(nothing_is_there, seeds=1, nodes=1, ha="shared_store", faults="none")
    assert "seeds=[0]" in report.failures[0].command
