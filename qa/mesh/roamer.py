"""Clients of the simulated mesh that list some nodes, learn of the others, and choose among all by a policy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import Final

import attrs
import trio

from meshq import BalancerPolicy, BalancerTarget, Client, ClientFactory, MeshqError
from meshq.lb import NAMES as POLICIES
from meshq.testing import MemoryNetwork, SimNode, Simulation
from qa.mesh.node import LINKED_S, MeshNode
from qa.simulation.workload import CLIENT_SETTINGS, Scene

ROAMER_SIGHTS: Final = ("roaming", "client_went_to_a_told_node", "client_moved", "client_alone", "client_came_back")
#: Between two calls, and the longest time with a client that goes and comes.
CALL_S: Final = 0.5
STAY_S: Final = 20.0
#: Between two looks.
LOOK_S: Final = 0.25
#: A client whose connection is lost is at a node that serves all the while within so many seconds.  An attempt at a
#: node that does not answer takes 4 s, and a round has three nodes, and one that was elsewhere before.
FOUND_S: Final = 20.0


class LastElement(BalancerPolicy):
    """A policy of a user: the last node of the list."""

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        """Return the last target."""
        return targets[-1] if targets else None


class Roamer:
    """The machine of clients that belong to no node: one stays, and another one goes and comes."""

    def __init__(self, simulation: Simulation, scene: Scene, nodes: Sequence[MeshNode]) -> None:
        self.node: SimNode = simulation.node("roamer")
        self._scene = scene
        self._swarm = simulation.swarm
        self._rng = simulation.swarm.rng("mesh/roamer")
        self._nodes = list(nodes)
        assert isinstance(simulation.fabric, MemoryNetwork)
        self._fabric = simulation.fabric
        self.listed: list[str] = self._rng.sample([node.place for node in nodes], self._rng.choice((1, 1, 2)))
        self.policy: str = self._rng.choice((*POLICIES, "last"))
        url = f"({','.join(f'tcp://{name}:5000' for name in self.listed)})"
        self._factory = ClientFactory(
            url,
            env=attrs.evolve(self.node.env, local={}),
            client_id="roamer",
            load_balancing=LastElement if self.policy == "last" else self.policy,
            **CLIENT_SETTINGS,
        )
        self._client: Client | None = None
        self._known = set(self.listed)
        #: Clients that did not find a node in time, though it served.
        self.lost = 0

    def start(self) -> None:
        """Begin to call."""
        self._swarm.count("seen.roaming")
        self.node.spawn(self._run, name="roamer")

    async def _run(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._look)
            nursery.start_soon(self._stay)
            await self._go_and_come()

    async def _stay(self) -> None:
        async with self._factory.connect() as self._client:
            await self._call(self._client)

    async def _go_and_come(self) -> None:
        while not self._scene.closing:
            async with self._factory.connect() as client:
                with trio.move_on_after(STAY_S * self._rng.random()):
                    await self._call(client)

    async def _call(self, client: Client) -> None:
        """Call now and then."""
        while True:
            before = client.statistics().node_name
            self._swarm.count("seen.client_went_to_a_told_node", int(before not in self.listed))
            await trio.sleep(CALL_S * 2 * self._rng.random())
            try:
                await client.queues()
            except MeshqError:
                # What a loss means for a call is judged where calls matter.
                continue
            self._swarm.count("seen.client_moved", int(client.statistics().node_name != before))

    # -- judging

    @property
    def at(self) -> str:
        """The node that the client is connected to; empty: none."""
        about = self._client.statistics() if self._client is not None else None
        return about.node_name if about is not None and about.state == "connected" else ""

    def _serves(self, node: MeshNode) -> bool:
        host = self._fabric._known(node.place)
        return node.active and node.node.state == "running" and not host.files_exhausted

    async def _look(self) -> None:
        """Count the times that the client was without a node, though it knew one that served."""
        lost_at, serves_since = 0.0, dict.fromkeys((node.place for node in self._nodes), 0.0)
        while True:
            now = trio.current_time()
            for node in self._nodes:
                if not self._serves(node):
                    serves_since[node.place] = now
            if self._client is not None:
                self._known.update(one.name for one in self._client.topology())
            if self.at:
                self._swarm.count("seen.client_came_back", int(now - lost_at > LOOK_S))
                lost_at = now
            else:
                since = min(max(lost_at, serves_since[node.place]) for node in self._nodes if node.place in self._known)
                self._swarm.count("seen.client_alone")
                if now - since > FOUND_S:
                    self.lost += 1
                    lost_at = now
            await trio.sleep(LOOK_S)

    async def judge(self, nodes: Sequence[MeshNode]) -> None:
        """Note the clients that have no node in calm, or another one than the policy of their factory has it.

        Checkpoint: always.  Cancellation: the simulation ends.
        """
        names = {node.place for node in nodes}
        with trio.move_on_after(LINKED_S):
            while self.at not in names or self._told != names:  # noqa: ASYNC110 - looking costs nothing here
                await trio.sleep(LOOK_S)
        nodes[0].left("clients that went to told nodes and have none in calm", int(self.at not in names))
        nodes[0].left("clients that were told otherwise in calm", int(self._told != names))
        nodes[0].left("clients that found no node though one served", self.lost)
        spread = Counter[str]()
        with trio.move_on_after(LINKED_S):
            async with AsyncExitStack() as stack:
                for _ in range(2 * len(nodes)):
                    client = await stack.enter_async_context(self._factory.connect())
                    spread[client.statistics().node_name] += 1
        nodes[0].left(f"connections that {self.policy} has not spread", self._unspread(spread, sorted(names)))
        self.node.kill()

    @property
    def _told(self) -> set[str]:
        return {one.name for one in self._client.topology()} if self._client is not None else set()

    def _unspread(self, spread: Counter[str], names: list[str]) -> int:
        """Count the connections that are where they should not be."""
        total = 2 * len(names)
        one = {"first_element": names[0], "last": names[-1]}.get(
            self.policy, next((name for name, _ in spread.most_common(1)), "")
        )
        wanted = {
            "round_robin": Counter(dict.fromkeys(names, 2)),
            # A factory knows no connections: all nodes are equal, and take turns.
            "least_connections": Counter(dict.fromkeys(names, 2)),
            "random": Counter({name: number for name, number in spread.items() if name in names}),
        }.get(self.policy, Counter({one: total}))
        return total - (spread & wanted).total()
