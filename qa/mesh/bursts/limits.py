"""A queue with room for a few messages at each node, so that messages for another node wait for room there."""

from __future__ import annotations

from typing import Final

from meshq.settings import AddressSettings
from meshq.testing import Swarm
from qa.checkers.history import History
from qa.mesh.bursts.flood import Burst, Flood
from qa.simulation.workload import Actor, Dial, Scene
from qa.simulation.workload_receive import Queues, Receiver

#: A queue that every node has, with a consumer at each.
BOUNDED: Final = "bounded"
#: So many messages, and as many at a time as all nodes together have no room for.
ROOM: Final = (1, 2, 4)
#: ``held_back``: messages were seen that wait because their address is full at the other node.
LIMIT_SIGHTS: Final = ("bounded", "held_back")
BOUNDED_BURST: Final = Burst(BOUNDED, size=25, body_bytes=200)


class MeshLimits:
    """The bounded queue of one seed: who sends to the queue; empty: there is none."""

    def __init__(self, swarm: Swarm, names: tuple[str, ...], *, drained: bool) -> None:
        self._rng = swarm.rng
        self._drained = drained
        rng = swarm.rng("mesh/limits")
        self.sender = rng.choice(names) if swarm.on("mesh.limits") else ""
        self.queues = [BOUNDED] if self.sender else []
        full = AddressSettings(full_policy=rng.choice(("block", "fail")), max_size_messages=rng.choice(ROOM))
        # Where messages are sent nothing is refused: they come in, and wait for the others.
        self._there = full
        for sight in LIMIT_SIGHTS:
            swarm.count(f"seen.{sight}", 0)
        swarm.count("seen.bounded", int(bool(self.sender)))

    def known(self, history: History) -> None:
        """Tell the history the queue whose messages may come out of their order.

        A node that leaves hands over what it kept for its own consumers, too: behind later messages of the same sender
        that were dealt to the other node and waited for room there.
        """
        if self._drained:
            history.expected.moves(*self.queues)

    def settings(self, node: str) -> dict[str, AddressSettings]:
        """Return the address settings of a node."""
        return {BOUNDED: self._there} if self.sender and node != self.sender else {}

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the sender and the receiver of a node."""
        if not self.sender:
            return []
        name = f"bounded-receiver-{node}"
        actors: list[Actor] = [Receiver(scene, name, self._rng(f"actor/{name}"), dial, Queues((BOUNDED,), node))]
        if node == self.sender:
            name = f"bounded-sender-{node}"
            actors.append(Flood(scene, name, self._rng(f"actor/{name}"), dial, BOUNDED_BURST))
        return actors
