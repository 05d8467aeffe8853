"""Messages that wait before they are due, while they go from node to node and clocks are set."""

from __future__ import annotations

from typing import Any, Final

from meshq.testing import Swarm
from qa.checkers.history import History
from qa.mesh.flood import Flood
from qa.simulation.workload import Actor, Dial, Scene
from qa.simulation.workload_receive import Receiver

#: A queue that every node has, with a consumer at each.
LATER: Final = "later"
#: Some are due at once, some when their link has been given up meanwhile.
DELAYS_S: Final = (0.0, 0.3, 1.0, 3.0, 8.0)
DELAY_SIGHTS: Final = ("delays",)


class LaterSender(Flood):
    """Sends some messages at a time, each with a delay of its own."""

    address = LATER
    burst = 5
    burst_bytes = 0

    def extras(self, uid: int) -> dict[str, Any]:
        """Its delay follows from its number."""
        return {"delay": DELAYS_S[uid % len(DELAYS_S)]}


class MeshDelays:
    """The delays of one seed: who sends to the queue; empty: there is none."""

    def __init__(self, swarm: Swarm, names: tuple[str, ...]) -> None:
        self._rng = swarm.rng
        self.sender = swarm.rng("mesh/delays").choice(names) if swarm.on("mesh.delays") else ""
        self.queues = [LATER] if self.sender else []
        swarm.count("seen.delays", int(bool(self.sender)))

    def known(self, history: History) -> None:
        """Tell the history the queues whose messages are numbered when they are due."""
        history.odd.update(dict.fromkeys(self.queues))

    def actors(self, scene: Scene, node: str, dial: Dial) -> list[Actor]:
        """Return the senders and receivers of a node."""
        if not self.sender:
            return []
        name = f"later-receiver-{node}"
        actors: list[Actor] = [Receiver(scene, name, self._rng(f"actor/{name}"), dial, (LATER,))]
        if node == self.sender:
            actors.append(LaterSender(scene, f"later-sender-{node}", self._rng(f"actor/later-sender-{node}"), dial))
        return actors
