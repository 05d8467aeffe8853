"""The faults of one seed happen to a cluster, each at its time."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import trio

from meshq.testing.kit._cluster import RUNNING, STOP_S, Cluster
from meshq.testing.kit._fault_plan import Direction
from meshq.testing.kit._node import KitNode
from meshq.testing.kit._pairs import store_of
from meshq.testing.kit._world import SimulatedWorld
from meshq.testing.scenario._fault import LINK_KINDS, Fault
from meshq.testing.scenario._steps_plan import LinkFault, Step, changed, links_of, steps_of

Invariant = Callable[[Cluster], Awaitable[object]]
DISK_KINDS: Final = ("torn", "enospc", "eio_once", "eio")


class FaultRun:
    """The faults of one seed, on a cluster.  A fault that can't happen when its time has come, does not happen."""

    def __init__(
        self, world: SimulatedWorld, cluster: Cluster, faults: Sequence[Fault], invariants: Sequence[Invariant]
    ) -> None:
        self._world = world
        self._cluster = cluster
        self._faults = faults
        self._invariants = invariants
        #: How often a fault of each kind has happened.
        self.happened: Counter[str] = Counter()
        self._links: dict[Direction, LinkFault] = {}
        #: Faults of links that last, and those of nodes.
        self._active: list[Fault] = []
        self._lasting: list[Fault] = []
        #: The fault that a disk has, by the name of the first node that stores there.
        self._disks: dict[str, Fault] = {}

    async def run(self) -> None:
        """Let the faults begin and end, and look at the invariants after each beginning.

        Checkpoint: always.  Cancellation: what has begun does not end by itself any more.
        """
        began = trio.current_time()
        for step in steps_of(self._faults):
            await trio.sleep_until(began + step.at)
            if self._take(step):
                self.happened[step.fault.kind] += 1
                for invariant in self._invariants:
                    self._spawn(invariant, self._cluster)

    def _spawn(self, function: Callable[..., Awaitable[object]], *arguments: object) -> None:
        """Start a task that ends when the cluster is told to heal; its error fails the test, as it is."""
        self._cluster.until_healed(self._cluster.spawn(None, function, *arguments))

    def _take(self, step: Step) -> bool:
        """Carry a step out; returns whether a fault has begun."""
        fault = step.fault
        if fault.kind == "partition" or fault.kind in LINK_KINDS:
            self._link(step)
            return step.begins and not step.again
        node = self._cluster.node(fault.where[0])
        if step.begins:
            begun = self._begin(fault, node)
            if begun:
                self._lasting.append(fault)
            return begun
        if fault in self._lasting:
            self._lasting.remove(fault)
            self._end(fault, node)
        return False

    # -- links

    def _link(self, step: Step) -> None:
        if step.begins:
            self._active.append(step.fault)
        elif step.fault in self._active:
            self._active.remove(step.fault)
        links = links_of(self._active, self._cluster.nodes)
        for (one, other), link in changed(self._links, links):
            source, target = self._cluster.host(one), self._cluster.host(other)
            self._world.fabric.shape(source, target, cut=link.cut, delay_s=link.delay_s, loss=link.loss)
            self._world.note(f"{one} -> {other}", str(link))
        self._links = links

    # -- nodes

    def _begin(self, fault: Fault, node: KitNode) -> bool:
        """Begin a fault of a node; returns False where it can't happen now."""
        cluster, name = self._cluster, node.name
        if fault.kind == "wall_clock":
            cluster.wall_clock(name, fault.amount)
        elif fault.kind in ("pause", "restart"):
            if node.state not in ("active", "waiting"):
                return False
            if fault.kind == "pause":
                cluster.pause(name)
            else:
                self._spawn(self._stop, node, trio.current_time() + fault.seconds)
        elif node.state not in RUNNING:
            return False
        elif fault.kind == "power_loss":
            cluster.power_loss(name)
        elif fault.kind in DISK_KINDS:
            self._disks[store_of(name)] = fault
            cluster.disk(name, fault.kind)
        else:
            cluster.kill(name)
            if fault.kind == "flipped":
                cluster.disk(name, "flip")
        return True

    def _end(self, fault: Fault, node: KitNode) -> None:
        if fault.kind in DISK_KINDS:
            if self._disks.get(store_of(node.name)) is not fault:
                # Another fault of the disk came after it.
                return
            del self._disks[store_of(node.name)]
            self._cluster.disk(node.name, "ok")
            for other in self._failed_beside(node):
                self._start(other)
        if fault.kind == "pause":
            if node.state == "paused":
                self._cluster.resume(node.name)
        elif fault.kind != "restart":
            self._start(node)

    def _start(self, node: KitNode) -> None:
        if node.state == "dead" and store_of(node.name) not in self._disks:
            node.start()
            self._world.note(node.name, "started again")

    def _failed_beside(self, node: KitNode) -> list[KitNode]:
        """Return the other nodes of the pair that have ended because their disk had failed."""
        others = [self._cluster.node(name) for name in self._cluster.nodes if store_of(name) == store_of(node.name)]
        return [other for other in others if other is not node and other.error is not None]

    async def _stop(self, node: KitNode, until: float) -> None:
        """Stop a node cleanly, and start it again."""
        self._world.note(node.name, "is stopped")
        life = node.machine.life
        with trio.move_on_after(STOP_S):
            await node.stop()
        if node.machine.life is life:
            # It takes too long, or it was hit by another fault meanwhile: whoever waits for it kills it.
            node.kill()
        await trio.sleep_until(until)
        self._start(node)
