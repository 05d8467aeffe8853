"""The faults of a mesh: the faults of a single broker, on any node, and faults between nodes."""

from __future__ import annotations

from typing import Final

from meshq.testing import Simulation
from qa.mesh.gone import MeshGone
from qa.mesh.membership import Memberships
from qa.mesh.node import MeshNode
from qa.simulation.faults import KINDS, Faults, Machine
from qa.simulation.workload import Scene

#: What happens to the links between nodes.
LINK_FAULTS: Final = (
    "apart",
    "isolated",
    "one_way",
    "link_cut",
    "link_delay",
    "link_half_open",
    "link_reset",
    "link_slow",
)
MESH_KINDS: Final = (*KINDS, *LINK_FAULTS)


class MeshFaults(Faults):
    """Faults of a mesh; each is aimed at one node, drawn anew."""

    kinds: tuple[str, ...] = MESH_KINDS
    pauses: tuple[float, ...] = (0.5, 1.5, 4.0)

    def __init__(
        self,
        simulation: Simulation,
        scene: Scene,
        nodes: list[MeshNode],
        clients: dict[str, list[Machine]],
        gone: MeshGone,
        *,
        memberships: Memberships,
    ) -> None:
        self._memberships = memberships
        self.kinds = (*MESH_KINDS, *memberships.fault_kinds)
        self._nodes = list(nodes)
        self._gone = gone
        self._machines = clients
        super().__init__(simulation, scene, nodes[0], clients[nodes[0].place])

    def _aim(self, node: MeshNode) -> None:
        self.broker, self.clients, self.node = node, self._machines[node.place], node

    async def happens(self, kind: str) -> None:
        """Begin a fault at some node, and now and then a second one at the same time.

        Checkpoint: if the node has to be there for it.  Cancellation: it may have begun.
        """
        if self._gone.due and self._gone.node is not None:
            await self._gone.go()
            self._nodes.remove(self._gone.node)
        self._aim(self.rng.choice(self._nodes))
        self.scene.history.note(f"at {self.broker.place}:")
        await super().happens(kind)
        if self.rng.random() < 0.3:
            self._aim(self.rng.choice(self._nodes))
            self.scene.history.note(f"and at {self.broker.place}:")
            await super().happens(self.rng.choice(("kill", "power", "pause", *LINK_FAULTS)))

    def mend(self) -> None:
        """End the present faults, on all nodes."""
        self.fabric.datagrams.heal()
        for node in self._nodes:
            self._aim(node)
            super().mend()
            for other in self._nodes:
                if other is not node:
                    self.fabric.slow(node.place, other.place, None)

    # -- the kinds

    def _pair(self) -> tuple[str, str]:
        other = self.rng.choice([node for node in self._nodes if node is not self.broker])
        return self.broker.place, other.place

    def _apart(self) -> None:
        """No node hears any other."""
        self.fabric.partition(*[[node.place] for node in self._nodes])

    def isolate(self, node: MeshNode) -> None:
        """Cut one node off from the others, but not from its clients."""
        self.fabric.partition([node.place], [other.place for other in self._nodes if other is not node])

    def _isolated(self) -> None:
        self.isolate(self.node)

    def _one_way(self) -> None:
        one, other = self._pair()
        self.fabric.cut(*((one, other) if self.rng.random() < 0.5 else (other, one)))

    def _link_cut(self) -> None:
        one, other = self._pair()
        self.fabric.partition([one], [other])

    def _link_delay(self) -> None:
        link = self._pair()
        self.fabric.delay(*link, 0.02, self.rng.choice((0.1, 1.0)))
        self._delayed.append(link)

    def _link_half_open(self) -> None:
        self.fabric.silence(*self._pair())

    def _link_reset(self) -> None:
        self.fabric.reset(*self._pair())

    def _link_slow(self) -> None:
        self.fabric.slow(*self._pair(), self.rng.choice((5_000.0, 50_000.0)))

    def _move(self) -> None:
        """A node dies, and comes back elsewhere."""
        self._memberships.move(self.node.place)
        self.broker.node.kill()

    def _silent_lan(self) -> None:
        self.fabric.datagrams.cut()
