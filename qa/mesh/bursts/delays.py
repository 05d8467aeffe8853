"""Messages that wait before they are due, while they go from node to node and clocks are set."""

from __future__ import annotations

from typing import Final

from meshq.testing import Swarm
from meshq.testing.history._history import History
from qa.mesh.bursts.flood import Burst, Flood
from qa.simulation.workload import Actor, Dial, Scene
from qa.simulation.workload_receive import Queues, Receiver

#: A queue that every node has, with a consumer at each.
LATER: Final = "later"
#: Some are due at once, some when their link has been given up meanwhile.
DELAYS_S: Final = (0.0, 0.3, 1.0, 3.0, 8.0)
DELAY_SIGHTS: Final = ("delays",)


#: Some messages at a time, each with a delay of its own.
LATER_BURST: Final = Burst(LATER, size=5, body_bytes=0, delays_s=DELAYS_S)


class MeshDelays:
    """The delays of one seed: who sends to the queue; empty: there is none."""

    def __init__(self, swarm: Swarm, names: tuple[str, ...]) -> None:
        self._rng = swarm.rng
        self.sender = swarm.rng("mesh/delays").choice(names) if swarm.on("mesh.delays") else ""
        self.queues = [LATER] if self.sender else []
        swarm.count("seen.delays", int(bool(self.sender)))

    def known(self, history: History) -> None:
        """Tell the history the queues whose messages are numbered when they are due."""
        history.expected.moves(*self.queues)

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the senders and receivers of a node."""
        if not self.sender:
            return []
        name = f"later-receiver-{node}"
        actors: list[Actor] = [Receiver(scene, name, self._rng(f"actor/{name}"), dial, Queues((LATER,), node))]
        if node == self.sender:
            name = f"later-sender-{node}"
            actors.append(Flood(scene, name, self._rng(f"actor/{name}"), dial, LATER_BURST))
        return actors
