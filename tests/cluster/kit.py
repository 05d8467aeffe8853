"""Several nodes in one process, joined by cluster connections, each of which can be stopped, killed and started."""

from __future__ import annotations

import random
import socket
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import attrs
import trio

from meshq import Broker, Client, ClusterConnection, Delivery, abc
from meshq.env import real_env
from meshq.testing import SimDisk
from tests.process import Process, SlowThreads

#: Nothing here takes as long; whatever does is stuck.
PATIENCE_S = 30


def free_ports(count: int) -> list[int]:
    """Ports of the loopback device that nobody had a moment ago."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def simulated() -> abc.Env:
    """The outside of machines that share a process."""
    return attrs.evolve(real_env(), threads=SlowThreads(), local={})


@attrs.define(eq=False)
class Mesh:
    """Nodes by name.  ``root`` None: in memory only."""

    nursery: trio.Nursery
    env: abc.Env
    urls: dict[str, str]
    root: str | None
    simulated: bool = False
    mode: str = "on_demand"
    #: More settings of all brokers, and of the cluster connections.
    broker: dict[str, Any] = attrs.field(factory=dict)
    cluster: dict[str, Any] = attrs.field(factory=dict)
    #: Makes services that each life of a node has beside its cluster connection.
    services: Callable[[], list[abc.Service]] = list
    #: Settings of single brokers.
    own: dict[str, dict[str, Any]] = attrs.field(factory=dict)
    #: Static connectors instead of all others.
    others: dict[str, list[str]] = attrs.field(factory=dict)
    brokers: dict[str, Broker] = attrs.field(factory=dict)
    #: The disks of nodes, if they are simulated: each has its own, which can lose its power.
    disks: dict[str, SimDisk] = attrs.field(factory=dict)
    #: The newest life of each node.
    lives: dict[str, Process] = attrs.field(factory=dict)

    def make(self, name: str) -> Broker:
        """A broker that was not started."""
        url = self.urls[name]
        connection = ClusterConnection(
            "mesh",
            connector=name,
            static_connectors=self.others.get(name, [other for other in self.urls if other != name]),
            load_balancing=self.mode,
            **{"user": "u", "password": "p", "retry_interval": 0.02, "max_retry_interval": 0.05, **self.cluster},
        )
        return Broker(
            name,
            **{
                "data_dir": f"{self.root}/{name}" if self.root is not None else None,
                "acceptors": [url] if url.startswith("tcp") else [],
                "connectors": self.urls,
                "services": [connection, *self.services()],
                "env": self.lives[name].env,
                **self.broker,
                **self.own.get(name, {}),
            },
        )

    def machine(self, name: str) -> abc.Env:
        """The outside of a node's machine, over all its lives."""
        if not self.simulated:
            return self.env
        disk = self.disks.setdefault(name, SimDisk(random.Random(name)))
        disk.faults.fuse = None
        return attrs.evolve(self.env, disk=disk)

    async def start(self, *names: str) -> None:
        """Start nodes."""
        for name in names:
            self.lives[name] = Process(self.machine(name))
            self.brokers[name] = self.make(name)
            await self.nursery.start(self.lives[name].live, self.brokers[name])

    async def kill(self, *names: str) -> None:
        """SIGKILL for nodes: nothing more is written, and nobody is told."""
        for name in names:
            self.lives[name].kill()
        for name in names:
            await self.ended(name)

    def lose_power(self, name: str) -> None:
        """A node's machine goes dark: what was not synced is kept or lost by chance, and the node is no more."""
        self.lives[name].lose_power(self.disks[name].faults.rng)

    def lose_power_at(self, name: str, calls: int) -> None:
        """The same at a later call on its disk."""
        self.disks[name].fuse(calls, lambda: self.lose_power(name))

    async def ended(self, name: str) -> None:
        """A node has ended."""
        await self.lives[name].ended()

    async def stop(self, *names: str) -> None:
        """End nodes in peace."""
        for name in names:
            await self.brokers[name].stop()
            await self.ended(name)

    def client(self, name: str) -> Client:
        """A client of a node, in process."""
        return self.brokers[name].client()

    def known(self, name: str) -> ClusterConnection:
        """A node's cluster connection."""
        return self.brokers[name].cluster("mesh")

    async def joined(self, *names: str, **wanted: Any) -> None:
        """All these nodes know each other."""
        names = names or tuple(self.brokers)
        for name in names:
            await self.known(name).wait_for(nodes=len(names), timeout=PATIENCE_S, **wanted)

    def forward(self, there: str) -> str:
        """The name of a store-and-forward queue for a node."""
        return f"$meshq.cluster.mesh.{bytes(self.brokers[there].node_id).hex()}"

    async def left(self, *names: str) -> dict[str, int]:
        """What is in which queue of nodes, store-and-forward queues included; empty ones left out."""
        found = {}
        for name in names or self.brokers:
            async with self.client(name) as client:
                for queue in await client.queues():
                    statistics = await client.queue(queue)
                    if statistics.ready + statistics.delivering:
                        found[f"{name}/{queue}"] = statistics.ready + statistics.delivering
        return found

    def burden(self) -> dict[str, object]:
        """What each node holds for others: the same before something and after it, if nothing of it is left behind."""
        found: dict[str, object] = {}
        for name, broker in self.brokers.items():
            now = broker.statistics()
            found[name] = (now.sessions, now.connections, now.consumers, now.ready, now.delivering, now.memory_used)
            found[f"{name}'s peers"] = [(peer.waiting, peer.unconfirmed) for peer in self.known(name).peers()]
        return found

    async def send(self, name: str, bodies: Iterable[bytes], address: str = "q", **settings: Any) -> None:
        """Send, and see it confirmed."""
        async with self.client(name) as client, client.producer(address, **settings) as producer:
            for body in bodies:
                await producer.send(body)
            await producer.flush()

    async def drain(self, name: str, queue: str = "q", *, quiet: float = 0.5) -> list[Delivery]:
        """Receive all that comes to a queue, until nothing came for a while."""
        got: list[Delivery] = []
        async with self.client(name) as client, client.consumer(queue) as consumer:
            while batch := await consumer.receive_many(1_000, timeout=quiet):
                got += batch
                await consumer.ack(*batch, confirm=True)
        return got


@asynccontextmanager
async def mesh(
    names: str = "abc", *, root: Path | str | None = None, over: str = "inproc", **settings: Any
) -> AsyncIterator[Mesh]:
    """Nodes that are started; ``root``: where their data is on a real disk, or "simulated"."""
    if over == "tcp":
        ports = free_ports(len(names))
        urls = {name: f"tcp://127.0.0.1:{port}" for name, port in zip(names, ports, strict=True)}
    else:
        urls = {name: f"inproc://{name}" for name in names}
    # Only over sockets does the clock wait for a thread; one that jumps would jump past whatever a thread does.
    env = attrs.evolve(real_env(), local={}) if over == "tcp" else simulated()
    where = "/data" if root == "simulated" else str(root) if root is not None else None
    with trio.fail_after(PATIENCE_S * 4):
        async with trio.open_nursery() as nursery:
            made = Mesh(nursery, env, urls, where, root == "simulated", **settings)
            await made.start(*names)
            yield made
            nursery.cancel_scope.cancel()


async def until(check: Any) -> None:
    """Wait until something is so; ``check`` may be a coroutine function."""
    with trio.fail_after(PATIENCE_S):
        while True:
            found = check()
            if not isinstance(found, bool):
                found = await found
            if found:
                return
            await trio.sleep(0.01)


def bodies(deliveries: Iterable[Delivery]) -> list[bytes]:
    """What came."""
    return [delivery.body for delivery in deliveries]


def ids(deliveries: Iterable[Delivery]) -> Counter[Any]:
    """How often each message came."""
    return Counter(delivery.message_id for delivery in deliveries)
