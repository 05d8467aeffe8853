"""Nodes on simulated machines of their own: whoever comes to one comes over its network, and a kill is a kill."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from meshq import Client, Delivery, abc, connect
from meshq.testing import MemoryNetwork, NetworkSettings, SimWallClock
from tests.cluster.kit import PATIENCE_S, Mesh, simulated

NETWORK = NetworkSettings(latency_s_min=0.001, latency_s_max=0.001, split_chance=0.0, short_read_chance=0.0)


@attrs.define(eq=False)
class Hosts(Mesh):
    """Nodes by name, each on a machine of its own; their clients are on others."""

    network: MemoryNetwork = attrs.field(factory=lambda: MemoryNetwork(random.Random(0), NETWORK))

    def machine(self, name: str) -> abc.Env:
        """The outside of a node's machine, in its next life."""
        return attrs.evolve(super().machine(name), network=self.network.host(name), local={}, wall=SimWallClock())

    def dial(self, name: str, **settings: Any) -> Client:
        """A client of a node that comes over the network, and stays with the node."""
        env = attrs.evolve(self.env, network=self.network.host(f"client of {name}"), local={})
        return connect(self.urls[name], env=env, **{"use_topology": False, **settings})

    async def crash(self, *names: str) -> None:
        """Processes die: their kernels close their connections, and nothing is written any more."""
        for name in names:
            self.network.kill_host(name)
        await self.kill(*names)

    async def serve_queue(
        self, name: str, got: list[Delivery], *, queue: str = "q", task_status: trio.TaskStatus[None]
    ) -> None:
        """Consume at a node over the network, also when it goes and comes."""
        async with (
            self.dial(name, reconnect_attempts=float("inf"), max_retry_interval=0.2) as client,
            client.consumer(queue) as consumer,
        ):
            task_status.started()
            async for delivery in consumer:
                await delivery.ack()
                got.append(delivery)


@asynccontextmanager
async def hosts(names: str = "ab", *, made_as: type[Hosts] = Hosts, **settings: Any) -> AsyncIterator[Hosts]:
    """Nodes that are started, each on a machine of its own with a disk of its own."""
    urls = {name: f"tcp://{name}:5000?insecure=true" for name in names}
    with trio.fail_after(PATIENCE_S * 20):
        async with trio.open_nursery() as nursery:
            made = made_as(nursery, simulated(), urls, "/data", simulated=True, **settings)
            nursery.start_soon(made.network.run)
            await made.start(*names)
            yield made
            nursery.cancel_scope.cancel()
