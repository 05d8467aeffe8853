"""A pair of real processes over one directory: killed, stopped for longer than a lease, and fenced."""

from __future__ import annotations

import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from meshq import Client, ConnectionBrokenError, MeshqError, Message, RoleStatus, connect

LEASE_S = 1.0
#: How often the node that serves is killed.
KILLS = 5
PATIENT: dict[str, Any] = {
    "reconnect_attempts": float("inf"),
    "retry_interval": 0.05,
    "max_retry_interval": 0.2,
    "initial_connect_attempts": 1_000,
}
BROKER = """\
name = "{name}"
data_dir = "{place}/data"
acceptors = ["tcp://127.0.0.1:{port}"]
stop_timeout = 2

[ha]
policy = "{policy}"
lease = {lease}
lock_check_period = "20 ms"
{more}

[[services]]
kind = "cluster_connection"
name = "pair"
password = "theirs"
"""


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


class Process:
    """A node in a process of its own."""

    def __init__(self, place: Path, name: str, policy: str, more: str) -> None:
        self.name = name
        self.port = free_port()
        self.url = f"tcp://127.0.0.1:{self.port}"
        self._file = place / f"{name}.toml"
        self._log = place / f"{name}.log"
        self._file.write_text(
            BROKER.format(name=name, place=place, port=self.port, policy=policy, lease=LEASE_S, more=more)
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def said(self) -> str:
        """What it has logged in all its lives."""
        return self._log.read_text()

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        with self._log.open("ab") as log:
            command = [sys.executable, "-m", "meshq", "run", str(self._file)]
            self._process = subprocess.Popen(command, stdout=log, stderr=log)

    def signal(self, number: int) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        if number == signal.SIGKILL:
            self._process.wait()

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()


@asynccontextmanager
async def two(place: Path, more: str = "") -> AsyncIterator[list[Process]]:
    nodes = [
        Process(place, "first", "shared_store_primary", "wait_for_activation = false\n" + more),
        Process(place, "second", "shared_store_backup", more),
    ]
    try:
        for node in nodes:
            node.start()
        yield nodes
    finally:
        for node in nodes:
            node.end()


def client_of(*nodes: Process, **settings: Any) -> Client:
    return connect(f"({','.join(node.url for node in nodes)})", **{**PATIENT, **settings})


async def acting(nodes: list[Process], *, after: int = 0, waiting: int = 0) -> tuple[Process, RoleStatus]:
    """The node that serves in a later epoch than ``after``, when so many others wait."""
    async with client_of(*nodes) as client:
        while True:
            try:
                status = await client.ha()
            except MeshqError:
                continue
            if status.phase == "active" and status.epoch > after and len(status.waiting) >= waiting:
                (node,) = (one for one in nodes if one.name == status.acting)
                return node, status
            await trio.sleep(0.02)


class Traffic:
    """A sender with duplicate ids and a consumer with confirmed acknowledgements, through any number of takeovers."""

    def __init__(self, nodes: list[Process]) -> None:
        self._nodes = nodes
        self.over = False
        self.confirmed: list[str] = []
        self.got: list[str] = []
        self.settled: set[str] = set()
        self.again: list[str] = []

    async def send(self) -> None:
        async with client_of(*self._nodes) as client:
            while not self.over:
                uid = str(len(self.confirmed))
                try:
                    await client.send("orders", Message(uid.encode(), duplicate_id=uid))
                except MeshqError:
                    continue
                self.confirmed.append(uid)

    async def consume(self) -> None:
        async with client_of(*self._nodes) as client:
            while True:
                try:
                    async with client.consumer("orders") as consumer:
                        while True:
                            delivery = await consumer.receive(timeout=1)
                            if delivery is None:
                                if self.over and set(self.confirmed) <= set(self.got):
                                    return
                                continue
                            uid = bytes(delivery.body).decode()
                            if uid in self.settled:
                                self.again.append(uid)
                            self.got.append(uid)
                            await consumer.ack(delivery, confirm=True)
                            self.settled.add(uid)
                except MeshqError:
                    continue


@pytest.mark.processes
async def test_whoever_serves_is_killed_again_and_again_and_nothing_is_lost_or_comes_back(tmp_path: Path) -> None:
    rng = random.Random(1)
    with trio.fail_after(120):
        async with two(tmp_path) as nodes:
            node, status = await acting(nodes, waiting=1)
            traffic = Traffic(nodes)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(traffic.send)
                nursery.start_soon(traffic.consume)
                for _ in range(KILLS):
                    await trio.sleep(rng.uniform(0.1, 0.8))
                    node.signal(signal.SIGKILL)
                    killed = node
                    node, status = await acting(nodes, after=status.epoch)
                    assert node is not killed
                    killed.start()
                    node, status = await acting(nodes, after=status.epoch - 1, waiting=1)
                traffic.over = True
            assert status.epoch == 1 + KILLS
            assert len(traffic.confirmed) > 10 * KILLS
            assert set(traffic.got) == set(traffic.confirmed) and traffic.again == []


@pytest.mark.processes
async def test_a_node_that_was_stopped_for_longer_than_its_lease_confirms_nothing_when_it_goes_on(
    tmp_path: Path,
) -> None:
    with trio.fail_after(60):
        async with two(tmp_path) as nodes:
            node, status = await acting(nodes, waiting=1)
            (other,) = (one for one in nodes if one is not node)
            confirmed: list[int] = []

            async def ask(client: Client, number: int) -> None:
                # It needs no disk: only the lease stands between the node and the confirm.
                try:
                    await client.send("loose", Message(b"%d" % number, durable=False))
                except MeshqError:
                    return
                confirmed.append(number)

            settings = {"reconnect_attempts": 0, "initial_connect_attempts": 1}
            # The block of a client ends so when its node is gone for good.
            with pytest.raises(ConnectionBrokenError):
                async with client_of(node, **settings) as client, trio.open_nursery() as nursery:
                    await ask(client, 0)
                    assert confirmed == [0]
                    node.signal(signal.SIGSTOP)
                    for number in range(1, 20):
                        nursery.start_soon(ask, client, number)
                    await trio.sleep(3 * LEASE_S)
                    # Its lock is the kernel's, and nobody has fenced it.
                    assert f"{node.name} (process" in other.said and "is active" not in other.said
                    node.signal(signal.SIGCONT)
            assert confirmed == [0]
            _, later = await acting(nodes, after=status.epoch)
            assert later.epoch == status.epoch + 1
            assert "lease_lost" in node.said


@pytest.mark.processes
async def test_a_node_that_hangs_is_fenced_by_a_command_and_the_other_one_takes_over(tmp_path: Path) -> None:
    with trio.fail_after(60):
        async with two(tmp_path, 'fence_command = ["kill", "-9", "{pid}"]') as nodes:
            node, status = await acting(nodes, waiting=1)
            async with client_of(*nodes) as client:
                await client.send("orders", b"1")
                node.signal(signal.SIGSTOP)
                successor, later = await acting([one for one in nodes if one is not node], after=status.epoch)
                assert successor is not node and later.epoch == status.epoch + 1
                assert not node.alive
            async with client_of(successor) as client:
                assert (await client.queue("orders")).ready == 1
