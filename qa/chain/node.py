"""A broker of the simulated chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Final

import trio

from meshq.cluster import ClusterConnection
from meshq.errors import MeshqError
from meshq.node import Broker
from meshq.settings import AddressSettings, JournalSettings
from meshq.statistics import StuckMessages
from meshq.testing import SimNode
from qa.chain.explained import STUCK_S
from qa.chain.shape import Shape
from qa.simulation.broker import SEGMENT_BYTES, STOP_S
from qa.simulation.workload import SETTINGS

#: Seconds in which what nothing holds up has come to its end.
PATIENCE_S: Final = 60.0
QUEUE: Final = "q"
#: Settings of clients that a link has otherwise, or not at all.
NOT_OF_LINKS: Final = ("insecure", "initial_connect_attempts", "call_failover_timeout")


class HopNode:
    """A broker of the chain over all its lives."""

    def __init__(
        self, node: SimNode, shape: Shape, queues: Sequence[str], settings: Mapping[str, AddressSettings]
    ) -> None:
        """``queues``: the names of the queues, if the node has any.  ``settings``: of addresses."""
        self.node = node
        self.name: str = node.name
        self._shape = shape
        self._queues = list(queues) if node.name in shape.owners else []
        self._settings = {"#": AddressSettings(auto_create_queues=False), **settings}
        self.broker: Broker = self._make()
        node.spawn(self._run, self.broker)

    def _make(self) -> Broker:
        links = {key: value for key, value in SETTINGS.items() if key not in NOT_OF_LINKS}
        urls = {name: f"tcp://{name}:5000?insecure=true" for name in self._shape.names}
        connection = ClusterConnection(
            "mesh",
            connector=self.name,
            static_connectors=self._shape.links[self.name],
            allow_direct_connections_only=True,
            max_hops=self._shape.hops,
            load_balancing=self._shape.mode,  # type: ignore[arg-type]
            user="mesh",
            password="the mesh's own",
            stuck_timeout=STUCK_S,
            **links,
        )
        return Broker(
            self.name,
            data_dir="/data/broker",
            journal=JournalSettings(segment_bytes=SEGMENT_BYTES),
            acceptors=[urls[self.name]],
            connectors=urls,
            services=[connection],
            queues=self._queues,
            address_settings=self._settings,
            stop_timeout=STOP_S,
            env=self.node.env,
        )

    async def _run(self, broker: Broker) -> None:
        with suppress(MeshqError):
            await broker.run()

    def up(self) -> None:
        """Begin a new life if the last one is over."""
        self.node.resume()
        if self.node.state == "dead":
            self.node.start()
            self.broker = self._make()
            self.node.spawn(self._run, self.broker)

    async def stop(self) -> None:
        """End this life in peace; nothing follows before ``up``."""
        if self.node.state != "running" or self.broker.state != "active":
            return
        self.node.spawn(self.broker.stop)
        with trio.move_on_after(2 * STOP_S):
            while self.broker.state != "stopped":  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.1)
        self.node.kill()

    async def active(self) -> None:
        """Wait until it is active."""
        with trio.fail_after(PATIENCE_S):
            while self.broker.state != "active":  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.1)

    @property
    def cluster(self) -> ClusterConnection:
        """The cluster connection of this life."""
        return self.broker.cluster("mesh")

    @property
    def carried(self) -> int:
        """Messages that its links have carried in this life."""
        return sum(link.carried for link in self.cluster.bridges())

    def peaceful(self) -> bool:
        """Whether all its links are there and nothing waits for them."""
        if self.node.state != "running" or self.broker.state != "active":
            return False
        return all(peer.connected and peer.state == "linked" and not peer.waiting for peer in self.cluster.peers())

    async def waiting(self, queue: str) -> int:
        """Return the messages that wait in a queue.  Checkpoint: always."""
        async with self.broker.client() as client:
            statistics = await client.queue(queue)
        return statistics.ready

    def stuck(self) -> Sequence[StuckMessages]:
        """The messages that it has found to be stuck."""
        return self.cluster.stuck()

    def known(self) -> dict[tuple[str, str], int]:
        """The queues that it knows of others: node and name, and how far away."""
        return {(one.node_name, one.queue): one.distance for one in self.cluster.bindings()}
