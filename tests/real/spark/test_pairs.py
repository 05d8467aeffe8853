"""Spark reads and writes a node whose backup takes over meanwhile."""

from __future__ import annotations

import functools
import multiprocessing
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
import trio

from meshq import (
    Broker,
    ClusterConnection,
    ReplicationBackup,
    ReplicationPrimary,
    SharedStoreBackup,
    SharedStorePrimary,
)
from meshq.blocking import Broker as BlockingBroker
from meshq.blocking import connect
from meshq.spark._nodes import Brokers, NodeAddress
from meshq.spark._options_plan import access_of, read_options
from tests.real.spark.kit import Job, reads_streams, texts

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark"), reads_streams]

#: Each kind of pair: what its primary and its backup are, and the folder of the backup's store.
PAIRS: Final[dict[str, Any]] = {
    "shared store": (
        functools.partial(SharedStorePrimary, lease=1.0, lock_check_period=0.02),
        functools.partial(SharedStoreBackup, lease=1.0, lock_check_period=0.02),
        "data",
    ),
    "replication": (ReplicationPrimary, ReplicationBackup, "copy"),
}
#: How often the query may be started again from its checkpoint, and the seconds for everything.
TRIES: Final = 4
PATIENCE_S: Final = 120.0


def node(name: str, place: str, ports: tuple[int, int], ha: Any) -> dict[str, Any]:
    """The settings of a node of the pair; ``ports``: its own, and that of the other node."""
    own, other = (f"tcp://127.0.0.1:{port}" for port in ports)
    cluster = ClusterConnection("pair", static_connectors=[other], password="theirs")
    return {"name": name, "data_dir": place, "acceptors": [own], "services": [cluster], "ha": ha}


async def serve(place: str, ports: tuple[int, int], kind: str, report: Any) -> None:
    about = node("first", f"{place}/data", ports, PAIRS[kind][0]())
    async with Broker(**about, queues=["orders", "copy"]):
        report.send(ports[0])
        await trio.sleep_forever()


def life(place: str, ports: tuple[int, int], kind: str, report: Any) -> None:
    trio.run(serve, place, ports, kind, report)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def pair(place: Path, kind: str = "shared store") -> Iterator[tuple[Any, Any, str]]:
    """A primary in a process that can be killed, its backup in this process, and the URL of both."""
    ports = free_port(), free_port()
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    primary = context.Process(target=life, args=(str(place), ports, kind, theirs))
    primary.start()
    try:
        assert ours.poll(30) and ours.recv() == ports[0]
        _, ha, folder = PAIRS[kind]
        with BlockingBroker(**node("second", f"{place}/{folder}", ports[::-1], ha())) as backup:
            if kind == "replication":
                backup.ha.wait_for(in_sync=True, timeout=60)
            yield primary, backup, f"(tcp://127.0.0.1:{ports[0]},tcp://127.0.0.1:{ports[1]})"
    finally:
        primary.kill()
        primary.join()
        ours.close()
        theirs.close()


@pytest.mark.parametrize("kind", PAIRS)
def test_a_query_goes_on_at_the_backup_and_each_message_comes_once(spark: Any, tmp_path: Path, kind: str) -> None:
    with pair(tmp_path, kind) as (primary, backup, url), connect(url, reconnect_attempts=1_000) as client:
        work = Job(spark, url, client)
        identity = client.statistics().node_id
        client.send_many("orders", texts(range(200)))
        frame = work.stream("orders", maxOffsetsPerTrigger=50, lease="1s").select("value")
        options = {"topic": "copy", "partitionTimeout": "30s"}
        query = work.start(frame, tmp_path / "checkpoint", available_now=False, **options)
        until = time.monotonic() + PATIENCE_S
        while client.queue("copy").ready < 50 and time.monotonic() < until:
            time.sleep(0.02)
        primary.kill()
        backup.ha.wait_for(phase="active", timeout=30)
        client.send_many("orders", texts(range(200, 300)))
        again = 0
        while client.queue("copy").ready < 300 and time.monotonic() < until:
            if not query.isActive:
                again += 1
                assert again < TRIES, query.exception()
                query = work.start(frame, tmp_path / "checkpoint", available_now=False, **options)
            time.sleep(0.1)
        query.processAllAvailable()
        place = query.lastProgress["sources"][0]["endOffset"]
        query.stop()
        work.check_nothing_is_left()
        assert sorted(map(int, work.bodies("copy"))) == list(range(300))
        # The backup is the same node: the places of the checkpoint hold there.
        assert client.statistics().node_id == identity and f"orders@{identity.hex()}" in place
        assert client.queue("orders").ready == 0 and [one.lag for one in client.cursors()] == [0]


@pytest.mark.parametrize("kind", PAIRS)
def test_a_node_is_found_again_at_a_backup_of_which_nobody_knew_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    with pair(tmp_path, kind) as (primary, backup, url):
        values = read_options({"url": url, "subscribe": "orders", "partitionTimeout": "20s"}, "batch read")
        with Brokers(access_of(values)) as brokers:
            with monkeypatch.context() as before:
                (first,) = brokers.addresses_in_time().values()
                alone = NodeAddress(first.node, first.urls[:1])
                before.setattr(brokers, "addresses", lambda: {first.node: alone})
                link = brokers.links()[first.node]
                assert link.up and brokers.links()[first.node] is link
            primary.kill()
            backup.ha.wait_for(phase="active", timeout=30)
            assert first.node in brokers.addresses_in_time()
            again = brokers.links()[first.node]
            assert again.up and again is not link and again.client.queue("orders").ready == 0
