"""A task that looks at the nodes of a simulated mesh all the time: their peers, and their memory."""

from __future__ import annotations

from typing import Final

import trio

from meshq.testing import Swarm
from meshq.testing.history._history import History
from qa.mesh.gone import GONE
from qa.mesh.node import MeshNode

PAUSE_S: Final = 0.2
WATCH_SIGHTS: Final = ("peer_left", "peer_away", "peer_down", "peer_back")


async def watch(swarm: Swarm, history: History, nodes: list[MeshNode]) -> None:
    """Look, until the end.  Checkpoint: always.  Cancellation: ends it."""
    for sight in WATCH_SIGHTS:
        swarm.count(f"seen.{sight}", 0)
    before: dict[tuple[str, int, str], str] = {}
    while True:
        for node in nodes:
            for peer, state in node.states().items():
                pair = (node.place, node.node.life.number, peer)
                was, before[pair] = before.get(pair, ""), state
                if state != was:
                    swarm.count("seen.peer_back", int(was == "down" and state == "linked"))
                    if state in GONE:
                        swarm.count(f"seen.peer_{state}")
            swarm.count("seen.held_back", int(node.blocked > 0))
            node.look_at_bounds()
        await trio.sleep(PAUSE_S)
