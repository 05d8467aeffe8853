"""A departure: a node leaves for good with everything that it holds, and its consumers go on elsewhere."""

from __future__ import annotations

import time

from meshq.demo import _report_format as report
from meshq.demo._kill_plan import PRODUCER_NODE
from meshq.demo._move_plan import Leave
from meshq.demo._nodes import Nodes
from meshq.demo._process import Child
from meshq.demo._processes import Processes
from meshq.demo._settings import node_name
from meshq.demo._steps._move_step import hold
from meshq.demo._steps._step_result_format import LeaveResult


class LeaveStep:
    """A departure of a node for good."""

    def __init__(self, leave: Leave, nodes: Nodes, processes: Processes, producer: Child) -> None:
        self._leave = leave
        self._nodes = nodes
        self._processes = processes
        self._producer = producer
        self._member = nodes.member(leave.node)

    async def carry_out(self) -> LeaveResult:
        """Give the node a backlog, a prepared transaction and large messages, and let it leave with these."""
        processes, member = self._processes, self._member
        await hold(processes, self._producer, self._leave.hold_at, member.consumers)
        backlog = await self._fill()
        began = time.monotonic()
        await self._producer.tell(report.Limit(self._leave.go_on_to))
        left = await self._drain()
        target = self._nodes.named(left.target)
        for consumer in member.consumers:
            await consumer.tell(report.AckQuota(-1))
        processes.states.kill_is_over()
        went_on = await self._follow()
        target.consumers += member.consumers
        member.consumers.clear()
        await self._nodes.all_met()
        decided = await self._decide(target.url)
        return LeaveResult(
            node=member.number,
            target=target.number,
            delivered=backlog.delivering,
            ready=backlog.ready,
            held=left.held,
            moved=left.moved,
            large=left.large,
            prepared=left.prepared,
            prepared_flights=self._leave.prepared,
            decided=decided,
            went_on_at=went_on,
            left=left.left,
            seconds=time.monotonic() - began,
        )

    async def _fill(self) -> report.Numbers:
        """Give the node a backlog, a prepared transaction and large messages; return the node's numbers."""
        leave, processes, states = self._leave, self._processes, self._processes.states
        await self._producer.tell(report.Limit(leave.check_at))
        await processes.until(
            lambda: states.progress.confirmed >= leave.check_at, f"{leave.check_at} rows are confirmed"
        )
        await self._producer.tell(report.Prepare(self._member.url, leave.prepared))
        await processes.until(lambda: states.prepared == leave.prepared_to, "a transaction is prepared")
        await self._producer.tell(report.SendPages(leave.pages, leave.page_rows))
        await processes.until(lambda: states.progress.confirmed >= leave.pages_to, "all pages are confirmed")
        name = node_name(leave.node)
        await processes.ask_until(
            self._nodes.member(PRODUCER_NODE).broker,
            lambda numbers: not numbers.waiting.get(name, 0),
            lambda numbers: f"nothing waits for node {leave.node}, not {numbers.waiting.get(name, 0)}",
        )
        return await processes.ask_until(
            self._member.broker,
            lambda numbers: numbers.delivering >= leave.delivered_min and numbers.ready >= leave.ready_min,
            lambda numbers: (
                f"node {leave.node} has {leave.delivered_min} messages delivered and {leave.ready_min} ready, "
                f"not {numbers.delivering} and {numbers.ready}"
            ),
        )

    async def _drain(self) -> report.Left:
        """Let the node hand everything over and end."""
        processes, member = self._processes, self._member
        broker = member.broker
        processes.may_end(broker)
        member.left = True
        await broker.tell(report.LeaveForGood())
        left = processes.states.left
        await processes.until(
            lambda: broker in left or broker.ended.is_set(), f"node {member.number} has handed everything over"
        )
        if broker not in left:
            raise broker.failure()
        await processes.have_ended(broker)
        return left[broker]

    async def _follow(self) -> tuple[int, ...]:
        """Wait until the node's consumers are at other nodes; return which."""
        states, consumers, name = self._processes.states, self._member.consumers, node_name(self._member.number)

        def elsewhere(consumer: Child) -> bool:
            return consumer not in states.offline and states.places.get(consumer, name) != name

        await self._processes.until(lambda: all(map(elsewhere, consumers)), "its consumers go on at another node")
        return tuple(self._nodes.named(states.places[consumer]).number for consumer in consumers)

    async def _decide(self, url: str) -> bool:
        """Commit the transaction at the node that has taken over; return whether it was there."""
        await self._producer.tell(report.Decide(url))
        states = self._processes.states
        await self._processes.until(lambda: states.decided is not None, "the prepared transaction is decided")
        return bool(states.decided)


def said_of_leave(leave: LeaveResult) -> str:
    """Return the event of a departure."""
    return f"node {leave.node} left for good: {leave.what}"
