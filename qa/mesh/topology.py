"""Topology in the simulated mesh: nodes that list one other node, or none, and a client that is told of nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from meshq.abc import ToldNode
from meshq.client import Client
from meshq.errors import invariant
from meshq.testing import SimNode, Swarm
from qa.mesh.membership import Membership, urls_of
from qa.mesh.node import LINKED_S, MeshNode

TOPOLOGY_SIGHTS: Final = ("partial_lists", "client_was_told")
#: Between two looks of the client.
LOOK_S: Final = 0.5


class ListedMemberships:
    """Memberships by a list: each node has the connectors of all others.

    In half of the seeds it has the connector of one node before it in a row; the first of the row has none.
    """

    fault_kinds: tuple[str, ...] = ()

    def __init__(self, swarm: Swarm, names: Sequence[str]) -> None:
        self.names: Sequence[str] = names
        partial = swarm.on("mesh.partial_lists")
        rng = swarm.rng("mesh/partial_lists")
        row = list(names)
        rng.shuffle(row)
        self._listed = {name: [other for other in names if other != name] for name in names}
        if partial:
            self._listed = {name: [rng.choice(row[:at])] if at else [] for at, name in enumerate(row)}
        for sight in TOPOLOGY_SIGHTS:
            swarm.count(f"seen.{sight}", 0)
        swarm.count("seen.partial_lists", int(partial))

    def move(self, name: str) -> None:
        """Fail: the others would not find the node."""
        invariant(False, f"{name} has one place")

    def of(self, name: str) -> Membership:
        """Return the membership of a life."""
        cluster = {"connector": name, "static_connectors": self._listed[name]}
        return Membership(connectors=urls_of(self.names), cluster=cluster)


class TopologyReader:
    """The machine of a client that stays at one node, and is told of the cluster."""

    def __init__(self, node: SimNode, swarm: Swarm, at: MeshNode) -> None:
        self.node = node
        self._swarm = swarm
        self.at = at
        self._told: tuple[ToldNode, ...] = ()

    def start(self) -> None:
        """Begin to listen."""
        self.node.spawn(self._run, name="topology reader")

    async def _run(self) -> None:
        async with self.at.dial(self.node) as client:
            await self._look(client)

    async def _look(self, client: Client) -> None:
        while True:
            told = client._session.told.nodes
            self._swarm.count("seen.client_was_told", int(told != self._told))
            self._told = told
            await trio.sleep(LOOK_S)

    def said(self) -> dict[str, tuple[bytes, int, int]]:
        """The nodes of which the client was told last: life, version and distance of each node."""
        return shown(self._told)


def shown(nodes: tuple[ToldNode, ...] | list[ToldNode]) -> dict[str, tuple[bytes, int, int]]:
    """Return life, version and distance of nodes by name."""
    return {one.about.name: (one.about.instance, one.about.version, one.distance) for one in nodes}


async def judge_topology(nodes: list[MeshNode], reader: TopologyReader) -> None:
    """Write down the errors of nodes, and of a client, about the cluster in calm.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    # A client of a node that is gone for good is told nothing more.
    at = reader.at if reader.at in nodes else None
    with trio.move_on_after(LINKED_S):
        while any(wrong(node, nodes) for node in nodes) or (at is not None and misled(reader, at)):  # noqa: ASYNC110
            await trio.sleep(LOOK_S / 2)
    for node in nodes:
        node.left("nodes that it knows otherwise than they are", wrong(node, nodes))
        node.left("queues of other nodes of which it has told otherwise than it knows", node.mistold_queues())
    if at is not None:
        at.left("nodes that a client is told of otherwise than they are", misled(reader, at))
    reader.node.kill()


def wrong(node: MeshNode, nodes: list[MeshNode]) -> int:
    """Count the nodes that a node doesn't know exactly as they are now, and the dead nodes that it knows."""
    known = shown(node.topology())
    there = {}
    for other in nodes:
        life = shown(other.topology()[:1]).get(other.place)
        there[other.place] = None if life is None else (*life[:2], int(other is not node))
    return sum(known.get(name) != there.get(name) for name in {**known, **there})


def misled(reader: TopologyReader, at: MeshNode) -> int:
    """Count the nodes of which a client was told something else than its node knows."""
    said, known = reader.said(), shown(at.topology())
    return sum(said.get(name) != known.get(name) for name in {**said, **known})
