"""The cluster of real processes that ``meshq_process_cluster`` gives to tests of every framework."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import meshq
from meshq.testing import ProcessCluster
from meshq.testing.kit._cluster_settings import ClusterPlan
from tests.testing.kit.test_plugin import run

pytestmark = pytest.mark.processes


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[ProcessCluster]:
    made = ProcessCluster(tmp_path / "cluster", ClusterPlan(nodes=2, queues=["orders"]))
    try:
        made.form()
        yield made
    finally:
        made.close()


def bodies(cluster: ProcessCluster, node: str) -> list[bytes]:
    with cluster.client(node) as client, client.consumer("orders") as consumer:
        got = []
        while (delivery := consumer.receive(timeout=3)) is not None:
            got.append(delivery.body)
            delivery.ack()
        return got


def test_what_a_node_has_confirmed_is_there_when_it_was_killed_and_started_again(cluster: ProcessCluster) -> None:
    assert cluster.nodes == cluster.alive == ["n0", "n1"]
    with cluster.client("n0") as client:
        client.send("orders", b"x")
    cluster.kill("n0")
    assert cluster.alive == ["n1"]
    with pytest.raises(meshq.UsageError, match="n0 is dead, and not active; n0 is dead, n1 is active"):
        cluster.pause("n0")
    # A client of any node finds the one that serves.
    with cluster.client() as client:
        assert client.queue("orders").ready == 0
    with meshq.blocking.connect(cluster.url()) as client:
        assert "orders" in client.queues()
    cluster.settled(timeout=20)
    cluster.restart("n0")
    cluster.settled()
    assert bodies(cluster, "n1") == [b"x"]
    cluster.restart("n1")
    assert cluster.alive == ["n0", "n1"]


def test_a_paused_node_stands_still_until_it_is_resumed(cluster: ProcessCluster) -> None:
    cluster.pause("n0")
    assert cluster.alive == ["n1"] and "n0: paused" in repr(cluster)
    with pytest.raises(meshq.MeshqError), cluster.client("n0", initial_connect_attempts=1, call_timeout=1):
        pass
    cluster.resume("n0")
    cluster.settled()
    with cluster.client("n0") as client:
        client.send("orders", b"x")
    assert bodies(cluster, "n0") == [b"x"]
    with pytest.raises(meshq.UsageError, match="no node is named 'n7'; the nodes: n0, n1"):
        cluster.kill("n7")
    # The end of the test ends a paused process, too.
    cluster.pause("n1")


def test_what_still_moves_is_told_when_the_time_is_up(cluster: ProcessCluster) -> None:
    over = threading.Event()

    def chatter() -> None:
        with cluster.client("n0") as client:
            while not over.is_set():
                client.send("orders", b"x")

    sender = threading.Thread(target=chatter)
    sender.start()
    try:
        with pytest.raises(TimeoutError, match="still moving after 1 s: n0: messages of orders come or go"):
            cluster.settled(timeout=1)
    finally:
        over.set()
        sender.join()
    cluster.settled()


def test_a_node_that_can_not_start_shows_its_log(cluster: ProcessCluster) -> None:
    cluster.kill("n0")
    port = int(cluster.url("n0").rpartition(":")[2])
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", port))
        taken.listen()
        with pytest.raises(meshq.BrokenError, match=r"the process of n0 has ended:[\s\S]*127.0.0.1"):
            cluster.restart("n0")
    cluster.restart("n0")
    assert cluster.alive == ["n0", "n1"]


TEST = """
def test_it(meshq_process_cluster):
    first, second = meshq_process_cluster(nodes=1, queues=["a"]), meshq_process_cluster(nodes=1, queues=["b"])
    for cluster, queue in ((first, "a"), (second, "b")):
        with cluster.client() as client:
            assert client.queues() == [queue]
"""


def test_the_fixture_makes_clusters_and_ends_their_processes(pytester: pytest.Pytester) -> None:
    # That no process is left is seen to after every test.
    run(pytester, TEST, "-p", "no:asyncio").assert_outcomes(passed=1)


def test_wrong_settings_are_refused_before_a_process_starts(pytester: pytest.Pytester) -> None:
    text = """
    import meshq
    import pytest

    def test_it(meshq_process_cluster):
        with pytest.raises(meshq.UsageError, match="no such backups"):
            meshq_process_cluster(ha="replication")
        with pytest.raises(meshq.SettingsError, match="nodes=0"):
            meshq_process_cluster(nodes=0)
    """
    run(pytester, text, "-p", "no:asyncio").assert_outcomes(passed=1)


def test_the_backup_of_a_killed_process_takes_over_its_store(tmp_path: Path) -> None:
    cluster = ProcessCluster(tmp_path / "pair", ClusterPlan(nodes=1, queues=["orders"], ha="shared_store"))
    try:
        cluster.form()
        assert cluster.nodes == ["n0", "n0b"]
        with cluster.client("n0") as client:
            client.send("orders", b"x")
        cluster.kill("n0")
        cluster.settled()
        assert bodies(cluster, "n0b") == [b"x"]
        cluster.restart("n0")
        cluster.settled()
        with cluster.client("n0b") as client:
            client.send("orders", b"y")
        cluster.kill("n0b")
        cluster.settled()
        assert bodies(cluster, "n0") == [b"y"]
    finally:
        cluster.close()
