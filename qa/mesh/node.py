"""A node of the simulated mesh: a broker with links to the others."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, Protocol

import trio

from meshq import abc
from meshq.bridge import Bridge
from meshq.broker import Core
from meshq.client import Client, connect
from meshq.cluster import ClusterConnection, LoadBalancing
from meshq.endpoint import Endpoint
from meshq.node import Broker
from meshq.notifications import BindingAdded, BindingRemoved, Notification
from meshq.settings import AddressSettings, JournalSettings
from meshq.statistics import StuckMessages
from meshq.testing import SimNode, Swarm
from meshq.testing.history._history import History, place_of
from qa.mesh.bridges import MeshBridges, logical, place
from qa.mesh.bursts.delays import MeshDelays
from qa.mesh.bursts.flood import BURST, BURST_BYTES
from qa.mesh.membership import Memberships
from qa.simulation.accounts import FORWARDING
from qa.simulation.broker import DIRECTORY, MEMORY_BYTES, SEGMENT_BYTES, STOP_S, BrokerNode
from qa.simulation.workload import ADDRESSES, CLIENT_SETTINGS, SETTINGS

#: A queue that every node has, nobody consumes, and one node loses before the end.
RETIRED: Final = "retired"
#: An address on which each node has a queue of another name, which nobody consumes; and how these names begin.
SPREAD: Final = "spread"
#: Seconds in which nodes that nothing keeps apart are linked.
LINKED_S: Final = 10.0
#: What may be used besides the limit: what each session has under way, and a burst that is moved: of a run that goes in
#: parts, what has gone is there twice until the rest goes.  What goes whole is there twice within one step only.
SESSION_BYTES: Final = 128 * 1024
MOVED_BYTES: Final = BURST * BURST_BYTES
#: Seconds after which messages that do not move are stuck.
STUCK_S: Final = 4.0
#: Settings of clients that a link has otherwise, or not at all.
NOT_OF_LINKS: Final = ("insecure", "initial_connect_attempts", "call_failover_timeout")
#: By name the settings of the queues that a node has besides, if nobody says more.
NO_QUEUES: Final[Mapping[str, AddressSettings]] = MappingProxyType({})
#: The mode of a seed's links is one of these.
MODES: Final[tuple[LoadBalancing, ...]] = ("on_demand", "on_demand", "strict")


class MoreServices(Protocol):
    """Makes services that each life of a node has beside its links and bridges."""

    def make(self, node: MeshNode) -> Sequence[abc.Service]:
        """Return the services of a life that begins."""


class GroupSettings(Protocol):
    """The settings of nodes about message groups: the queues, the seconds after which an idle pin is released, and how
    many pins are kept."""

    queues: list[str]
    timeout_s: float
    pins_max: int


class LimitSettings(Protocol):
    """A bounded queue of every node: its settings at each node, and the watch over its messages."""

    queues: list[str]

    def settings(self, node: str) -> dict[str, AddressSettings]:
        """Return the address settings of a node."""

    def listen(self, broker: Broker) -> None:
        """Listen to a life of a node."""

    def look(self, history: History, node: str, core: Core) -> None:
        """Write down how much a node has."""


class MeshNode(BrokerNode):
    """A broker of the mesh over all its lives."""

    def __init__(
        self,
        node: SimNode,
        history: History,
        swarm: Swarm,
        mode: LoadBalancing,
        bridges: MeshBridges,
        *,
        delays: MeshDelays,
        groups: GroupSettings,
        limits: LimitSettings,
        memberships: Memberships,
        more_services: MoreServices | None = None,
        more_queues: Mapping[str, AddressSettings] = NO_QUEUES,
    ) -> None:
        super().__init__(node, history, swarm)
        self._memberships = memberships
        self._more_services = more_services
        self._more_queues = more_queues
        self._ways = bridges
        self._delays = delays
        self._groups = groups
        self._limits = limits
        #: The id of another node that is gone for good; empty: all come back.
        self.given_up = ""
        #: The bridges of this life.
        self.bridges: list[Bridge] = []
        self.rng = swarm.rng(f"broker process/{node.name}")
        self.mode = mode
        attempts = swarm.rng("mesh/attempts").choice((1, 3))
        #: After so many attempts to reach another node it is given up, until it is there again.
        self.attempts = attempts if swarm.on("mesh.finite_attempts") else math.inf
        swarm.count("seen.finite_attempts", int(self.attempts < math.inf))
        window = swarm.rng("mesh/link_window").choice((1, 20_000))
        #: The bytes that may be under way on a link.
        self.link_window: float = window if swarm.on("mesh.link_window") else math.inf
        rng = swarm.rng("mesh/calls")
        #: How long a call over a link waits through a failover, and the announcements of a node.
        self.calls: dict[str, Any] = {
            "call_failover_timeout": rng.choice((0.5, 20.0, math.inf)),
            "notification_interval": rng.choice((0.1, 1.0)),
            "notification_attempts": rng.choice((0, 2, 2, 4)),
            # So many bytes of a body go in one frame.
            "min_large_message_size": rng.choice((1_024, 4_000, 102_400)),
        }
        self._cluster: ClusterConnection | None = None
        # By node and queue, how often it was told of in this life, less how often it was told to be gone.
        self._told_queues: Counter[tuple[str, str]] = Counter()

    @property
    def spread(self) -> str:
        """The name of the node's queue on the address where each has one of its own."""
        return f"{SPREAD}-{self.place}"

    @property
    def cluster_size(self) -> int:
        """The number of nodes, of which one may be gone for good."""
        return len(self._memberships.names)

    @property
    def place(self) -> str:
        """The node's name."""
        return self.node.name

    @property
    def cluster(self) -> ClusterConnection | None:
        """The cluster connection of this life."""
        return self._cluster

    def make(self) -> Broker:
        """The broker of this life."""
        name = self.place
        links = {key: value for key, value in SETTINGS.items() if key not in NOT_OF_LINKS}
        membership = self._memberships.of(name)
        self._cluster = ClusterConnection(
            "mesh",
            **membership.cluster,
            load_balancing=self.mode,
            user="mesh",
            password="the mesh's own",
            initial_connect_attempts=self.attempts,
            reconnect_attempts=self.attempts,
            producer_window_size=self.link_window,
            stuck_timeout=STUCK_S,
            group_timeout=self._groups.timeout_s,
            max_group_pins=self._groups.pins_max,
            **self.calls,
            **links,
        )
        self.bridges = self._ways.make(name)
        more = self._more_services.make(self) if self._more_services is not None else ()
        broker = Broker(
            name,
            data_dir=DIRECTORY,
            directories=self.directories,
            journal=JournalSettings(segment_bytes=SEGMENT_BYTES),
            acceptors=[*membership.acceptors, f"tcp://{name}:5000?insecure=true"],
            connectors=membership.connectors,
            services=[self._cluster, *self.bridges, *more, *membership.services],
            queues=[
                *(address for address, queues in ADDRESSES.items() if len(queues) == 1),
                *self._ways.queues(name),
                *self._delays.queues,
                *self._groups.queues,
                *self._limits.queues,
                *self._more_queues,
            ],
            # A message that comes too late must not make it again.
            address_settings={
                **{name: AddressSettings(auto_create_queues=False) for name in (RETIRED, SPREAD)},
                **self._ways.settings(name),
                **self._limits.settings(name),
                **self._more_queues,
            },
            memory_limit=MEMORY_BYTES,
            stop_timeout=STOP_S,
            env=self.node.env,
        )
        self._told_queues = Counter()
        broker._event_bus.listen(self._hear)
        self._limits.listen(broker)
        return broker

    def _hear(self, event: Notification) -> None:
        """Count the queues of other nodes that this life has told of."""
        if isinstance(event, (BindingAdded, BindingRemoved)):
            added = isinstance(event, BindingAdded)
            self._told_queues[event.node_id, event.queue] += 1 if added else -1
            self.swarm.count("seen.binding_added" if added else "seen.binding_removed")

    def mistold_queues(self) -> int:
        """Return how many queues of other nodes are known and not told of, or the other way round."""
        if not self.active:
            return 0
        router = self.serving_core.router
        bindings = [one for link in router.features for one in router.remote(link)]
        known = Counter((one.path[0], one.name) for one in bindings)
        # What a start has taken up of a node that was not linked since is told to nobody.
        unheard = {(one.path[0], one.name) for one in bindings if one.gone}
        told = self._told_queues
        wrong = [one for one in {**known, **told} if known[one] != told[one]]
        return sum(told[one] > 0 or one not in unheard for one in wrong)

    def drained(self, queue: str) -> bool:
        """Return whether a consumer takes all messages of a queue, or a bridge carries them on."""
        known = logical(queue)
        if known is not None:
            return known in self._ways.drained
        if queue.startswith(FORWARDING):
            return not (self.given_up and queue.endswith(self.given_up))
        return queue in self._delays.queues or super().drained(queue)

    @staticmethod
    def logical(queue: str) -> str:
        """Return the queue of which a queue is a place: queues of different names on one address count as one."""
        return logical(queue) or (SPREAD if queue.startswith(f"{SPREAD}-") else queue)

    @staticmethod
    def place_of(queue: str, node: str) -> str:
        """The place by which the history knows a queue of a node."""
        return place(queue, node) if logical(queue) else place_of(MeshNode.logical(queue), node)

    def look(self) -> None:
        """Count the events within the node, and the incidents of its bridges."""
        super().look()
        if self.active:
            self._ways.look(self.bridges)
        if self.active and self._cluster is not None:
            announced = sum(peer.announced for peer in self._cluster.peers())
            self.swarm.count("seen.announced", int(announced > 0))
            self.swarm.count("seen.body_in_blocks", int(any(peer.large for peer in self._cluster.peers())))

    def lasts(self) -> dict[str, int]:
        """The last number that each queue has given."""
        return {queue.name: queue.last for queue in self.serving_core.router.queues.values()}

    def look_at_bounds(self) -> None:
        """Write down the memory that the node holds, its limit, and the bytes under way of each session; and how many
        messages a bounded queue has."""
        core = self.core
        if core is not None:
            # The broker's statistics know the number, too, but count every run of every queue for it.
            most = MEMORY_BYTES + MOVED_BYTES + SESSION_BYTES * len(core.sessions)
            self.history.bounded("memory", core.memory.used_bytes, most)
            self._limits.look(self.history, self.place, core)

    def rest(self) -> None:
        """Have its bridges carry nothing more."""
        for bridge in self.bridges:
            bridge.pause()

    @property
    def held_back(self) -> int:
        """The number of sessions that this life has refused until a handover comes to its end."""
        node = None if self.broker is None else self.broker._node
        return node.sessions.held_back if node is not None else 0

    @property
    def blocked(self) -> int:
        """The number of messages that wait because their address is full at another node."""
        return sum(peer.blocked for peer in self._cluster.peers()) if self.active and self._cluster is not None else 0

    @property
    def waiting(self) -> int:
        """The number of messages that wait for other nodes."""
        return sum(peer.waiting for peer in self._cluster.peers()) if self.active and self._cluster is not None else 0

    def states(self) -> dict[str, str]:
        """How it sees each of the others, ``forgotten`` if it knows nothing of one; empty while it does not serve."""
        if not self.active or self._cluster is None:
            return {}
        states = {name: "forgotten" for name in self._memberships.names if name != self.place}
        for peer in self._cluster.peers():
            name = _host_of(peer.connector)
            known = peer.node_id or peer.state == "connecting"
            # A node that moves has an old connector for a while.
            if known and name in states and states[name] != "linked":
                states[name] = peer.state
        return states

    def stuck(self) -> tuple[StuckMessages, ...]:
        """The messages that the node has found to be stuck; empty while it does not serve."""
        cluster = self._cluster if self.active else None
        return cluster.stuck() if cluster is not None and cluster._broker is not None else ()

    def linked_ids(self) -> list[str]:
        """The ids of the nodes to which its messages go now."""
        return [peer.node_id for peer in self._cluster.peers() if peer.connected] if self._cluster is not None else []

    def topology(self) -> list[abc.ToldNode]:
        """The nodes of the cluster as this node knows them, itself first; empty while it does not serve."""
        topology = self._cluster._topology if self.active and self._cluster is not None else None
        return topology.nodes() if topology is not None else []

    def nowhere(self, places: Sequence[str]) -> int:
        """Return how many of these places the node dials."""
        assert self._cluster is not None
        return sum(peer.connector.startswith(tuple(f"{place}?" for place in places)) for peer in self._cluster.peers())

    async def linked(self, nodes: int, patience_s: float) -> int:
        """Wait for so many nodes, itself included; returns how many are missing after a while.

        Checkpoint: always.  Cancellation: nothing has changed.
        """
        assert self._cluster is not None
        with trio.move_on_after(patience_s):
            await self._cluster.wait_for(nodes=nodes)
        return nodes - self._cluster.nodes()

    def dial(self, machine: SimNode) -> Client:
        """A client of this node, on another machine, that stays with the node."""
        url = f"tcp://{self.place}:5000"
        return connect(url, env=machine.env, client_id=machine.name, use_topology=False, **CLIENT_SETTINGS)


@functools.lru_cache(maxsize=256)
def _host_of(connector: str) -> str:
    """The host of a connector: looked for five times a second, for each peer of each node."""
    return Endpoint.parse(connector).host
