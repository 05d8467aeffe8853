"""The run: who starts when, which step comes when, and when everything is over.

It acts on what the processes report, and on what the nodes say of what they hold; nothing is timed.
"""

from __future__ import annotations

from pathlib import Path

import trio

from meshq.demo import _report_format as report
from meshq.demo._flights import parse_lines, read_lines
from meshq.demo._kill_plan import PRODUCER_NODE, Kill, plan_kills
from meshq.demo._move_plan import MovingPlan, plan_moving
from meshq.demo._nodes import Nodes
from meshq.demo._options import Options
from meshq.demo._process import Child
from meshq.demo._processes import Processes, StalledError
from meshq.demo._progress import ProgressView
from meshq.demo._result_format import Result, Steps, conclude
from meshq.demo._steps import KillStep, LeaveStep, MoveStep, said_of_kill, said_of_leave, said_of_move
from meshq.demo._tally_machine import Tally


class Director:
    """A run of the demo.

    ``data_dir``: where the nodes keep their data.  ``nursery``: where the processes are attended, and killed when it
    is cancelled.
    """

    def __init__(self, options: Options, path: Path, data_dir: str, *, nursery: trio.Nursery, view: ProgressView):
        self._options = options
        self._path = path
        self._view = view
        self.processes: Processes = Processes(nursery, view)
        self.nodes: Nodes = Nodes(options, data_dir, self.processes)
        self._steps = Steps()

    async def run(self) -> Result:
        """Run the demo; return its result.

        Raises:
            DemoError: it could not be carried through.
            SettingsError: there are not so many flights.
        """
        nodes, processes = self.nodes, self.processes
        await nodes.choose_ports()
        for member in nodes.members:
            nodes.start_broker(member)
        lines = read_lines(self._path, self._options.rows)
        producer = processes.start("producer", "producer", str(self._path), str(len(lines)))
        nodes.start_consumers()
        processes.tally = Tally(await parse_lines(lines))
        self._view.total(len(lines))
        await self._begin(producer)
        if self._options.moves:
            await self._carry_out(plan_moving(len(lines), len(nodes.members), self._options.killed_first), producer)
        elif self._options.kill:
            await self._kill(plan_kills(len(lines), len(nodes.members), self._options.killed_first), producer)
        await producer.tell(report.Limit(len(lines)))
        left = await self._finish()
        processes.phase_ended("the rest")
        await processes.dismiss(producer, *nodes.consumers)
        await processes.dismiss(*processes.children)
        processes.phase_ended("stop")
        confirmed = processes.states.progress.confirmed
        self._view.show(confirmed, processes.tally.delivered)
        return conclude(processes.tally, confirmed=confirmed, steps=self._steps, left=left, phases=processes.phases)

    async def _begin(self, producer: Child) -> None:
        """Return when all processes are at work, and all nodes know each other and all consumers."""
        nodes, processes = self.nodes, self.processes
        await nodes.all_ready()
        await producer.tell(report.Connect(nodes.member(PRODUCER_NODE).url))
        for member in nodes.members:
            for consumer in member.consumers:
                await consumer.tell(report.Connect(member.url))
        clients = (producer, *nodes.consumers)
        await processes.until(lambda: processes.states.all_ready(clients), "all processes are connected")
        await nodes.all_met()
        who = f"{len(nodes.members)} nodes" if nodes.clustered else "a broker"
        if self._options.discover is not None:
            who += f" that found each other by {self._options.discover}"
        self._view.say(f"{who}, a producer and {len(nodes.consumers)} consumers are at work")
        processes.phase_ended("start")

    # -- steps

    async def _kill(self, kills: tuple[Kill, Kill], producer: Child) -> None:
        for number, kill in enumerate(kills, 1):
            done = await KillStep(kill, number, self.nodes, self.processes, producer).carry_out()
            self._steps.kills.append(done)
            self._view.say(said_of_kill(done, clustered=self.nodes.clustered))
            self.processes.phase_ended(f"kill {number}")

    async def _carry_out(self, plan: MovingPlan, producer: Child) -> None:
        nodes, processes = self.nodes, self.processes
        await self._kill(plan.kills, producer)
        for number, move in enumerate(plan.moves, 1):
            moved = await MoveStep(move, nodes, processes, producer).carry_out()
            self._steps.moves.append(moved)
            self._view.say(said_of_move(moved))
            processes.phase_ended(f"move {number}")
        left = await LeaveStep(plan.leave, nodes, processes, producer).carry_out()
        self._steps.leave = left
        self._view.say(said_of_leave(left))
        processes.phase_ended("drain")

    async def _finish(self) -> list[int]:
        """Wait until all is sent and no node holds messages, or nothing progresses; return the rest in each node.

        Where messages go in every direction they may change places between two questions.  So there no node may hold
        any twice in a row.
        """
        processes, tally = self.processes, self.processes.tally
        await processes.until(lambda: processes.states.progress.finished, "the producer has finished")
        patience, empty = processes.patience(), 0
        try:
            while True:
                await processes.until(lambda: not tally.unsettled_total, "all acknowledgements are decided")
                left = await self.nodes.ask_all()
                empty = 0 if any(left) or tally.unsettled_total else empty + 1
                if empty > self._options.moves:
                    return left
                patience.check(what := f"the nodes hold nothing; they have {sum(left)}")
                if not empty:
                    await processes.until(processes.anything(), what)
        except StalledError as stalled:
            # What was counted so far is worth more than the fact that there is no end.
            self._view.say(str(stalled))
            return await self.nodes.ask_all()
