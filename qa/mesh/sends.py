"""The last sends of a simulated mesh, of which is known where each message has to be."""

from __future__ import annotations

import math

import trio

from meshq.testing.history._history import body_of
from qa.mesh.gone import MeshGone
from qa.mesh.node import LINKED_S, RETIRED, SPREAD, MeshNode
from qa.simulation.workload import Scene


async def send_where_it_stands(scene: Scene, node: MeshNode) -> None:
    """Send to the queue that a node has lost: no message may be dealt to that node.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    async with node.client() as client:
        for _ in range(2 * node.cluster_size):
            uid = scene.uid()
            op = scene.history.sent(f"last@{node.place}", RETIRED, uid, node=node.place)
            await client.send(RETIRED, body_of(uid))
            scene.history.send_ok(op)


async def spread(scene: Scene, nodes: list[MeshNode], gone: MeshGone) -> None:
    """Send to an address on which each node has a queue of another name.

    Strict deals to all nodes, the sender's and one that is only away included; else unwanted messages stay.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    mode = nodes[0].mode
    # So many can be dealt evenly to all nodes, and to all but one.
    even = math.lcm(nodes[0].cluster_size, nodes[0].cluster_size - 1)
    expected = dict.fromkeys((node.place for node in nodes), 0)
    for factor, node in enumerate(nodes, 1):
        takers = len(nodes) + int(gone.done and gone.state(node) == "away")
        async with node.client() as client:
            for _ in range(factor * even):
                uid = scene.uid()
                op = scene.history.sent(f"last@{node.place}", SPREAD, uid, node=node.place)
                await client.send(SPREAD, body_of(uid))
                scene.history.send_ok(op)
        for other in nodes if mode == "strict" else [node]:
            expected[other.place] += factor * even // (takers if mode == "strict" else 1)
    # What crosses has crossed.
    await trio.sleep(LINKED_S)
    for node in nodes:
        async with node.client() as client:
            found = (await client.queue(node.spread)).ready
        node.left(f"messages too few or too many in {node.spread}", abs(found - expected[node.place]))
