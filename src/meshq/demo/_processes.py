"""The processes of a run: starts, reports and ends, and waiting for these; nothing is timed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import trio

from meshq.demo import _report_format as report
from meshq.demo._process import Child, DemoError
from meshq.demo._process_states import ProcessStates
from meshq.demo._progress import ProgressView
from meshq.demo._tally_machine import Tally

#: Nothing gets ahead for so long: something is wrong, and the demo says what it was waiting for.
STALL_SECONDS: Final = 60.0


class StalledError(DemoError):
    """The demo makes no progress any more."""

    code = "demo_stalled"


class Patience:
    """The patience with a run in which nothing moves; ``moved`` returns figures that change with each progress."""

    def __init__(self, moved: Callable[[], tuple[int, ...]]) -> None:
        self._moved = moved
        self._last = moved()
        #: The time at which it ends.
        self.deadline: float = trio.current_time() + STALL_SECONDS

    def check(self, what: str) -> None:
        """Begin anew if something has moved.  Raises: StalledError: nothing has, for too long."""
        now = trio.current_time()
        if self._last != (moved := self._moved()):
            self._last, self.deadline = moved, now + STALL_SECONDS
        elif now >= self.deadline:
            raise StalledError(f"nothing has moved for {STALL_SECONDS:.0f} s while waiting until {what}")


class Processes:
    """The processes of a run.

    ``nursery``: where the processes are attended, and killed when it is cancelled.
    """

    def __init__(self, nursery: trio.Nursery, view: ProgressView) -> None:
        self._nursery = nursery
        self.view: ProgressView = view
        #: Every process that runs.
        self.children: list[Child] = []
        # Those of them that may end, and those that serve.
        self._leaving: dict[Child, None] = {}
        self._brokers: dict[Child, None] = {}
        self._failure: DemoError | None = None
        self._bell = trio.Event()
        #: What consumers were delivered, and what all processes said of themselves.
        self.tally = Tally([])
        self.states = ProcessStates()
        #: Seconds of each phase.
        self.phases: dict[str, float] = {}
        self._phase_began = time.monotonic()

    # -- what is heard

    def start(self, name: str, role: str, *arguments: str) -> Child:
        """Start a process."""
        child = Child(name, role, *arguments)
        self.children.append(child)
        self._nursery.start_soon(self._attend, child)
        return child

    async def _attend(self, child: Child) -> None:
        await child.attend(self.heard)
        self.children.remove(child)
        if child not in self._leaving:
            self._failure = self._failure or child.failure()
        self._ring()

    def heard(self, child: Child, said: report.Report) -> None:
        """Take a report of a process."""
        if isinstance(said, report.Delivered):
            self.tally.take_delivered(child.name, said)
            self.view.show(self.states.progress.confirmed, self.tally.delivered)
        elif isinstance(said, report.Settled):
            self.tally.take_settled(child.name, said)
        else:
            self.states.take(child, said)
            if isinstance(said, report.Progress):
                self.view.show(said.confirmed, self.tally.delivered)
            elif isinstance(said, report.PortTaken):
                self.may_end(child)
        self._ring()

    def _ring(self) -> None:
        bell, self._bell = self._bell, trio.Event()
        bell.set()

    def patience(self) -> Patience:
        """Return a new patience with this run."""
        return Patience(self._moved)

    async def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until a condition holds, checking after each report of the processes."""
        patience = self.patience()
        while not holds():
            if self._failure is not None:
                raise self._failure
            with trio.move_on_at(patience.deadline):
                await self._bell.wait()
            patience.check(what)

    def anything(self) -> Callable[[], bool]:
        """Return a condition that holds when any process has said something from now on."""
        bell = self._bell
        return bell.is_set

    def _moved(self) -> tuple[int, ...]:
        """The figures that change while the run progresses; redeliveries, which may go on for ever, are left out."""
        return (self.tally.delivered, *self.states.sizes())

    def phase_ended(self, name: str) -> None:
        """Note the time of a phase."""
        now = time.monotonic()
        self.phases[name] = now - self._phase_began
        self._phase_began = now

    def is_ready(self, child: Child) -> bool:
        """Whether this process is at work."""
        return child in self.states.ready

    # -- brokers

    def serves(self, broker: Child) -> None:
        """Take a process for a broker: it ends with its pipe, and not by a command."""
        self._brokers[broker] = None

    def may_end(self, child: Child) -> None:
        """Take the end of this process for no failure."""
        self._leaving[child] = None

    async def ask(self, broker: Child) -> report.Numbers:
        """Ask a broker for the numbers of its messages."""
        self.states.asked(broker)
        await broker.tell(report.AskNumbers())
        await self.until(lambda: self.states.has_answered(broker), f"the {broker.name} says what it holds")
        return self.states.answer(broker)

    async def ask_until(
        self, broker: Child, enough: Callable[[report.Numbers], bool], what: Callable[[report.Numbers], str]
    ) -> report.Numbers:
        """Ask a broker again and again until its numbers are as wanted; ``what`` is waited for."""
        patience = self.patience()
        while True:
            numbers = await self.ask(broker)
            if enough(numbers):
                return numbers
            patience.check(what(numbers))
            # Consumers say something all the time, if only that nothing comes.
            await self.until(self.anything(), what(numbers))

    async def dismiss(self, *children: Child) -> None:
        """Let these processes end in peace."""
        for child in children:
            self.may_end(child)
        for child in children:
            if child in self._brokers:
                await child.end()
            else:
                await child.tell(report.End())
        await self.have_ended(*children)

    async def have_ended(self, *children: Child) -> None:
        """Wait until these processes have ended in peace."""
        for child in children:
            await self.until(child.ended.is_set, f"the {child.name} has ended")
            if child.status:
                raise child.failure()
