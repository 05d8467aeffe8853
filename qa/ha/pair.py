"""A pair of simulated nodes, or one node alone, with the policies that there are, and the witnesses of those."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Final

import trio

from meshq import (
    AddressSettings,
    Broker,
    ClusterConnection,
    MajorityVote,
    MeshqError,
    ReplicationBackup,
    ReplicationPrimary,
    SharedStoreBackup,
    SharedStorePrimary,
)
from meshq.abc import Env, HAPolicy
from meshq.concurrency import first_error
from meshq.ha import _store_competition
from meshq.ha.quorum.mesh import MeshQuorum, QuorumNode
from meshq.ha.replication import _joined
from meshq.ha.votes import Voter
from meshq.settings import JournalSettings
from meshq.testing import MemoryNetwork, SimDisk, SimNode, Simulation

#: Loaded before a simulation begins: no file is opened in it.
LOADED: Final = (_store_competition, _joined, Voter)
#: Silence after which the nodes of a pair give each other up, and the lease of a shared store; the defaults are longer.
TTL_S: Final = 3.0
LEASE_S: Final = 2.0
#: The node id of a pair that asks a quorum.
NODE_ID: Final = b"the pair of two."
#: After so long without a word of a node another one may serve in its place, where witnesses decide.
SESSION_S: Final = 3.0
#: Within these seconds the nodes of a pair know who votes.
FORMED_S: Final = 5.0
WITNESSES: Final = ("w0", "w1", "w2")
PORT_OF_WITNESSES: Final = 7700
#: Small files, so that a full disk is soon noticed.
JOURNAL: Final = JournalSettings(segment_bytes=256 * 1024)

Policies = Callable[[bool, Env], HAPolicy | None]


def alone(first: bool, env: Env) -> HAPolicy | None:
    """A single node."""
    return None


def shared_store(first: bool, env: Env, *, back: bool = False) -> HAPolicy:
    """Two nodes with one store; ``back``: the backup gives it back."""
    timing: dict[str, Any] = {"lease": LEASE_S, "lock_check_period": 0.1}
    return (
        SharedStorePrimary(wait_for_activation=False, **timing)
        if first
        else SharedStoreBackup(allow_failback=back, **timing)
    )


def replication(first: bool, env: Env, *, back: bool = False) -> HAPolicy:
    """Two nodes with a store each, without a third party; ``back``: the backup gives the role back."""
    timing: dict[str, Any] = {"retry_interval": 0.1, "max_retry_interval": 0.5}
    if first:
        return ReplicationPrimary(check_for_live_server=True, wait_for_activation=False, **timing)
    return ReplicationBackup(allow_failback=back, **timing)


def quorum(first: bool, env: Env) -> HAPolicy:
    """Two nodes with a store each, and three witnesses."""
    places = [f"tcp://{name}:{PORT_OF_WITNESSES}" for name in WITNESSES]
    provider = MeshQuorum(
        places,
        password="secret",
        session=SESSION_S,
        connection_timeout=1.0,
        retry_interval=0.2,
        insecure=True,
        env=env,
    )
    timing: dict[str, Any] = {"retry_interval": 0.1, "max_retry_interval": 0.5}
    if first:
        return ReplicationPrimary(quorum=provider, wait_for_activation=False, **timing)
    return ReplicationBackup(quorum=provider, **timing)


def voted(first: bool, env: Env) -> HAPolicy:
    """Two nodes with a store each, in a cluster of which three other nodes vote."""
    vote = MajorityVote(vote_retries=math.inf, vote_retry_wait=1.0, quorum_vote_wait=2.0)
    timing: dict[str, Any] = {"retry_interval": 0.1, "max_retry_interval": 0.5}
    if first:
        return ReplicationPrimary(quorum=vote, wait_for_activation=False, **timing)
    return ReplicationBackup(quorum=vote, **timing)


async def _vote(pair: SimulatedPair, name: str, env: Env) -> None:
    """Be another node of the cluster."""
    place = f"tcp://{name}:{PORT_OF_WITNESSES}?insecure=true"
    dialed = list(pair.urls.values())
    about: dict[str, Any] = {"password": "secret", "connection_ttl": TTL_S, "retry_interval": 0.3}
    connection = ClusterConnection("pair", connector="own", static_connectors=dialed, **about)
    broker = Broker(
        name, data_dir="/data", acceptors=[place], connectors={"own": place}, services=[connection], env=env
    )
    await broker.run()


async def _attest(name: str, env: Env) -> None:
    """Be a witness."""
    place = f"tcp://{name}:{PORT_OF_WITNESSES}"
    about: dict[str, Any] = {"password": "secret", "tick": SESSION_S / 6, "insecure": True, "env": env}
    async with QuorumNode(name, data_dir="/data", acceptors=[place], **about):
        await trio.sleep_forever()


class Node:
    """A node over all its lives."""

    def __init__(self, pair: SimulatedPair, name: str, *, first: bool) -> None:
        self.name = name
        self.url = f"tcp://{name}:7001?insecure=true"
        self._pair = pair
        self._first = first
        shared = pair.disk
        self.machine: SimNode = pair.simulation.node(name, disk=shared) if shared else pair.simulation.node(name)
        self.broker: Broker | None = None
        #: The error with which the broker has ended.
        self.error: BaseException | None = None

    @property
    def serves(self) -> bool:
        """Whether the broker is active, and its process goes on."""
        return self.machine.state == "running" and self.broker is not None and self.broker.state == "active"

    def start(self) -> None:
        """Begin a life, as an operator does with a node that has ended."""
        if self.machine.state == "dead":
            self.machine.start()
        elif self.error is None:
            return
        self.error = None
        self.machine.spawn(self._live)

    def begin(self) -> None:
        """Begin the first life."""
        self.machine.spawn(self._live)

    def kill(self) -> None:
        """End the process."""
        self.machine.kill()

    async def _live(self) -> None:
        pair, policy = self._pair, self._pair.policies(self._first, self.machine.env)
        others = [url for name, url in pair.urls.items() if name != self.name]
        connection = ClusterConnection(
            "pair",
            password="secret",
            connector="own",
            static_connectors=others,
            connection_ttl=TTL_S,
            call_timeout=TTL_S / 2,
            retry_interval=0.2,
        )
        self.broker = Broker(
            self.name,
            data_dir="/data",
            acceptors=[self.url],
            connectors={"own": self.url},
            services=[connection] if policy is not None else [],
            ha=policy,
            address_settings=pair.settings,
            # A new primary begins before its backup, which could say that it has no store.
            node_id=NODE_ID if self._first and pair.policies is quorum else None,
            journal=JOURNAL,
            stop_timeout=2,
            env=self.machine.env,
        )
        try:
            await self.broker.run()
        except* (MeshqError, OSError) as group:
            self.error = first_error(group)


class SimulatedPair:
    """The nodes of a pair, and its witnesses.

    ``shared``: the nodes have one disk.  ``settings``: what both are told about addresses.
    """

    def __init__(
        self,
        simulation: Simulation,
        policies: Policies,
        *,
        shared: bool,
        settings: Mapping[str, AddressSettings] | None = None,
    ) -> None:
        self.simulation = simulation
        self.policies = policies
        self.settings: dict[str, AddressSettings] = dict(settings or {})
        names = ["a"] if policies is alone else ["a", "b"]
        self.urls: dict[str, str] = {name: f"tcp://{name}:7001?insecure=true" for name in names}
        #: The disk that both nodes use; None: each has its own.
        self.disk: SimDisk | None = None
        if shared:
            self.disk = SimDisk(simulation.swarm.rng("disk"))
            # Time is that of the network: the disk is at once there for all of them.
            self.disk.latency = None
        self.nodes: dict[str, Node] = {name: Node(self, name, first=name == "a") for name in names}
        #: The machines of witnesses, where these decide.
        self.witnesses: dict[str, SimNode] = {}
        if policies in (quorum, voted):
            self.witnesses = {name: simulation.node(name) for name in WITNESSES}

    @property
    def a(self) -> Node:
        """The node that serves first."""
        return self.nodes["a"]

    @property
    def b(self) -> Node | None:
        """The other one."""
        return self.nodes.get("b")

    @property
    def fabric(self) -> MemoryNetwork:
        """The network."""
        fabric = self.simulation.fabric
        assert isinstance(fabric, MemoryNetwork)
        return fabric

    @property
    def serving(self) -> list[str]:
        """The nodes that serve."""
        return [name for name, node in self.nodes.items() if node.serves]

    def cut(self, one: str, other: str, *, one_way: bool = False) -> None:
        """Let nothing through between two machines."""
        self.fabric.cut(one, other)
        if not one_way:
            self.fabric.cut(other, one)

    def start_witness(self, name: str) -> None:
        """Begin a life of a witness."""
        machine = self.witnesses[name]
        if machine.state == "dead":
            machine.start()
        if self.policies is voted:
            machine.spawn(_vote, self, name, machine.env)
        else:
            machine.spawn(_attest, name, machine.env)

    def mend_disks(self) -> None:
        """Let all disks work again."""
        for node in self.nodes.values():
            node.machine.disk.faults.clear()
            node.machine.disk.capacity_bytes = math.inf

    async def form(self) -> None:
        """Start the nodes, and wait until the pair is whole."""
        for name in self.witnesses:
            self.start_witness(name)
        self.a.begin()
        while not self.a.serves:  # noqa: ASYNC110 - looking costs nothing here
            await trio.sleep(0.1)
        if self.b is not None:
            self.b.begin()
            while not self.whole:  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(0.1)
        if self.policies is voted:
            # Until then it is a pair that decides alone.
            await trio.sleep(FORMED_S)

    @property
    def whole(self) -> bool:
        """Whether the other node could take over from the first one, which serves."""
        assert self.a.broker is not None
        ha = self.a.broker.ha
        return bool(ha.waiting) if self.disk is not None else any(one.in_sync for one in ha.replicas)
