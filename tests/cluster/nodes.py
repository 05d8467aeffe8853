"""Nodes of which each says itself what cluster connections it has, in one process and in memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import attrs
import trio

from meshq import Broker, ClusterConnection, abc
from tests.cluster.kit import PATIENCE_S, bodies, simulated

LOGIN = {"user": "u", "password": "p", "retry_interval": 0.02, "max_retry_interval": 0.05}


@attrs.define
class Nodes:
    """Running brokers by name, and the cluster connections of each."""

    env: abc.Env
    connections: Mapping[str, Sequence[ClusterConnection]]
    brokers: dict[str, Broker] = attrs.field(factory=dict)

    def known(self, node: str, name: str = "mesh") -> ClusterConnection:
        return self.brokers[node].cluster(name)

    def links(self) -> list[tuple[str, str]]:
        """The links that carry, each from a node to a node."""
        return sorted(
            (node, peer.node_name)
            for node, connections in self.connections.items()
            for one in connections
            for peer in one.peers()
            if peer.state == "linked"
        )

    async def send(self, node: str, address: str, count: int) -> None:
        async with self.brokers[node].client() as client:
            for number in range(count):
                await client.send(address, b"%d" % number)

    async def received(self, node: str, queue: str, *, quiet: float = 0.5) -> list[bytes]:
        """What comes to a queue, until nothing came for a while."""
        got: list[bytes] = []
        async with self.brokers[node].client() as client, client.consumer(queue) as consumer:
            while batch := await consumer.receive_many(1_000, timeout=quiet):
                got += bodies(batch)
                await consumer.ack(*batch, confirm=True)
        return got

    async def ready(self, queue: str) -> dict[str, int]:
        """How many messages wait in the queue of a name on each node that has it."""
        found = {}
        for name, broker in self.brokers.items():
            async with broker.client() as client:
                if queue in await client.queues():
                    found[name] = (await client.queue(queue)).ready
        return found


def connection(node: str, to: Sequence[str], name: str = "mesh", **settings: Any) -> ClusterConnection:
    """A cluster connection of a node to the nodes of these names."""
    return ClusterConnection(name, connector=node, static_connectors=to, **{**LOGIN, **settings})


@asynccontextmanager
async def nodes(
    connections: Mapping[str, Sequence[ClusterConnection]], queues: Sequence[str] = (), **own: dict[str, Any]
) -> AsyncIterator[Nodes]:
    """Nodes with these cluster connections and queues; ``own``: more settings of single brokers."""
    urls = {name: f"inproc://{name}" for name in connections}
    made = Nodes(simulated(), connections)
    with trio.fail_after(PATIENCE_S * 4):
        async with AsyncExitStack() as stack:
            for name, services in connections.items():
                settings = {"queues": queues, **own.get(name, {})}
                broker = Broker(name, data_dir=None, connectors=urls, services=services, env=made.env, **settings)
                made.brokers[name] = await stack.enter_async_context(broker)
            yield made
