"""Nodes on machines of one network, some of them in one process, of which each says itself what it has."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from meshq import (
    Broker,
    ClusterConnection,
    LiveOnly,
    Message,
    ScaleDown,
    UDPMulticast,
    abc,
)
from meshq.testing import MemoryNetwork
from tests.cluster.hosts import NETWORK, Hosts
from tests.cluster.kit import PATIENCE_S, simulated

LAN = UDPMulticast("231.7.7.7", 9876)
LOGIN: dict[str, Any] = {"user": "u", "password": "p", "retry_interval": 0.02, "max_retry_interval": 0.05}


def place(name: str) -> str:
    return f"tcp://{name}:5000?insecure=true"


def mesh(*to: str, name: str = "mesh", **settings: Any) -> ClusterConnection:
    """A cluster connection of a node to others."""
    return ClusterConnection(
        name, connector="me", static_connectors=[place(one) for one in to], **{**LOGIN, **settings}
    )


@attrs.define(eq=False)
class Machines(Hosts):
    """Nodes on machines of one network, which may be in one process; each says itself what it has."""

    #: By name, what makes the services of each life.
    parts: dict[str, Any] = attrs.field(factory=dict)
    #: The nodes of one process.
    together: Sequence[str] = ()
    local: dict[str, Any] = attrs.field(factory=dict)

    def machine(self, name: str) -> abc.Env:
        local = self.local if name in self.together else {}
        return attrs.evolve(super().machine(name), datagrams=self.network.datagrams.host(name), local=local)

    def make(self, name: str) -> Broker:
        made = self.parts[name]() if name in self.parts else {}
        settings = {
            "data_dir": f"/data/{name}",
            "acceptors": [place(name)],
            "queues": ["q"],
            "env": self.lives[name].env,
            **made,
        }
        settings["connectors"] = {"me": place(name), **settings.get("connectors", {})}
        return Broker(name, **settings)

    async def ready(self) -> dict[str, int]:
        """How many messages wait on each node that runs."""
        return {
            name: sum(queue.counts.ready for queue in broker._node.core.router.queues.values())
            for name, broker in self.brokers.items()
            if broker.state == "active" and broker._node is not None
        }

    def linked(self, name: str) -> list[str]:
        """The names of the links that hand over from a node."""
        return [one.name for one in self.brokers[name]._node.handover.bridges()]


@asynccontextmanager
async def machines(names: str = "abc", **settings: Any) -> AsyncIterator[Machines]:
    sure = attrs.evolve(NETWORK, datagram_lost_chance=0.0, datagram_doubled_chance=0.0)
    network = MemoryNetwork(random.Random(0), sure)
    with trio.fail_after(PATIENCE_S * 4):
        async with trio.open_nursery() as nursery:
            urls = {name: place(name) for name in names}
            made = Machines(nursery, simulated(), urls, "/data", simulated=True, network=network, **settings)
            nursery.start_soon(network.run)
            await made.start(*names)
            yield made
            nursery.cancel_scope.cancel()


def leaves(**order: Any) -> LiveOnly:
    return LiveOnly(scale_down=ScaleDown(**order))


async def ten(nodes: Machines) -> None:
    """Have 5 durable and 5 other messages at ``a``, and one at ``b``."""
    await nodes.send("b", [b"before"])
    async with nodes.client("a") as client:
        for number in range(10):
            await client.send("q", Message(b"%d" % number, durable=number < 5))
