"""A client of the simulated mesh that knows only the nodes' multicast group: it finds one of them again and again."""

from __future__ import annotations

from typing import Final

import attrs
import trio

from meshq import Client, ClientFactory, ConnectionBrokenError, DiscoveryGroup, MeshqError
from meshq.testing import SimNode, Swarm
from qa.simulation.workload import CLIENT_SETTINGS, Scene

#: The longest wait for an announcement, and the longest time with one client, in seconds.
WAIT_S: Final = 4.0
STAY_S: Final = 40.0
#: Between two calls.
CALL_S: Final = 0.5
FINDER_SIGHTS: Final = ("client_found_a_node", "client_found_another_node")


class Finder:
    """The machine of a client that is told nothing but where nodes announce themselves.

    It goes and comes.  Once the scene closes it stays, and comes back when its node is lost.
    """

    def __init__(self, node: SimNode, scene: Scene, swarm: Swarm, group: DiscoveryGroup) -> None:
        self.node = node
        self._scene = scene
        self._swarm = swarm
        self._rng = swarm.rng("mesh/finder")
        settings = {**CLIENT_SETTINGS, "initial_connect_attempts": 1}
        self._factory = ClientFactory(
            group, env=attrs.evolve(node.env, local={}), initial_wait_timeout=WAIT_S, client_id="finder", **settings
        )
        self._client: Client | None = None
        for sight in FINDER_SIGHTS:
            swarm.count(f"seen.{sight}", 0)

    def start(self) -> None:
        """Begin to look for nodes."""
        self.node.spawn(self._run, name="finder")

    @property
    def connected(self) -> bool:
        """Whether its client is connected to a node."""
        return self._client is not None and self._client.statistics().state == "connected"

    async def _run(self) -> None:
        while True:
            try:
                async with self._factory.connect() as self._client:
                    self._swarm.count("seen.client_found_a_node")
                    with trio.move_on_after(STAY_S * self._rng.random()):
                        await self._stay(self._client)
                    if self._scene.closing:
                        await self._stay(self._client)
            except ConnectionBrokenError:
                self._swarm.count("seen.client_found_nobody")
            self._client = None

    async def _stay(self, client: Client) -> None:
        """Call now and then."""
        before = client.statistics().node_id
        while True:
            await trio.sleep(CALL_S * 2 * self._rng.random())
            try:
                await client.queues()
            except MeshqError:
                # What a loss means for a call is judged where calls matter.
                continue
            found = client.statistics().node_id
            self._swarm.count("seen.client_found_another_node", int(found != before))
            before = found
