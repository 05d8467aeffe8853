"""Stuck messages in the simulated mesh: each finding of a node is compared with the states of all nodes."""

from __future__ import annotations

from typing import Final

import trio

from meshq.broker.catalog._distribution_plan import RemoteBinding
from meshq.broker.core._core import Core
from meshq.broker.ingress._distribution import wants_of
from meshq.broker.ingress._redistribution import AHEAD_MAX
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import PARKED, READY, QueueRun
from meshq.selector import Filter
from meshq.statistics import StuckMessages
from meshq.testing import Swarm
from qa.mesh.node import STUCK_S, MeshNode

STUCK_SIGHTS: Final = (
    "stuck_filter",
    "stuck_flow_control",
    "stuck_no_redistribution",
    "stuck_group",
    "stuck_node_gone",
    "stuck_prepared",
)
PAUSE_S: Final = 0.25
#: A finding is of the node's last look, and is over at the next one.
PATIENCE_S: Final = STUCK_S / 2

Finding = tuple[str, int, str, str]


async def judge_stuck(swarm: Swarm, nodes: list[MeshNode]) -> None:
    """Look at the findings of nodes, until the end.  Checkpoint: always.  Cancellation: ends it."""
    for sight in STUCK_SIGHTS:
        swarm.count(f"seen.{sight}", 0)
    doubted: dict[Finding, float] = {}
    seen: dict[Finding, None] = {}
    while True:
        found: dict[Finding, tuple[MeshNode, StuckMessages]] = {}
        for node in nodes:
            # One that stands still does not look.
            for stuck in node.stuck() if node.node.state == "running" else ():
                found[node.place, node.node.life.number, f"{stuck.queue} {stuck.address}", stuck.cause] = node, stuck
        seen = {finding: None for finding in seen if finding in found}
        doubted = {finding: since for finding, since in doubted.items() if finding in found}
        for finding, (node, stuck) in found.items():
            if is_so(node, stuck):
                doubted.pop(finding, None)
                if finding not in seen:
                    swarm.count(f"seen.stuck_{stuck.cause}")
                seen[finding] = None
            elif trio.current_time() - doubted.setdefault(finding, trio.current_time()) > PATIENCE_S:
                node.left(f"messages of {stuck.queue} that are said to be stuck by {stuck.cause}", stuck.messages)
        await trio.sleep(PAUSE_S)


def is_so(node: MeshNode, stuck: StuckMessages) -> bool:
    """Whether messages are there, and the cause that the node says keeps them."""
    core = node.core
    queue = core.router.queues.get(stuck.queue) if core is not None else None
    if core is None or queue is None or not (queue.counts.ready or queue.counts.unacked or queue.counts.delayed):
        return False
    if queue.forwards:
        gone = queue.name.rpartition(".")[2] not in node.linked_ids()
        if stuck.cause == "flow_control" and stuck.address != queue.address:
            return stuck.address in queue.branch().waiting
        return {"node_gone": gone, "flow_control": queue.counts.unacked > 0}.get(stuck.cause, False)
    remote = [one for one in core.router.bindings(queue.address) if one.name == queue.name and one.consumers]
    if not queue.roster.consumers and not remote:
        return False
    if stuck.cause == "prepared":
        two_phase = core.transactions.two_phase
        prepared = (*two_phase, *two_phase.arriving.values())
        return any(queue in one.transaction.acked_in_transaction for one in prepared)
    if stuck.cause == "delay":
        return queue.counts.delayed > 0 or (queue.counts.ready > 0 and bool(queue.settings.redistribution_delay))
    if stuck.cause == "paused":
        return queue.paused
    if stuck.cause == "node_gone":
        return all(one.gone for one in remote)
    if stuck.cause == "no_redistribution":
        return not queue.roster.consumers and _never_moves(core, queue, remote)
    if stuck.cause == "group":
        waiting = queue.grouped.table if queue.grouped is not None else ()
        return any((queue.name, group) not in core.router.pins.held for group in waiting)
    if stuck.cause in ("filter", "flow_control"):
        return _first_is_kept(queue, remote, stuck.cause)
    # Each node is linked with all others, and no link is off.
    return False


def _never_moves(core: Core, queue: Queue, remote: list[RemoteBinding]) -> bool:
    topic = core.router.addresses[queue.address].routing == "multicast"
    strict = all(one.mode == "strict" for one in remote)
    held = queue.roster.cursor is not None
    return topic or strict or held or queue.settings.redistribution_delay is None


def _first_is_kept(queue: Queue, remote: list[RemoteBinding], cause: str) -> bool:
    """Whether the first message has no consumer that takes it, or none with credit."""
    first = next(((view, row) for view in queue.runs() for row in _waiting(view)), None)
    if first is None:
        return False
    view, row = first

    def takes(*filters: Filter | None) -> bool:
        known = [one for one in filters if one is not None]
        return len(known) < len(filters) or view.run.paged > 0 or wants_of(view.run)(tuple(known), row)

    takers = [one for one in queue.roster.consumers if takes(one.filter)]
    if cause == "filter":
        return not takers if queue.roster.consumers else not any(takes(*one.filters) for one in remote if one.filters)
    if takers:
        return queue.roster.hands_over or view.groups is not None or all(one.credit() <= 0 for one in takers)
    return all(one.forward.counts.ready + one.forward.counts.unacked >= AHEAD_MAX for one in remote)


def _waiting(view: QueueRun) -> list[int]:
    return [row for row, state in enumerate(view.states) if state in (READY, PARKED)]
