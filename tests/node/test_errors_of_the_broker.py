"""Every error that a broker of this process names: raised, and what it says."""

from __future__ import annotations

import errno
import math
import random
import re
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import pytest
import trio

from meshq import (
    Bridge,
    Broker,
    CallTimeoutError,
    ClusterConnection,
    ConnectionBrokenError,
    DamagedError,
    JournalBrokenError,
    JournalSettings,
    NotActiveError,
    NotFoundError,
    SettingsError,
    UsageError,
    abc,
    limits,
    load_broker,
)
from meshq.testing import SimDisk
from tests.node.lives import machine

#: What can be asked of a broker only while it is active, and of one in a thread.
ASKED: dict[str, Callable[[Any], object]] = {
    "statistics": lambda broker: broker.statistics(),
    "explain_route": lambda broker: broker.explain_route("q"),
    "node_id": lambda broker: broker.node_id,
}


@pytest.mark.parametrize("asked", ASKED)
async def test_who_asks_a_broker_that_is_not_active_is_told_its_state(asked: str) -> None:
    broker = Broker("hq", data_dir=None)
    with pytest.raises(NotActiveError, match=r"the broker 'hq' (is new|has not started)") as caught:
        ASKED[asked](broker)
    assert caught.value.outcome == "not_done"
    async with broker:
        ASKED[asked](broker)
    if asked == "node_id":
        assert broker.node_id
    else:
        with pytest.raises(NotActiveError, match="the broker 'hq' is stopped"):
            ASKED[asked](broker)


@pytest.mark.parametrize("asked", ASKED)
def test_who_asks_a_broker_in_a_thread_that_is_not_active_is_told_its_state(asked: str) -> None:
    hosted = Broker("hq", data_dir=None).run_in_thread()
    with pytest.raises(NotActiveError, match=r"the broker 'hq' (is new|has not started)") as caught:
        ASKED[asked](hosted)
    assert caught.value.outcome == "not_done"


async def test_a_broker_in_a_thread_knows_its_cluster_connections_by_name() -> None:
    hosted = Broker("hq", data_dir=None, connectors={"me": "tcp://127.0.0.1:1"}, services=[mesh()]).run_in_thread()
    with pytest.raises(NotFoundError, match="no cluster connection 'other'; known: 'mesh'"):
        hosted.cluster("other")
    cluster = hosted.cluster("mesh")

    async def refused() -> None:
        for ask in (
            *(cluster.peers, cluster.nodes, cluster.bindings, cluster.topology, cluster.stuck),
            lambda: cluster.consumers("q"),
        ):
            with pytest.raises(NotActiveError, match="the broker 'hq' is"):
                ask()
        with pytest.raises(NotActiveError, match="the broker 'hq' is"):
            await cluster.wait_for()
        with pytest.raises(NotActiveError, match="the broker 'hq' is"):
            await cluster.queue("q")

    await refused()
    async with hosted:
        assert (cluster.name, cluster.nodes(), cluster.peers(), cluster.consumers("q")) == ("mesh", 1, [], 0)
        assert cluster.bindings() == cluster.stuck() == ()
        assert [node.name for node in cluster.topology()] == ["hq"]
        with pytest.raises(SettingsError, match="address"):
            cluster.bindings("a.#")
        with pytest.raises(SettingsError, match="name"):
            await cluster.queue("")
        assert [one.node_name for one in (await cluster.queue("q")).nodes] == ["hq"]
        await cluster.wait_for(nodes=1, address="q", queues=0, exactly=True)
        with pytest.raises(CallTimeoutError, match="1 of 2 nodes"):
            await cluster.wait_for(nodes=2, timeout=0)
        with trio.move_on_after(1) as scope:
            await cluster.wait_for(nodes=2)
        assert scope.cancelled_caught
    await refused()


def mesh() -> ClusterConnection:
    return ClusterConnection("mesh", connector="me", user="u", password="p")


async def test_a_broker_starts_once_and_stops_only_after_that() -> None:
    broker = Broker("hq", data_dir=None)
    with pytest.raises(UsageError, match="'hq' has not started") as stopping:
        await broker.stop()
    hosted = Broker("hq", data_dir=None).run_in_thread()
    with pytest.raises(UsageError, match="'hq' has not started"):
        await hosted.stop()
    async with broker:
        with pytest.raises(UsageError, match="'hq' was started before") as starting:
            await broker.run()
        with pytest.raises(UsageError, match="'hq' was started before"):
            await broker.run_in_thread().__aenter__()
    assert stopping.value.outcome == starting.value.outcome == "not_done"


async def test_a_cluster_connection_that_there_is_not_is_told_with_those_that_there_are() -> None:
    mesh = ClusterConnection("mesh", connector="me")
    broker = Broker("hq", data_dir=None, connectors={"me": "inproc://hq"}, services=[mesh])
    assert broker.cluster("mesh") is mesh
    with pytest.raises(NotFoundError, match="no cluster connection 'grid'; known: 'mesh'") as caught:
        broker.cluster("grid")
    assert caught.value.outcome == "not_done"
    with pytest.raises(NotFoundError, match="known: none"):
        Broker("hq", data_dir=None).cluster("mesh")


@pytest.mark.parametrize(
    ("make", "setting"),
    [
        (lambda: Broker("", data_dir=None), "name"),
        (lambda: Broker("hq", data_dir=5), "data_dir"),  # type: ignore[arg-type]
        (lambda: Broker("hq", data_dir=None, ha=7), "ha"),  # type: ignore[arg-type]
        (lambda: Broker("hq", data_dir=None, stop_timeout=-1), "stop_timeout"),
        (lambda: Broker("hq", data_dir=None, max_session_ttl=math.inf), "max_session_ttl"),
        (lambda: Broker("hq", data_dir=None, max_session_ttl=0), "max_session_ttl"),
        (lambda: Broker("hq", data_dir=None, max_sessions_per_user=0), "max_sessions_per_user"),
        (lambda: Broker("hq", data_dir=None, max_sessions_per_user=True), "max_sessions_per_user"),
        (lambda: Broker("hq", data_dir=None, acceptors=["tcp://0.0.0.0:1"]), "acceptor"),
        (lambda: Bridge("b", queue="q", target="there", window=0), "window"),
        (lambda: Bridge("b", queue="", target="there"), "queue"),
        (lambda: Bridge("b", queue="q", target="there", speed=3), "speed"),
        (lambda: ClusterConnection("mesh", connector="me", retry_interval=0), "retry_interval"),
    ],
)
def test_a_part_of_a_broker_that_is_not_allowed_is_refused_by_name(make: Callable[[], object], setting: str) -> None:
    with pytest.raises(SettingsError, match=setting) as caught:
        make()
    assert caught.value.setting == setting
    assert caught.value.allowed
    assert caught.value.outcome == "not_done"


async def test_a_message_that_could_not_be_sent_has_no_way() -> None:
    async with Broker("hq", data_dir=None) as broker:
        with pytest.raises(SettingsError) as caught:
            broker.explain_route("q", {"a": []})  # type: ignore[dict-item]
        assert caught.value.setting == "properties['a']"
        with pytest.raises(SettingsError, match="user=''"):
            broker.explain_route("q", user="")
        assert caught.value.allowed
        assert caught.value.outcome == "not_done"


# -- what ends a broker, or keeps it from starting


def small(env: abc.Env, **settings: Any) -> Broker:
    """A broker whose journal has many segments."""
    journal = JournalSettings(segment_bytes=limits.SEGMENT_BYTES_MIN)
    return Broker("hq", data_dir="/data/hq", env=env, journal=journal, **settings)


async def _run(broker: Broker) -> None:
    async with broker:
        pass


async def _run_in_thread(broker: Broker) -> None:
    async with broker.run_in_thread():
        pass


#: Both ways to run one.
WAYS = [_run, pytest.param(_run_in_thread, marks=pytest.mark.real)]


@pytest.mark.parametrize("run", WAYS)
async def test_a_broker_whose_port_is_taken_does_not_start_and_names_it(run: Callable[[Broker], Any]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        broker = Broker("hq", data_dir=None, acceptors=[f"tcp://127.0.0.1:{port}"])
        with pytest.raises(ConnectionBrokenError, match=str(port)) as caught:
            await run(broker)
    assert caught.value.outcome == "not_done"
    assert broker.state == "failed"


@pytest.mark.parametrize("run", WAYS)
async def test_a_broker_whose_disk_fails_does_not_start(run: Callable[[Broker], Any]) -> None:
    disk = SimDisk(random.Random(0))
    broker = small(attrs.evolve(machine(), disk=disk.mount()))
    disk.faults.inject("sync", errno.EIO)
    with pytest.raises(JournalBrokenError, match="can't be opened") as caught:
        await run(broker)
    assert caught.value.outcome == "not_done"
    assert broker.state == "failed"


@pytest.mark.parametrize("run", WAYS)
async def test_a_broker_whose_store_is_damaged_does_not_start_and_says_where(run: Callable[[Broker], Any]) -> None:
    disk = SimDisk(random.Random(0))
    env = attrs.evolve(machine(), disk=disk.mount())
    async with small(env, queues=["q"]) as broker, broker.client() as client:
        await client.send_many("q", [bytes(1000)] * 200)
    (first, *_) = [name for name in env.disk.names("/data/hq/journal") if name.endswith(".seg")]
    disk.remove(f"/data/hq/journal/{first}")
    broker = small(env, queues=["q"])
    with pytest.raises(DamagedError, match=re.escape(first)) as caught:
        await run(broker)
    assert caught.value.file == f"/data/hq/journal/{first}"
    assert caught.value.outcome == "not_done"
    assert broker.state == "failed"


async def test_a_disk_that_fails_ends_the_broker() -> None:
    disk = SimDisk(random.Random(0))
    broker = small(attrs.evolve(machine(), disk=disk.mount()), queues=["q"])
    with pytest.raises(JournalBrokenError, match="the journal's disk failed") as caught:
        async with broker, broker.client() as client:
            disk.faults.inject("sync", errno.EIO)
            await client.send("q", b"x")
            await trio.sleep_forever()
    assert caught.value.outcome == "unknown"
    assert broker.state == "failed"


def test_a_broker_from_a_file_needs_cattrs_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "broker.toml"
    file.write_text('name = "hq"\ndata_dir = false\n')
    for name in [name for name in sys.modules if name.partition(".")[0] == "cattrs" or name == "meshq.config._reader"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cattrs", None)
    with pytest.raises(UsageError, match=r"pip install 'meshq\[config\]'") as caught:
        load_broker(file)
    assert caught.value.outcome == "not_done"
