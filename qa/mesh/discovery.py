"""A simulated mesh that forms by discovery: nodes that move to other ports, a silent network, and a stranger in it.

A node knows one multicast group and nothing else of the others.  A stranger hears what is announced, says it again
later, announces places at which no node is, and sends what is no announcement.  In half of the seeds the group has a
secret, which the stranger doesn't know.  In half of them the cluster connections name no connector of their own, and in
half of them the group is one of DNS-SD.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import trio

from meshq import abc
from meshq.discovery import Announcement, BroadcastGroup, ConnectorPair, DiscoveryGroup, UDPMulticast, Zeroconf
from meshq.discovery._datagram_format import encode_announcement
from meshq.testing import MemoryNetwork, SimNode, Swarm
from qa.mesh.finder import Finder
from qa.mesh.membership import NODES, URLS, Membership
from qa.mesh.node import MeshNode
from qa.simulation.workload import Scene

LAN: Final = UDPMulticast("231.7.7.7", 9876)
#: Made here, before a simulation begins: its library is imported then, which no simulation can repeat.
DNS_SD: Final = Zeroconf("lan")
#: The first port at which nodes hear each other; each move is to the next one.
PORT: Final = 6000
#: Seconds between announcements, and the silence after which a node is dropped.
PERIOD_S: Final = 0.5
REFRESH_S: Final = 3.0
#: The stranger sends this often, and remembers so many datagrams.
STRANGE_S: Final = 0.3
REMEMBERED: Final = 200
SECRET: Final = "the group's own"
#: Places at which the stranger announces nodes, and nobody listens.
NOWHERE: Final = tuple(f"tcp://{host}:{port}" for host in ("a", "b", "c", "nowhere") for port in (1, 2))
DISCOVERY_SIGHTS: Final = (
    "datagram_doubled",
    "datagram_lost",
    "forgery_refused",
    "forgery_heard",
    "moved",
    "replay_refused",
)


class DiscoveredMemberships:
    """Memberships by discovery: each life of a node announces itself, and listens to the others."""

    #: Nodes are killed and come back at another port; datagrams are lost while connections go on.
    fault_kinds: tuple[str, ...] = ("move", "silent_lan")

    def __init__(self, swarm: Swarm) -> None:
        self._swarm = swarm
        self._rng = swarm.rng("mesh/ports")
        self._secret = SECRET if swarm.on("mesh.secret") else None
        self.names: Sequence[str] = NODES
        #: Where nodes are announced.
        self.endpoint: abc.BroadcastEndpoint = DNS_SD if swarm.on("mesh.dns_sd") else LAN
        # Unnamed, a connector is the first acceptor.
        self._connector = None if swarm.on("mesh.unnamed_connector") else "me"
        self._port = PORT
        self._ports: dict[str, int] = {}
        #: The discovery group of the present life of each node.
        self.groups: dict[str, DiscoveryGroup] = {}
        for sight in DISCOVERY_SIGHTS:
            swarm.count(f"seen.{sight}", 0)

    @property
    def signed(self) -> bool:
        """Whether the group has a secret."""
        return self._secret is not None

    def move(self, name: str) -> None:
        """The next life of a node is at another port."""
        self._swarm.count("seen.moved", int(self._ports.pop(name, None) is not None))

    def of(self, name: str) -> Membership:
        """Return the membership of a life."""
        if self._rng.random() < 0.2:
            self.move(name)
        if name not in self._ports:
            self._ports[name], self._port = self._port, self._port + 1
        url = f"tcp://{name}:{self._ports[name]}?insecure=true"
        group = DiscoveryGroup("lan", self.endpoint, refresh_timeout=REFRESH_S, secret=self._secret)
        self.groups[name] = group
        return Membership(
            connectors={**URLS, "me": url},
            cluster={"connector": self._connector, "discovery": group},
            acceptors=[url],
            services=[
                BroadcastGroup("lan", self.endpoint, connectors=["me"], broadcast_period=PERIOD_S, secret=self._secret)
            ],
        )

    def group_of_a_client(self) -> DiscoveryGroup:
        """Return the group of a client: the place of the announcements, and the secret if there is one."""
        return DiscoveryGroup("lan", self.endpoint, refresh_timeout=REFRESH_S, secret=self._secret)

    def settle(self, fabric: MemoryNetwork, nodes: Sequence[MeshNode], finder: Finder) -> None:
        """Count the datagrams that were lost or refused, and note invented places that are dialed in the end, and a
        client that has found none of the nodes."""
        self._swarm.count("seen.datagram_lost", fabric.paths.lost)
        self._swarm.count("seen.datagram_doubled", fabric.paths.doubled)
        for node in nodes:
            refused = self.groups[node.place].statistics().refused
            self._swarm.count("seen.replay_refused", int(refused["replayed"] > 0))
            self._swarm.count("seen.forgery_refused", int(refused["unsigned"] > 0))
            node.left("connectors dialed at which no node is", node.nowhere(NOWHERE))
        nodes[0].left("clients that have found no node", int(not finder.connected))


class Stranger:
    """A stranger in the network of the nodes: sends datagrams that no node has sent."""

    def __init__(self, node: SimNode, scene: Scene, swarm: Swarm, memberships: DiscoveredMemberships) -> None:
        self._node = node
        self._scene = scene
        self._swarm = swarm
        self._memberships = memberships
        self._rng = swarm.rng("mesh/stranger")
        self._heard: list[bytes] = []

    def start(self) -> None:
        """Begin to listen, and to send until the scene closes."""
        self._node.spawn(self._run, name="stranger")

    async def _run(self) -> None:
        env = self._node.env
        async with trio.open_nursery() as nursery:
            channel = await self._memberships.endpoint.open(env)
            nursery.start_soon(self._send, channel)
            while True:
                self._heard.append(await channel.receive())
                if len(self._heard) > REMEMBERED:
                    del self._heard[self._rng.randrange(REMEMBERED)]

    async def _send(self, channel: abc.BroadcastSender) -> None:
        while True:
            await trio.sleep(STRANGE_S * 2 * self._rng.random())
            if not self._scene.closing:
                await channel.broadcast(self._datagram())

    def _datagram(self) -> bytes:
        way = self._rng.random()
        if way < 0.4 and self._heard:
            return self._rng.choice(self._heard)
        if way < 0.6 and self._heard:
            damaged = bytearray(self._rng.choice(self._heard))
            damaged[self._rng.randrange(len(damaged))] ^= 1 << self._rng.randrange(8)
            return bytes(damaged)
        if way < 0.7:
            return self._rng.randbytes(self._rng.randrange(1, 300))
        self._swarm.count("seen.forgery_heard", int(not self._memberships.signed))
        return encode_announcement(self._invented(), None)

    def _invented(self) -> Announcement:
        rng: random.Random = self._rng
        return Announcement(
            node_id=rng.randbytes(16),
            instance=rng.randbytes(16),
            began_ms=rng.randrange(1, 1 << 40),
            sequence=rng.randrange(1, 1_000),
            period_ms=500,
            name="nobody",
            connectors=(ConnectorPair(rng.choice(NOWHERE)),),
        )
