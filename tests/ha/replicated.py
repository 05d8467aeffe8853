"""Two machines, each with a disk of its own, on which the nodes of a pair by replication run."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio
import trio.testing

from meshq import Broker, Client, ClusterConnection, ReplicationBackup, ReplicationPrimary, abc, connect
from meshq.env import real_env
from meshq.testing import InlineThreads, MemoryNetwork, SimDisk

SLOW: dict[str, Any] = {"retry_interval": 0.05, "reconnect_attempts": float("inf"), "initial_connect_attempts": 200}
PORTS = {"a": 7001, "b": 7002, "c": 7003}


def url_of(name: str) -> str:
    """Return where a node is reached."""
    return f"tcp://127.0.0.1:{PORTS[name]}"


class GatedThreads(InlineThreads):
    """Threads in which calls of one function wait until a test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self._gates: dict[str, trio.Event] = {}

    def open(self) -> None:
        """Let all calls go on."""
        for gate in self._gates.values():
            gate.set()
        self._gates.clear()

    def close(self, name: str) -> trio.Event:
        """Let calls of a function wait for an event, which the test sets."""
        self._gates[name] = gate = trio.Event()
        return gate

    async def run(self, function: Callable[..., Any], *arguments: object, pool: str = "default") -> Any:
        """Call a function."""
        gate = self._gates.get(getattr(function, "__name__", ""))
        if gate is not None:
            await gate.wait()
        return await super().run(function, *arguments, pool=pool)


class Machines:
    """A network, a disk for each node, and the scopes in which the nodes run."""

    def __init__(self) -> None:
        self.network = MemoryNetwork(random.Random(1))
        self.disks = {name: SimDisk() for name in PORTS}
        self.threads = {name: GatedThreads() for name in PORTS}
        self.scopes: dict[str, trio.CancelScope] = {}

    def env(self, name: str = "client") -> abc.Env:
        """Return the outside of a node, or of a client."""
        disk = self.disks.get(name) or SimDisk()
        parts: dict[str, Any] = {
            "network": self.network.host("node"),
            "disk": disk.mount(),
            "threads": self.threads.get(name) or InlineThreads(),
        }
        return attrs.evolve(real_env(), local={}, host="node", pid=1, **parts)

    def broker(self, name: str, ha: abc.HAPolicy | None, **settings: Any) -> Broker:
        """Make a broker; ``cluster``: settings of its cluster connection."""
        cluster = {
            "password": "p",
            "static_connectors": [url_of(other) for other in PORTS if other != name],
            **settings.pop("cluster", {}),
        }
        given: dict[str, Any] = {
            "data_dir": "/data",
            "acceptors": [url_of(name)] if name in PORTS else [],
            "services": [ClusterConnection("c", **cluster)],
            "ha": ha,
            "env": self.env(name),
            **settings,
        }
        return Broker(name, **given)

    def client(self, **settings: Any) -> Client:
        """Make a client that knows both nodes."""
        return connect(f"({url_of('a')},{url_of('b')})", env=self.env(), **{**SLOW, **settings})

    def client_of(self, name: str) -> Client:
        """Make a client that knows one node."""
        return connect(url_of(name), env=self.env(), **SLOW)

    def client_at(self, url: str) -> Client:
        """Make a client that knows one place."""
        return connect(url, env=self.env(), use_topology=False, **SLOW)

    async def start(self, nursery: trio.Nursery, broker: Broker) -> Broker:
        """Start a broker that may be cancelled alone."""

        async def run(*, task_status: trio.TaskStatus[None]) -> None:
            with trio.CancelScope() as scope:
                self.scopes[broker.name] = scope
                await broker.run(task_status=task_status)

        await nursery.start(run)
        return broker

    async def crash(self, broker: Broker) -> None:
        """Cancel the task of a broker, which is how a test without processes lets one die."""
        self.scopes[broker.name].cancel()
        await trio.testing.wait_all_tasks_blocked()
        assert broker.state == "stopped"

    async def pair(self, nursery: trio.Nursery, **backup: Any) -> tuple[Broker, Broker]:
        """Start a primary and a backup, and wait until the backup is in sync."""
        first = await self.start(nursery, self.broker("a", ReplicationPrimary(check_for_live_server=True)))
        second = await self.start(nursery, self.broker("b", ReplicationBackup(**backup)))
        await second.ha.wait_for(phase="in_sync", timeout=60)
        await first.ha.wait_for(in_sync=True, timeout=60)
        return first, second


@asynccontextmanager
async def machines() -> AsyncIterator[tuple[Machines, trio.Nursery]]:
    """Give the machines, and a nursery that is cancelled at the end."""
    ground = Machines()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.network.run)
        yield ground, nursery
        nursery.cancel_scope.cancel()
