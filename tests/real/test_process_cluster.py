"""The cluster of real processes that ``meshq_process_cluster`` gives to tests of every framework."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

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
            meshq_process_cluster(ha="gossip")
        with pytest.raises(meshq.SettingsError, match="nodes=0"):
            meshq_process_cluster(nodes=0)
        with pytest.raises(meshq.SettingsError, match="links=1 is not allowed; allowed: True or False"):
            meshq_process_cluster(links=1)
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


def made(folder: Path, *, links: bool = False, **settings: Any) -> ProcessCluster:
    """A cluster that has formed; its processes are ended if it has not."""
    cluster = ProcessCluster(folder, ClusterPlan(queues=["orders"], **settings), links=links)
    with ExitStack() as stack:
        stack.callback(cluster.close)
        cluster.form()
        stack.pop_all()
    return cluster


@pytest.fixture(scope="module")
def linked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    """Two nodes with a proxy between them; each test heals what it has cut."""
    cluster = made(tmp_path_factory.mktemp("linked") / "cluster", nodes=2, links=True)
    try:
        yield cluster
    finally:
        cluster.close()


def seconds_of_a_send(cluster: ProcessCluster, node: str) -> float:
    with cluster.client(node) as client:
        client.send("other", b"first")
        began = time.monotonic()
        client.send("other", b"x")
        return time.monotonic() - began


def test_a_node_that_is_cut_off_keeps_its_messages_until_the_links_heal(linked: ProcessCluster) -> None:
    linked.partition(["n0"], ["n1"])
    with linked.client("n0") as client:
        client.send("orders", b"x")
    linked.settled()
    # Somebody waits for it at the other node, which knows of no message.
    with linked.client("n1") as client, client.consumer("orders") as consumer:
        assert consumer.receive(timeout=1) is None
        linked.heal()
        order = consumer.receive(timeout=20)
        assert order is not None and order.body == b"x"
        order.ack()
    linked.settled()


def test_a_link_between_the_test_and_a_node_is_cut_and_slow_and_loses_what_is_sent(linked: ProcessCluster) -> None:
    assert seconds_of_a_send(linked, "n0") < 0.3
    linked.delay("test", "n0", 0.3)
    assert seconds_of_a_send(linked, "n0") > 0.6
    assert seconds_of_a_send(linked, "n1") < 0.3
    linked.heal()
    linked.drop("test", "n0", 0.999)
    with pytest.raises(meshq.MeshqError), linked.client("n0", call_timeout=1, initial_connect_attempts=1):
        pass
    linked.heal()
    linked.cut("n0", "test", one_way=True)
    with pytest.raises(meshq.MeshqError), linked.client("n0", call_timeout=1, initial_connect_attempts=1):
        pass
    # Clients go by the same proxy wherever they were told of a node.
    assert linked.url("n0") in linked.url()
    linked.heal()
    assert seconds_of_a_send(linked, "n0") < 0.3


def test_wrong_places_and_clusters_without_a_proxy_are_named(linked: ProcessCluster, cluster: ProcessCluster) -> None:
    with pytest.raises(meshq.UsageError, match="no node is named 'n7'; the nodes: n0, n1, test"):
        linked.cut("n0", "n7")
    with pytest.raises(meshq.UsageError, match=r"meshq_process_cluster\(links=True\)"):
        cluster.cut("n0", "n1")
    with pytest.raises(meshq.UsageError, match=r"meshq_process_cluster\(links=True\)"):
        cluster.heal()


def test_a_backup_by_replication_takes_over_what_its_killed_node_has_confirmed(tmp_path: Path) -> None:
    cluster = made(tmp_path / "pair", nodes=1, ha="replication")
    try:
        assert cluster.nodes == ["n0", "n0b"]
        with cluster.client("n0") as client:
            client.send("orders", b"x")
        cluster.kill("n0")
        cluster.settled()
        with cluster.client("n0b") as client:
            client.send("orders", b"y")
        # It comes back, and has what it has missed once all is settled.
        cluster.restart("n0")
        cluster.settled()
        cluster.kill("n0b")
        cluster.settled()
        assert bodies(cluster, "n0") == [b"x", b"y"]
    finally:
        cluster.close()


def test_a_pair_that_is_cut_has_one_node_that_serves(tmp_path: Path) -> None:
    cluster = made(tmp_path / "pair", nodes=1, ha="replication", links=True)
    try:
        cluster.cut("n0", "n0b")
        with cluster.client(call_timeout=30) as client:
            client.send("orders", b"x")
        cluster.heal()
        cluster.settled()
        cluster.kill("n0")
        cluster.settled()
        assert bodies(cluster, "n0b") == [b"x"]
    finally:
        cluster.close()
