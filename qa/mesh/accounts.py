"""The accounts of a mesh: the messages left on each node, and a recount over all journals."""

from __future__ import annotations

import hashlib
from typing import Any

import trio

from meshq.broker.ingress._link_branches import branch_name
from meshq.errors import invariant
from meshq.testing import Simulation
from meshq.testing.history._history import History
from qa.mesh.bursts.payslips import SLIPS
from qa.mesh.gone import MeshGone
from qa.mesh.node import MeshNode
from qa.simulation.accounts import COUNTERS, FORWARDING, STAGED, Recount, leftovers
from qa.simulation.recovery import record_recoveries
from qa.simulation.workload import SETTINGS


async def settle_mesh(simulation: Simulation, history: History, nodes: list[MeshNode], gone: MeshGone) -> None:
    """Enter the messages that the nodes and their journals still have, and the memory that the nodes free.

    All clients are dead; the nodes are linked with each other, and ``gone`` knows of one that is no more there.

    Checkpoint: always.  Cancellation: the simulation ends.
    """
    # The sessions of the killed end after their TTL.
    await trio.sleep(SETTINGS["connection_ttl"] * 2)
    identities = gone.identity
    for node in nodes:
        broker = node.broker
        invariant(broker is not None and node.active, "the node runs")
        assert broker is not None
        identities[node.serving_core.settings.node_id.hex()] = node.place
        leftovers(node, links=len(nodes) - 1)
        async with broker.client() as client:
            for queue in await client.queues():
                counted = await client.queue(queue)
                counters = {name: getattr(counted, name) for name in COUNTERS}
                history.final.counted(node.place_of(queue, node.place), counters)
                if queue.startswith(FORWARDING) and node.drained(queue):
                    node.left(f"messages in {queue}", counted.ready + counted.delivering)
    for node in nodes:
        assert node.broker is not None
        await node.broker.stop()
        node.left("files open after a stop", node.node.open_files)
        node.node.kill()
    states: dict[str, Any] = {}
    for node in gone.everybody(nodes):
        subject = f"the store of {node.place}"
        await record_recoveries(simulation, history, subject, node.node.disk, Recount(), crashes=0)
        states[node.place] = next(
            recovery.state for recovery in history.final.recoveries if recovery.subject == subject
        )
    recount_mesh(history, states, identities)


def recount_mesh(history: History, states: dict[str, Any], identities: dict[str, str]) -> None:
    """Enter the messages of all journals, each once: a sender may still hold a message that its peer has stored.

    ``identities``: the nodes' names by their ids.
    """
    for place, live in standing(states, identities).items():
        history.final.recounted(place, live)


def standing(states: dict[str, Any], identities: dict[str, str]) -> dict[str, list[tuple[int, int]]]:
    """Return the (uid, sequence) of each message in journals, by its place; messages for other nodes are left out.

    ``identities``: the nodes' names by their ids.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for name, state in states.items():
        for queue, (live, _) in state["queues"].items():
            if queue.startswith(STAGED) or queue == SLIPS:
                # Their sink is judged by itself; nobody decides about them at a node that is gone for good.
                continue
            # The queue of a bridge that was handed over may stand beside another one of the same bridge.
            found.setdefault(MeshNode.place_of(queue, name), []).extend(live)
        for address, uid in state["decided"]:
            if address == SLIPS:
                continue
            # It would be placed by the next life of the node, which may be gone for good.
            found.setdefault(MeshNode.place_of(address, name), []).append((uid, 0))
        for queue, (number, rows) in state["forwarding"].items():
            peer = identities.get(queue.rpartition(".")[2])
            if peer is None:
                continue
            link = hashlib.sha256(bytes.fromhex(state["store"]) + number.to_bytes(8, "big")).digest()[:16]
            marks = states[peer]["links"]
            stored = marks.get(link.hex(), 0)
            there = {number: queue for queue, number in states[peer]["numbers"].items()}
            waiting: dict[str, list[tuple[int, int]]] = {}
            for uid, sequence, targets in rows:
                for target in targets:
                    name_there = target if isinstance(target, str) else there.get(target, "a queue that is gone")
                    # Only addresses with one queue, which has their name, are bounded.
                    if sequence > marks.get(branch_name(link, name_there).hex(), stored):
                        waiting.setdefault(name_there, []).append((uid, sequence))
            for target_queue, those in waiting.items():
                found[f"{MeshNode.logical(target_queue)}@{name}>{peer}"] = those
    return found
