"""A kill: the queue is filled, a broker is killed, and started again on the same directory."""

from __future__ import annotations

import time

from meshq.demo import _report_format as report
from meshq.demo._kill_plan import BATCH, CLUSTER_WINDOW, DELIVERED_MIN, PRODUCER_NODE, WINDOW, Kill
from meshq.demo._nodes import Nodes
from meshq.demo._process import Child, DemoError
from meshq.demo._processes import Processes
from meshq.demo._settings import node_name
from meshq.demo._steps._step_result_format import KillResult


class KillStep:
    """A kill that has to catch messages in each state."""

    def __init__(self, kill: Kill, number: int, nodes: Nodes, processes: Processes, producer: Child) -> None:
        self._kill = kill
        self._number = number
        self._nodes = nodes
        self._processes = processes
        self._producer = producer
        self._member = nodes.member(kill.node)

    async def carry_out(self) -> KillResult:
        """Fill the queue, see that it is full enough, kill, and start again; return when all is as before."""
        kill, member, processes = self._kill, self._member, self._processes
        states, tally = processes.states, processes.tally
        await self._producer.tell(report.Limit(kill.hold_at))
        await processes.until(lambda: states.progress.confirmed >= kill.hold_at, f"{kill.hold_at} rows are confirmed")
        ready = await self._fill()
        waiting = await self._catch()
        began, former = time.monotonic(), member.url_for_nodes
        await self._kill_broker()
        caught = sum(tally.unsettled.get(name, 0) for name in member.names)
        unconfirmed = states.progress.sent - states.progress.confirmed
        batches = [batch for batch in tally.open_batches() if batch[0] in member.names]
        for consumer in member.consumers:
            await consumer.tell(report.AckQuota(-1))
        states.kill_is_over()
        await self._nodes.restart(member)
        result = KillResult(
            when=kill.when,
            node=kill.node,
            delivered_unacknowledged=caught,
            ready=ready,
            waiting=waiting,
            sent_unconfirmed=unconfirmed,
            seconds_down=time.monotonic() - began,
            places=(former, member.url_for_nodes) if member.port_for_nodes else None,
        )
        # What this kill has cut off must not be taken for a catch of the next one.
        await processes.until(lambda: tally.all_settled(batches), "what became of each acknowledgement is known")
        await processes.until(lambda: not states.offline, "all consumers are connected again")
        await self._nodes.all_met()
        return result

    async def _fill(self) -> int:
        """Let the node's consumers hold and its queue fill up; returns how many messages are then ready, at least."""
        kill, member, processes = self._kill, self._member, self._processes
        states, names = processes.states, member.names
        for consumer in member.consumers:
            await consumer.tell(report.AckQuota(0))
        await processes.until(lambda: len(states.holding) == len(names), f"all consumers of node {kill.node} hold")
        processes.phase_ended(f"until kill {self._number}")
        await self._producer.tell(report.Limit(kill.check_at))
        held = processes.tally.unsettled

        def full() -> bool:
            finished = states.progress.finished or kill.in_flight
            # One of them acknowledges a batch while the node is killed.
            enough = sum(held.get(name, 0) for name in names) >= DELIVERED_MIN + BATCH and held.get(names[-1], 0) > 0
            return finished and enough and states.progress.confirmed >= kill.check_at

        await processes.until(full, f"{DELIVERED_MIN} messages are delivered and unacknowledged")
        least = kill.ready_min + WINDOW if kill.ready_min else 0
        numbers = await processes.ask_until(
            member.broker,
            lambda numbers: numbers.ready >= least,
            lambda numbers: f"{least} messages are ready, not {numbers.ready}",
        )
        # The consumer that acknowledges may be given more.
        return max(0, numbers.ready - (CLUSTER_WINDOW if self._nodes.clustered else WINDOW))

    async def _catch(self) -> int:
        """Return in the moment of the kill, with how many messages the producer's node then holds for that node."""
        kill, member, processes = self._kill, self._member, self._processes
        states = processes.states
        await member.consumers[-1].tell(report.AckQuota(1))
        if not kill.freezes:
            await self._producer.tell(report.Limit(kill.go_on_to))
        await processes.until(
            lambda: states.acknowledging > 0 and (states.progress.sent > kill.check_at or not kill.catches_sends),
            "a consumer acknowledges, and the producer is on its way",
        )
        if not kill.freezes:
            return 0
        broker, name = member.broker, node_name(member.number)
        await broker.tell(report.Freeze())
        await processes.until(lambda: broker in states.frozen, f"the {broker.name} stands still")
        await self._producer.tell(report.Limit(kill.go_on_to))

        def waiting(numbers: report.Numbers) -> int:
            return numbers.waiting.get(name, 0)

        numbers = await processes.ask_until(
            self._nodes.member(PRODUCER_NODE).broker,
            lambda numbers: waiting(numbers) >= kill.waiting_min,
            lambda numbers: f"{kill.waiting_min} messages wait for node {kill.node}, not {waiting(numbers)}",
        )
        return waiting(numbers)

    async def _kill_broker(self) -> None:
        """SIGKILL; returns when the broker is gone and every consumer of it has noticed."""
        member, processes = self._member, self._processes
        states, broker = processes.states, member.broker
        processes.may_end(broker)
        broker.kill()
        await broker.ended.wait()
        await processes.until(
            lambda: all(each in states.offline for each in member.consumers), "its consumers are cut off"
        )
        if not self._kill.catches_sends:
            return

        def caught() -> bool:
            progress = states.progress
            return progress.finished or progress.sent > progress.confirmed

        # The producer goes on until its window is full: then it has said so.
        await processes.until(caught, "the producer has said what is not confirmed")
        if states.progress.finished:
            sent = states.progress.sent
            raise DemoError(f"the producer was done with all {sent:,} flights before the kill could catch any")


def said_of_kill(kill: KillResult, *, clustered: bool) -> str:
    """Return the event of a kill."""
    caught = [f"{kill.delivered_unacknowledged:,} delivered and not acknowledged"]
    if clustered:
        caught += [f"{kill.waiting:,} waiting for it"] if kill.waiting else []
        caught += [f"{kill.sent_unconfirmed:,} sent and not confirmed"] if kill.sent_unconfirmed else []
    else:
        caught.append(f"{kill.ready:,} ready")
    whom = f" of node {kill.node}" if clustered else ""
    return f"SIGKILL{whom} {kill.when}: {', '.join(caught)}; back after {kill.seconds_down:.1f} s{kill.moved_to}"
