"""An ensemble of witnesses over a network and disks in memory."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from meshq.abc import Env
from meshq.env import real_env
from meshq.ha.quorum.mesh import MeshQuorum, QuorumNode
from meshq.testing import InlineThreads, MemoryNetwork, SimDisk

PASSWORD = "for tests only"


class Ensemble:
    """Three witnesses, each on a host of its own, and sessions from other hosts."""

    def __init__(self, nursery: trio.Nursery, names: tuple[str, ...] = ("w0", "w1", "w2")) -> None:
        self.network = MemoryNetwork(random.Random(3))
        self.names = names
        self.disks = {name: SimDisk() for name in names}
        self.nodes: dict[str, QuorumNode] = {}
        self._nursery = nursery
        self._scopes: dict[str, trio.CancelScope] = {}
        self._ended: dict[str, trio.Event] = {}

    def env(self, host: str) -> Env:
        disk = self.disks.get(host) or SimDisk()
        network = self.network.host(host)
        return attrs.evolve(real_env(), disk=disk.mount(), threads=InlineThreads(), network=network, local={})

    async def start(self, name: str, **settings: Any) -> QuorumNode:
        node = QuorumNode(
            name,
            **{
                "data_dir": "/quorum",
                "acceptors": [f"tcp://{name}:7700"],
                "password": PASSWORD,
                "tick": 0.5,
                "insecure": True,
                "env": self.env(name),
                **settings,
            },
        )
        self.nodes[name] = node
        self._scopes[name] = trio.CancelScope()
        self._ended[name] = trio.Event()

        async def run(task_status: trio.TaskStatus[None]) -> None:
            with self._scopes[name]:
                await node.run(task_status=task_status)
            self._ended[name].set()

        await self._nursery.start(run)
        return node

    async def stop(self, name: str) -> None:
        self._scopes[name].cancel()
        await self._ended[name].wait()

    def quorum(self, host: str = "c0", **settings: Any) -> MeshQuorum:
        given = {
            "password": PASSWORD,
            "session": 3.0,
            "connection_timeout": 1.0,
            "retry_interval": 0.2,
            "insecure": True,
            "env": self.env(host),
        }
        return MeshQuorum(settings.pop("servers", [f"tcp://{name}:7700" for name in self.names]), **given | settings)


@asynccontextmanager
async def ensemble(**settings: Any) -> AsyncIterator[Ensemble]:
    async with trio.open_nursery() as nursery:
        found = Ensemble(nursery)
        nursery.start_soon(found.network.run)
        for name in found.names:
            await found.start(name, **settings)
        yield found
        nursery.cancel_scope.cancel()
