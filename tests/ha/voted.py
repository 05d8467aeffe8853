"""A pair by replication in a cluster whose other nodes vote, each on a machine that can be cut off."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import attrs
import trio

from meshq import Broker, Client, ClusterConnection, MajorityVote, ReplicationBackup, ReplicationPrimary, abc, connect
from meshq.env import real_env
from meshq.notifications import VoteHeld
from meshq.testing import InlineThreads, MemoryNetwork, SimDisk
from tests.ha.replicated import SLOW, Machines

TTL_S = 2.0


class VotingMachines(Machines):
    """The machines of a pair, ``a`` and ``b``, and of its voters.  ``votes``: those that each node has held."""

    def __init__(self, voters: str) -> None:
        super().__init__()
        self.network = MemoryNetwork(random.Random(1))
        self.names = ("a", "b", *voters)
        self.voters = tuple(voters)
        self.disks = {name: SimDisk() for name in self.names}
        self.brokers: dict[str, Broker] = {}
        self.clusters: dict[str, ClusterConnection] = {}
        self.votes: dict[str, list[VoteHeld]] = {name: [] for name in self.names}

    def url(self, name: str) -> str:
        """Return where a node is reached."""
        return f"tcp://{name}:7001?insecure=true"

    def env(self, name: str = "client") -> abc.Env:
        """Return the outside of a node, or of a client."""
        disk = self.disks.get(name) or SimDisk()
        parts: dict[str, Any] = {
            "network": self.network.host(name),
            "disk": disk.mount(),
            "threads": InlineThreads(),
        }
        return attrs.evolve(real_env(), local={}, host=name, pid=1, **parts)

    async def run(
        self, nursery: trio.Nursery, name: str, ha: abc.HAPolicy | None = None, *, partner: str = ""
    ) -> Broker:
        """Start a node.  ``partner``: the other node of its pair, if that is not the pair of the machines."""
        cluster: dict[str, Any] = {"connector": "own", "password": "p", "connection_ttl": TTL_S, "call_timeout": 1.0}
        # The voters dial the pair, which finds them by that: a node of the pair asks few others whether they serve.
        others = [self.url(one) for one in (*partner, *"ab") if one != name]
        self.clusters[name] = connection = ClusterConnection("c", static_connectors=others, **cluster)
        broker = Broker(
            name,
            data_dir="/data",
            acceptors=[self.url(name)],
            connectors={"own": self.url(name)},
            services=[connection],
            ha=ha,
            env=self.env(name),
        )
        nursery.start_soon(self._listen, broker)
        self.brokers[name] = await self.start(nursery, broker)
        return broker

    async def _listen(self, broker: Broker) -> None:
        async for event in broker.events():
            if isinstance(event, VoteHeld):
                self.votes[broker.name].append(event)

    async def form(
        self, nursery: trio.Nursery, quorum: MajorityVote | None = None, **settings: Any
    ) -> tuple[Broker, Broker]:
        """Start all nodes, and wait until the replica is in sync and all know who votes."""
        quorum = quorum or MajorityVote()
        for name in self.voters:
            await self.run(nursery, name)
        first = await self.run(nursery, "a", ReplicationPrimary(quorum=quorum, **settings))
        await self.clusters["a"].wait_for(nodes=len(self.voters) + 1, timeout=30)
        second = await self.run(nursery, "b", ReplicationBackup(quorum=quorum))
        await second.ha.wait_for(phase="in_sync", timeout=60)
        await first.ha.wait_for(in_sync=True, timeout=60)
        await trio.sleep(5)
        return first, second

    def part(self, one: str, *others: str) -> None:
        """Let nothing through between a machine and others."""
        for other in others:
            self.network.cut(one, other)
            self.network.cut(other, one)

    def talker(self, *names: str, **settings: Any) -> Client:
        """Make a client that knows some nodes."""
        url = ",".join(self.url(name).partition("?")[0] for name in names)
        return connect(
            f"({url})?insecure=true",
            env=self.env(),
            **{**SLOW, "connection_ttl": TTL_S, "use_topology": False, **settings},
        )


@asynccontextmanager
async def voting_machines(voters: str = "cdef") -> AsyncIterator[tuple[VotingMachines, trio.Nursery]]:
    """Give the machines, and a nursery that is cancelled at the end."""
    ground = VotingMachines(voters)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(ground.network.run)
        yield ground, nursery
        nursery.cancel_scope.cancel()
