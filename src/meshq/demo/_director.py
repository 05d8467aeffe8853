"""The run: who starts when, when the broker is killed, and when everything is over.

It acts on what the processes report and on what the broker says of its queue; nothing is timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import trio

from meshq.client import Client, QueueStatistics, connect
from meshq.demo import _report_format as report
from meshq.demo._flights import parse_lines, read_lines
from meshq.demo._kill_plan import CONSUMERS, DELIVERED_MIN, READY_MIN, WINDOW, Kill, plan_kills
from meshq.demo._options import Options
from meshq.demo._process import Child, DemoError
from meshq.demo._progress import ProgressView
from meshq.demo._result_format import KillResult, Result, conclude
from meshq.demo._settings import CLIENT, QUEUE
from meshq.demo._tally_machine import Tally

#: Nothing gets ahead for so long: something is wrong, and the demo says what it was waiting for.
STALL_SECONDS: Final = 60.0


class StalledError(DemoError):
    """Nothing gets ahead any more."""

    code = "demo_stalled"


class Director:
    """One run of the demo.

    ``data_dir``: where the broker keeps its data.  ``nursery``: where the processes are attended, and killed when it
    is cancelled.
    """

    def __init__(self, options: Options, path: Path, data_dir: str, *, nursery: trio.Nursery, view: ProgressView):
        self._options = options
        self._path = path
        self._data_dir = data_dir
        self._nursery = nursery
        self._view = view
        #: Every process that runs, and those of them that may end.
        self.children: list[Child] = []
        self._leaving: dict[Child, None] = {}
        self._failure: DemoError | None = None
        self._bell = trio.Event()
        # Around a question to the broker: nobody waits for an answer once a process has failed.
        self._asking = trio.CancelScope()
        self._broker: Child | None = None
        self._url = ""
        self._consumers: list[Child] = []
        self._tally = Tally([])
        # Processes that are ready; consumers that hold, that have no connection; batches acknowledged by ticket.
        self._ready: dict[Child, str] = {}
        self._holding: dict[Child, None] = {}
        self._offline: dict[Child, None] = {}
        self._acknowledging = 0
        self._progress = report.Progress(0, 0)
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
            self._asking.cancel()
        self._ring()

    def _heard(self, child: Child, said: report.Report) -> None:
        if isinstance(said, report.Delivered):
            self._tally.take_delivered(child.name, said)
            self._view.show(self._progress.confirmed, self._tally.delivered)
        elif isinstance(said, report.Settled):
            self._tally.take_settled(child.name, said)
        elif isinstance(said, report.Progress):
            self._progress = said
            self._view.show(said.confirmed, self._tally.delivered)
        elif isinstance(said, report.Ready):
            self._ready[child] = said.url
        elif isinstance(said, report.Holding):
            self._holding[child] = None
        elif isinstance(said, report.Acknowledging):
            self._acknowledging += 1
        elif isinstance(said, report.Connection):
            if said.up:
                self._offline.pop(child, None)
            else:
                self._offline[child] = None
        self._ring()

    def _ring(self) -> None:
        bell, self._bell = self._bell, trio.Event()
        bell.set()

    async def _until(self, holds: Callable[[], bool], what: str) -> None:
        """Return once it holds; what the processes report is all that can make it so."""
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
        """What changes while the run gets ahead; not what may go round for ever, as redeliveries may."""
        counts = self._progress.sent, self._progress.confirmed, self._tally.delivered
        return (*counts, len(self._ready), len(self._holding), len(self._offline))

    def _phase_ended(self, name: str) -> None:
        now = time.monotonic()
        self._phases[name] = now - self._phase_began
        self._phase_began = now

    def is_ready(self, child: Child) -> bool:
        """Whether this process is at work."""
        return child in self._ready

    # -- what is done

    async def run(self) -> Result:
        """Carry the demo through; returns what was counted.

        Raises:
            DemoError: it could not be carried through.
            SettingsError: there are not so many flights.
        """
        self._start_broker("0")
        lines = read_lines(self._path, self._options.rows)
        producer = self._start("producer", "producer", str(self._path), str(len(lines)))
        self._consumers = [self._start(f"consumer {number + 1}", "consumer") for number in range(CONSUMERS)]
        self._tally = Tally(await parse_lines(lines))
        self._view.total(len(lines))
        await self._broker_ready()
        for child in (producer, *self._consumers):
            await child.tell(report.Connect(self._url))
        clients = (producer, *self._consumers)
        await self._until(lambda: all(child in self._ready for child in clients), "all processes are connected")
        self._view.say(f"a broker, a producer and {CONSUMERS} consumers are at work")
        self._phase_ended("start")
        async with connect(self._url, **CLIENT) as client:
            for kill in plan_kills(len(lines)) if self._options.kill else ():
                await self._carry_out(kill, producer, client)
            await producer.tell(report.Limit(len(lines)))
            left = await self._finish(client)
        self._phase_ended("the rest")
        await self._dismiss(*clients)
        await self._dismiss(*self.children)
        self._phase_ended("stop")
        self._view.show(self._progress.confirmed, self._tally.delivered)
        confirmed = self._progress.confirmed
        return conclude(self._tally, confirmed=confirmed, kills=self._kills, left=left, phases=self._phases)

    def _start_broker(self, port: str) -> None:
        self._broker = self._start("broker", "broker", self._data_dir, port)

    async def _broker_ready(self) -> None:
        broker = self._broker
        assert broker is not None
        await self._until(lambda: broker in self._ready, "the broker is ready")
        self._url = self._ready[broker]

    async def _carry_out(self, kill: Kill, producer: Child, client: Client) -> None:
        """Fill the queue, see that it is full enough, kill, and start again on the same directory and port."""
        await producer.tell(report.Limit(kill.hold_at))
        await self._until(lambda: self._progress.confirmed >= kill.hold_at, f"{kill.hold_at} rows are confirmed")
        statistics = await self._fill(kill, producer, client)
        acknowledging = self._consumers[-1]
        await producer.tell(report.Limit(kill.go_on_to))
        await acknowledging.tell(report.Tickets(1))
        await self._until(
            lambda: self._acknowledging > 0 and (self._progress.sent > kill.check_at or not kill.in_flight),
            "a consumer acknowledges, and the producer is on its way",
        )
        began = time.monotonic()
        await self._kill_broker()
        caught, unconfirmed = self._tally.unsettled_total, self._progress.sent - self._progress.confirmed
        batches = self._tally.open_batches()
        for consumer in self._consumers:
            await consumer.tell(report.Tickets(-1))
        self._acknowledging = 0
        self._holding.clear()
        self._start_broker(self._url.rpartition(":")[2])
        await self._broker_ready()
        result = KillResult(
            when=kill.when,
            delivered_unacknowledged=caught,
            # What the consumer that acknowledged may have been given since.
            ready=statistics.ready - WINDOW,
            sent_unconfirmed=unconfirmed,
            seconds_down=time.monotonic() - began,
        )
        # What this kill has cut off must not be taken for a catch of the next one.
        await self._until(lambda: self._tally.all_settled(batches), "what became of each acknowledgement is known")
        self._kills.append(result)
        self._view.say(
            f"SIGKILL {kill.when}: {caught:,} delivered and not acknowledged, {result.ready:,} ready; "
            f"back after {result.seconds_down:.1f} s"
        )
        self._phase_ended(f"kill {len(self._kills)}")

    async def _fill(self, kill: Kill, producer: Child, client: Client) -> QueueStatistics:
        """Let the consumers hold and the queue fill up; returns what the broker then says of it."""
        for consumer in self._consumers:
            await consumer.tell(report.Tickets(0))
        await self._until(lambda: len(self._holding) == CONSUMERS, "all consumers hold")
        self._phase_ended(f"until kill {len(self._kills) + 1}")
        await producer.tell(report.Limit(kill.check_at))
        held, holders = self._tally.unsettled, [consumer.name for consumer in self._consumers]

        def full() -> bool:
            finished = self._progress.finished or kill.in_flight
            enough = sum(held.get(name, 0) for name in holders[:-1]) >= DELIVERED_MIN and held.get(holders[-1], 0) > 0
            return finished and enough and self._progress.confirmed >= kill.check_at

        await self._until(full, f"{DELIVERED_MIN} messages are delivered and unacknowledged")
        statistics = await self._ask(client)
        while statistics.ready < READY_MIN + WINDOW:
            await self._until(self._anything(), f"{READY_MIN + WINDOW} messages are ready, not {statistics.ready}")
            statistics = await self._ask(client)
        return statistics

    async def _ask(self, client: Client) -> QueueStatistics:
        """What the broker says of the queue."""
        with trio.CancelScope() as self._asking:
            if self._failure is None:
                return await client.queue(QUEUE)
        assert self._failure is not None
        raise self._failure

    def _anything(self) -> Callable[[], bool]:
        bell = self._bell
        return bell.is_set

    async def _kill_broker(self) -> None:
        """SIGKILL; returns when the broker is gone and every consumer has noticed."""
        broker = self._broker
        assert broker is not None
        self._leaving[broker] = None
        broker.kill()
        await broker.ended.wait()
        await self._until(lambda: len(self._offline) == CONSUMERS, "every consumer has lost its connection")

    async def _finish(self, client: Client) -> int:
        """Return when all is sent and the queue is empty, or nothing gets ahead any more; what is left in it."""
        await self._until(lambda: self._progress.finished, "the producer has finished")
        try:
            while True:
                await self._until(lambda: not self._tally.unsettled_total, "all acknowledgements are decided")
                anything = self._anything()
                statistics = await self._ask(client)
                left = statistics.ready + statistics.delivering
                if not left and not self._tally.unsettled_total:
                    return left
                await self._until(anything, f"the queue is empty; it has {left}")
        except StalledError as stalled:
            # What was counted so far is worth more than the fact that there is no end.
            self._view.say(str(stalled))
            statistics = await self._ask(client)
            return statistics.ready + statistics.delivering

    async def _dismiss(self, *children: Child) -> None:
        """Let these processes end in peace."""
        self._leaving.update(dict.fromkeys(children))
        for child in children:
            if child is self._broker:
                await child.end()
            else:
                await child.tell(report.End())
        for child in children:
            await self._until(child.ended.is_set, f"the {child.name} has ended")
            if child.status:
                raise child.failure()
