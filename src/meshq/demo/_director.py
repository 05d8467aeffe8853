"""The run: who starts when, when which node is killed, and when everything is over.

It acts on what the processes report, and on what the nodes say of what they hold; nothing is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from meshq.demo import _report_format as report
from meshq.demo._discovery import place_of
from meshq.demo._flights import parse_lines, read_lines
from meshq.demo._kill_plan import (
    BATCH,
    CLUSTER_WINDOW,
    CONSUMERS,
    DELIVERED_MIN,
    PRODUCER_NODE,
    WINDOW,
    Kill,
    plan_kills,
)
from meshq.demo._member import Member, free_ports
from meshq.demo._options import Options
from meshq.demo._process import Child, DemoError
from meshq.demo._process_states import ProcessStates
from meshq.demo._progress import ProgressView
from meshq.demo._result_format import KillResult, Result, conclude
from meshq.demo._settings import node_name
from meshq.demo._tally_machine import Tally

#: Nothing gets ahead for so long: something is wrong, and the demo says what it was waiting for.
STALL_SECONDS: Final = 60.0
#: Ports are chosen anew so often when somebody else takes one of them before its node does.
PORT_ATTEMPTS: Final = 10
#: After a kill the port is asked for again so often, if somebody else has it for a moment.
PORT_SECONDS: Final = 0.1


class StalledError(DemoError):
    """The demo makes no progress any more."""

    code = "demo_stalled"


class Director:
    """A run of the demo.

    ``data_dir``: where the nodes keep their data.  ``nursery``: where the processes are attended, and killed when it
    is cancelled.
    """

    def __init__(self, options: Options, path: Path, data_dir: str, *, nursery: trio.Nursery, view: ProgressView):
        self._options = options
        self._path = path
        self._nursery = nursery
        self._view = view
        #: Every process that runs, and those of them that may end.
        self.children: list[Child] = []
        self._leaving: dict[Child, None] = {}
        self._failure: DemoError | None = None
        self._bell = trio.Event()
        place = Path(data_dir)
        self._data_dir = data_dir
        # Where nodes that discover find each other; empty: each node is told all ports.
        self._place = ""
        several = options.nodes > 1
        #: The nodes, by number from 1.
        self.members = [
            Member(number, str(place / node_name(number) if several else place))
            for number in range(1, options.nodes + 1)
        ]
        self._brokers: dict[Child, Member] = {}
        self._tally = Tally([])
        self._states = ProcessStates()
        self._kills: list[KillResult] = []
        self._phases: dict[str, float] = {}
        self._phase_began = time.monotonic()

    # -- what is heard

    def _start(self, name: str, role: str, *arguments: str) -> Child:
        child = Child(name, role, *arguments)
        self.children.append(child)
        self._nursery.start_soon(self._attend, child)
        return child

    async def _attend(self, child: Child) -> None:
        await child.attend(self._heard)
        self.children.remove(child)
        if child not in self._leaving:
            self._failure = self._failure or child.failure()
        self._ring()

    def _heard(self, child: Child, said: report.Report) -> None:
        if isinstance(said, report.Delivered):
            self._tally.take_delivered(child.name, said)
            self._view.show(self._states.progress.confirmed, self._tally.delivered)
        elif isinstance(said, report.Settled):
            self._tally.take_settled(child.name, said)
        else:
            self._states.take(child, said)
            if isinstance(said, report.Progress):
                self._view.show(said.confirmed, self._tally.delivered)
            elif isinstance(said, report.PortTaken):
                self._leaving[child] = None
        self._ring()

    def _ring(self) -> None:
        bell, self._bell = self._bell, trio.Event()
        bell.set()

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, checking after each report of the processes."""
        moved, deadline = self._moved(), trio.current_time() + STALL_SECONDS
        while not holds():
            if self._failure is not None:
                raise self._failure
            with trio.move_on_at(deadline):
                await self._bell.wait()
            if moved != self._moved():
                moved, deadline = self._moved(), trio.current_time() + STALL_SECONDS
            elif trio.current_time() >= deadline:
                raise StalledError(f"nothing has moved for {STALL_SECONDS:.0f} s while waiting until {what}")

    def _moved(self) -> tuple[int, ...]:
        """The figures that change while the run progresses; redeliveries, which may go on for ever, are left out."""
        return (self._tally.delivered, *self._states.sizes())

    def _phase_ended(self, name: str) -> None:
        now = time.monotonic()
        self._phases[name] = now - self._phase_began
        self._phase_began = now

    def is_ready(self, child: Child) -> bool:
        """Whether this process is at work."""
        return child in self._states.ready

    # -- what is done

    async def run(self) -> Result:
        """Run the demo; return its result.

        Raises:
            DemoError: it could not be carried through.
            SettingsError: there are not so many flights.
        """
        await self._choose_ports()
        for member in self.members:
            self._start_broker(member)
        lines = read_lines(self._path, self._options.rows)
        producer = self._start("producer", "producer", str(self._path), str(len(lines)))
        self._start_consumers()
        self._tally = Tally(await parse_lines(lines))
        self._view.total(len(lines))
        await self._all_ready()
        consumers = [consumer for member in self.members for consumer in member.consumers]
        await producer.tell(report.Connect(self.members[PRODUCER_NODE - 1].url))
        for member in self.members:
            for consumer in member.consumers:
                await consumer.tell(report.Connect(member.url))
        clients = (producer, *consumers)
        await self._until(lambda: self._states.all_ready(clients), "all processes are connected")
        await self._all_met()
        who = f"{len(self.members)} nodes" if self._clustered else "a broker"
        if self._options.discover is not None:
            who += f" that found each other by {self._options.discover}"
        self._view.say(f"{who}, a producer and {len(consumers)} consumers are at work")
        self._phase_ended("start")
        if self._options.kill:
            for kill in plan_kills(len(lines), len(self.members), self._options.killed_first):
                await self._carry_out(kill, producer)
        await producer.tell(report.Limit(len(lines)))
        left = await self._finish()
        self._phase_ended("the rest")
        await self._dismiss(*clients)
        await self._dismiss(*self.children)
        self._phase_ended("stop")
        self._view.show(self._states.progress.confirmed, self._tally.delivered)
        return conclude(
            self._tally,
            confirmed=self._states.progress.confirmed,
            kills=self._kills,
            consumers=[member.names for member in self.members],
            left=left,
            phases=self._phases,
        )

    # -- nodes and consumers

    @property
    def _clustered(self) -> bool:
        return len(self.members) > 1

    async def _choose_ports(self) -> None:
        """Choose the ports of all nodes, and the place where they find each other if they are not told the ports."""
        *ports, port_of_group = await free_ports(len(self.members) + 1)
        for member, port in zip(self.members, ports, strict=True):
            member.port = port
        if self._options.discover is not None:
            self._place = place_of(self._options.discover, self._data_dir, port_of_group)

    def _start_broker(self, member: Member) -> None:
        name = f"broker of node {member.number}" if self._clustered else "broker"
        if self._place:
            role, places = "finder", [self._place, str(member.port)]
        else:
            role, places = "broker", [str(other.port) for other in self.members]
        member.process = self._start(name, role, member.data_dir, str(member.number), *places)
        self._brokers[member.process] = member

    def _start_consumers(self) -> None:
        window = CLUSTER_WINDOW if self._clustered else WINDOW
        members = self.members if self._clustered else self.members * CONSUMERS
        for number, member in enumerate(members, 1):
            member.consumers.append(self._start(f"consumer {number}", "consumer", str(window)))

    async def _ready_or_taken(self, *members: Member) -> bool:
        """Wait until these nodes serve, or have found their port taken; whether all serve."""
        brokers = [member.broker for member in members]
        ready, taken = self._states.ready, self._states.taken
        await self._until(lambda: all(each in ready or each in taken for each in brokers), "brokers serve")
        for member in members:
            member.url = ready.get(member.broker, "")
        return all(member.url for member in members)

    async def _all_ready(self) -> None:
        """Start all nodes, with other ports if another process has taken one."""
        for _ in range(PORT_ATTEMPTS):
            if await self._ready_or_taken(*self.members):
                return
            await self._dismiss(*(member.broker for member in self.members))
            await self._choose_ports()
            for member in self.members:
                self._start_broker(member)
        raise DemoError(f"{PORT_ATTEMPTS} times ports that were free were taken by others before the nodes had them")

    async def _restart(self, member: Member) -> None:
        """Start a broker again on the same directory and port; return when it serves and the nodes know each other."""
        deadline = trio.current_time() + STALL_SECONDS
        self._start_broker(member)
        while not await self._ready_or_taken(member):
            if trio.current_time() >= deadline:
                raise StalledError(f"port {member.port} of node {member.number} has been taken by somebody else")
            await trio.sleep(PORT_SECONDS)
            self._start_broker(member)

    async def _all_met(self) -> None:
        """Return when every node knows every other one and all consumers: from then on each is dealt a share."""
        if not self._clustered:
            return
        self._states.met.clear()
        brokers = [member.broker for member in self.members]
        for broker in brokers:
            await broker.tell(report.AwaitMesh(len(self.members), len(self.members)))
        await self._until(lambda: all(broker in self._states.met for broker in brokers), "all nodes know each other")

    # -- kills

    async def _carry_out(self, kill: Kill, producer: Child) -> None:
        """Fill the queue, see that it is full enough, kill, and start again on the same directory and port."""
        member = self.members[kill.node - 1]
        await producer.tell(report.Limit(kill.hold_at))
        await self._until(lambda: self._states.progress.confirmed >= kill.hold_at, f"{kill.hold_at} rows are confirmed")
        ready = await self._fill(kill, member, producer)
        waiting = await self._catch(kill, member, producer)
        began = time.monotonic()
        await self._kill_broker(kill, member)
        caught = sum(self._tally.unsettled.get(name, 0) for name in member.names)
        unconfirmed = self._states.progress.sent - self._states.progress.confirmed
        batches = [batch for batch in self._tally.open_batches() if batch[0] in member.names]
        for consumer in member.consumers:
            await consumer.tell(report.AckQuota(-1))
        self._states.kill_is_over()
        await self._restart(member)
        result = KillResult(
            when=kill.when,
            node=kill.node,
            delivered_unacknowledged=caught,
            ready=ready,
            waiting=waiting,
            sent_unconfirmed=unconfirmed,
            seconds_down=time.monotonic() - began,
        )
        # What this kill has cut off must not be taken for a catch of the next one.
        await self._until(lambda: self._tally.all_settled(batches), "what became of each acknowledgement is known")
        await self._until(lambda: not self._states.offline, "all consumers are connected again")
        await self._all_met()
        self._kills.append(result)
        self._view.say(_said_of(result, self._clustered))
        self._phase_ended(f"kill {len(self._kills)}")

    async def _fill(self, kill: Kill, member: Member, producer: Child) -> int:
        """Let the node's consumers hold and its queue fill up; returns how many messages are then ready, at least."""
        names = member.names
        for consumer in member.consumers:
            await consumer.tell(report.AckQuota(0))
        await self._until(lambda: len(self._states.holding) == len(names), f"all consumers of node {kill.node} hold")
        self._phase_ended(f"until kill {len(self._kills) + 1}")
        await producer.tell(report.Limit(kill.check_at))
        held = self._tally.unsettled

        def full() -> bool:
            finished = self._states.progress.finished or kill.in_flight
            # One of them acknowledges a batch while the node is killed.
            enough = sum(held.get(name, 0) for name in names) >= DELIVERED_MIN + BATCH and held.get(names[-1], 0) > 0
            return finished and enough and self._states.progress.confirmed >= kill.check_at

        await self._until(full, f"{DELIVERED_MIN} messages are delivered and unacknowledged")
        numbers = await self._ask(member)
        while numbers.ready < kill.ready_min + WINDOW and kill.ready_min:
            await self._until(self._anything(), f"{kill.ready_min + WINDOW} messages are ready, not {numbers.ready}")
            numbers = await self._ask(member)
        # The consumer that acknowledges may be given more.
        return max(0, numbers.ready - (CLUSTER_WINDOW if self._clustered else WINDOW))

    async def _catch(self, kill: Kill, member: Member, producer: Child) -> int:
        """Return in the moment of the kill, with how many messages the producer's node then holds for that node."""
        await member.consumers[-1].tell(report.AckQuota(1))
        if not kill.freezes:
            await producer.tell(report.Limit(kill.go_on_to))
        await self._until(
            lambda: (
                self._states.acknowledging > 0
                and (self._states.progress.sent > kill.check_at or not kill.catches_sends)
            ),
            "a consumer acknowledges, and the producer is on its way",
        )
        if not kill.freezes:
            return 0
        broker, name = member.broker, node_name(member.number)
        await broker.tell(report.Freeze())
        await self._until(lambda: broker in self._states.frozen, f"the {broker.name} stands still")
        await producer.tell(report.Limit(kill.go_on_to))
        while True:
            anything = self._anything()
            numbers = await self._ask(self.members[PRODUCER_NODE - 1])
            waiting = numbers.waiting.get(name, 0)
            if waiting >= kill.waiting_min:
                return waiting
            await self._until(anything, f"{kill.waiting_min} messages wait for node {kill.node}, not {waiting}")

    async def _kill_broker(self, kill: Kill, member: Member) -> None:
        """SIGKILL; returns when the broker is gone and every consumer of it has noticed."""
        broker, progress = member.broker, self._states.progress
        self._leaving[broker] = None
        broker.kill()
        await broker.ended.wait()
        consumers = member.consumers
        await self._until(lambda: all(each in self._states.offline for each in consumers), "its consumers are cut off")
        if not kill.catches_sends:
            return

        def caught() -> bool:
            progress = self._states.progress
            return progress.finished or progress.sent > progress.confirmed

        # The producer goes on until its window is full: then it has said so.
        await self._until(caught, "the producer has said what is not confirmed")
        if self._states.progress.finished:
            raise DemoError(f"the producer was done with all {progress.sent:,} flights before the kill could catch any")

    # -- what the nodes hold

    async def _ask(self, member: Member) -> report.Numbers:
        """Ask a node for the numbers of its messages."""
        broker = member.broker
        self._states.asked(broker)
        await broker.tell(report.AskNumbers())
        await self._until(lambda: self._states.has_answered(broker), f"the {broker.name} says what it holds")
        return self._states.answer(broker)

    async def _ask_all(self) -> list[int]:
        """Ask each node for the number of its messages.

        The producer's node is asked first: messages go from there to the others and never back, and stay there until
        they have arrived.  So none is missed that changes places in between.
        """
        return [(await self._ask(member)).total for member in self.members]

    def _anything(self) -> Callable[[], bool]:
        bell = self._bell
        return bell.is_set

    async def _finish(self) -> list[int]:
        """Wait until all is sent and no node holds messages, or nothing progresses; return the rest in each node."""
        await self._until(lambda: self._states.progress.finished, "the producer has finished")
        try:
            while True:
                await self._until(lambda: not self._tally.unsettled_total, "all acknowledgements are decided")
                anything = self._anything()
                left = await self._ask_all()
                if not any(left) and not self._tally.unsettled_total:
                    return left
                await self._until(anything, f"the nodes hold nothing; they have {sum(left)}")
        except StalledError as stalled:
            # What was counted so far is worth more than the fact that there is no end.
            self._view.say(str(stalled))
            return await self._ask_all()

    async def _dismiss(self, *children: Child) -> None:
        """Let these processes end in peace."""
        self._leaving.update(dict.fromkeys(children))
        for child in children:
            if child in self._brokers:
                await child.end()
            else:
                await child.tell(report.End())
        for child in children:
            await self._until(child.ended.is_set, f"the {child.name} has ended")
            if child.status:
                raise child.failure()


def _said_of(kill: KillResult, clustered: bool) -> str:
    caught = [f"{kill.delivered_unacknowledged:,} delivered and not acknowledged"]
    if clustered:
        caught += [f"{kill.waiting:,} waiting for it"] if kill.waiting else []
        caught += [f"{kill.sent_unconfirmed:,} sent and not confirmed"] if kill.sent_unconfirmed else []
    else:
        caught.append(f"{kill.ready:,} ready")
    whom = f" of node {kill.node}" if clustered else ""
    return f"SIGKILL{whom} {kill.when}: {', '.join(caught)}; back after {kill.seconds_down:.1f} s"
