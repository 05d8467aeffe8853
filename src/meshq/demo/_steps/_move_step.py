"""A move: consumers leave a node with messages, and go on at another one; the rest has to follow."""

from __future__ import annotations

import time

from meshq.demo import _report_format as report
from meshq.demo._move_plan import Move
from meshq.demo._nodes import Nodes
from meshq.demo._process import Child
from meshq.demo._processes import Processes
from meshq.demo._settings import node_name
from meshq.demo._steps._step_result_format import MoveResult


async def hold(processes: Processes, producer: Child, hold_at: int, consumers: list[Child]) -> None:
    """Let the producer come to a row, and these consumers hold their messages from then on."""
    states = processes.states
    await producer.tell(report.Limit(hold_at))
    await processes.until(lambda: states.progress.confirmed >= hold_at, f"{hold_at} rows are confirmed")
    for consumer in consumers:
        await consumer.tell(report.AckQuota(0))
    await processes.until(lambda: all(each in states.holding for each in consumers), "consumers hold")


class MoveStep:
    """A move of all consumers of a node to another node."""

    def __init__(self, move: Move, nodes: Nodes, processes: Processes, producer: Child) -> None:
        self._move = move
        self._nodes = nodes
        self._processes = processes
        self._producer = producer

    async def carry_out(self) -> MoveResult:
        """Strand messages on the node; return when all of them are gone from there."""
        move, processes = self._move, self._processes
        states = processes.states
        member, target = self._nodes.member(move.node), self._nodes.member(move.to_node)
        movers = list(member.consumers)
        await hold(processes, self._producer, move.hold_at, movers)
        before = await processes.ask(member.broker)
        await self._producer.tell(report.Limit(move.check_at))
        await processes.until(lambda: states.progress.confirmed >= move.check_at, f"{move.check_at} rows are confirmed")
        stranded = await processes.ask_until(
            member.broker,
            lambda numbers: numbers.ready + numbers.delivering >= move.stranded_min,
            lambda numbers: f"node {move.node} has {move.stranded_min} messages, not {numbers.ready}",
        )
        began = time.monotonic()
        # Flights go in while they move.
        await self._producer.tell(report.Limit(move.go_on_to))
        for consumer in movers:
            await consumer.tell(report.MoveTo(target.url))
        name = node_name(target.number)
        await processes.until(lambda: all(states.places.get(each) == name for each in movers), "consumers have moved")
        member.consumers.clear()
        target.consumers += movers
        states.kill_is_over()
        after = await processes.ask_until(
            member.broker,
            lambda numbers: not numbers.ready + numbers.delivering,
            lambda numbers: f"nothing is left on node {move.node}, not {numbers.ready}",
        )
        await self._nodes.all_met()
        return MoveResult(
            node=move.node,
            to_node=move.to_node,
            consumers=len(movers),
            stranded=stranded.ready + stranded.delivering,
            redistributed=after.redistributed - before.redistributed,
            seconds=time.monotonic() - began,
        )


def said_of_move(move: MoveResult) -> str:
    """Return the event of a move."""
    return f"{move.whose} of node {move.node} moved to node {move.to_node}: {move.what}"
