"""The order in which tasks run, as a function of a seed: the only file that knows private names of trio.

The problem.  trio runs tasks in batches: all that are runnable now, in random order, then it looks at clock and
I/O, then the next batch.  A simulation needs that order to come from its seed, and it needs two things that trio
has no word for: a node that is stopped (SIGSTOP) and goes on later, and a node that is dead (SIGKILL), none of
whose ``finally`` and ``except`` blocks may ever run.  Cancelling a dead node's nursery would run exactly those
blocks, and a broker that says goodbye in a ``finally`` would look safer than it is.

The choice.  trio shuffles each batch, a list, with ``_run._r.shuffle(batch)``, after it has sorted it if
``_run._ALLOW_DETERMINISTIC_SCHEDULING`` is set.  A ``random.Random`` whose ``shuffle`` takes tasks out of that
list is a complete scheduler: a task that is left out is neither run nor runnable, so the clock goes on without
it; put back into the run queue it goes on as if nothing had been.  Tasks belong to the ``Life`` in a context
variable that children inherit.

What does not work.  An instrument sees each step but can't prevent it.  Suspending in the outside interfaces
only (a severed environment) lets a victim's own code run on.  ``MockClock`` can't tell a deadlock: it jumps when
nothing is runnable and spins for ever when there is nothing to jump to; ``SimClock`` is told the next deadline by
the run loop just when nothing is runnable, so it can jump there at once, and when there is none it knows.

The end.  Tasks of the dead never end by themselves.  Once the verdict is taken they are put back, in an outside
world that refuses everything, and cancelled, so that the run ends in an orderly way.  Where even that takes too
long, the run is abandoned from within ``shuffle``.
"""

from __future__ import annotations

import contextvars
import heapq
import math
import operator
import random
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, cast

import attrs
import trio
from trio._core import _run

from meshq.errors import UsageError
from meshq.testing._clock import VirtualClock

#: Turns of the loop at one instant without disk or network that are a spin: a real burst of work is a hundred
#: times shorter.
IDLE_TURNS_MAX: Final = 10_000
#: The same with disk or network, which a busy instant may well have.
TURNS_MAX: Final = 500_000
#: What looks at files and sockets for a run loop.
_MANAGER: Final[object] = getattr(_run, "TheIOManager", None)
#: The sleeps of every run that is no simulation.
_SLEEP: Final = trio.sleep
_SLEEP_UNTIL: Final = trio.sleep_until
#: Names of trio on which all of this stands: (object, attribute).
NEEDED: Final[tuple[tuple[object, str], ...]] = (
    (_run, "_r"),
    (_run, "_ALLOW_DETERMINISTIC_SCHEDULING"),
    (_run, "GLOBAL_RUN_CONTEXT"),
    (_run.Runner, "reschedule"),
    (_run.Task, "context"),
    (_MANAGER, "get_events"),
    (_MANAGER, "process_events"),
)
#: Of so many looks at files and sockets that would not wait, one is taken: nothing of the kind is open in a simulation,
#: and whoever presses Ctrl-C is heard soon enough.
LOOKS_SKIPPED: Final = 64


@attrs.define(eq=False)
class Life:
    """A life of a simulated node, shared by all tasks of that life."""

    node: str
    number: int
    #: Whether its tasks run.  Only the scheduler changes it.
    running: bool = True
    #: Whether it has been killed: it will never run again.
    dead: bool = False
    #: Its tasks that became runnable while it was not running, in that order.
    held: list[trio.lowlevel.Task] = attrs.field(factory=list, repr=False)


#: In which order tasks were made: what trio sorts a batch by.
NUMBER_OF: Final = operator.attrgetter("_counter")
#: The life to which the current task belongs; None for the harness.
LIFE: Final[contextvars.ContextVar[Life | None]] = contextvars.ContextVar("meshq_simulated_life", default=None)


class AbandonedError(BaseException):
    """The run loop was left although tasks were still alive."""


def _not_now(raise_cancel: object) -> trio.lowlevel.Abort:
    """Refuse to end the wait of a cancelled task."""
    return trio.lowlevel.Abort.FAILED


async def uncancelled() -> None:
    """Wait until another task reschedules this task.  Checkpoint: always.  Cancellation: is not noticed."""
    await trio.lowlevel.wait_task_rescheduled(_not_now)


class _Unwatched(dict[str, object]):
    """The instruments of a run that has none: trio asks four times in each turn, and a dictionary answers at once."""

    def add_instrument(self, instrument: trio.abc.Instrument) -> None:
        """Refuse one: it would see the run in the midst."""
        raise UsageError("a simulation takes no instrument: its scheduler sees every turn")


class _SeldomLooks:
    """The files and sockets of a run, at which the run loop would look in each turn, by a system call."""

    def __init__(self, manager: Any, clock: SimClock) -> None:
        self._manager = manager
        self._clock = clock
        self._left = LOOKS_SKIPPED
        self.process_events = manager.process_events

    def __getattr__(self, name: str) -> Any:
        return getattr(self._manager, name)

    def get_events(self, timeout: float) -> Any:
        """Look if trio would wait, and else once in many times; here trio is about to look at its deadlines, too."""
        if self._clock.late:
            self._clock.wake_sleepers()
        self._left -= 1
        if timeout or not self._left:
            self._left = LOOKS_SKIPPED
            return self._manager.get_events(timeout)
        return ()


def _quicken(runner: Any, clock: SimClock) -> None:
    """Make the run loop look at files seldom, and at no instruments: a simulation has neither."""
    runner.io_manager = _SeldomLooks(runner.io_manager, clock)
    if not any(runner.instruments.values()):
        runner.instruments = _Unwatched()


class SimClock(trio.abc.Clock):
    """A clock that stands still while anything can run, and then jumps to the next deadline."""

    #: Told to those who would keep tests from waiting in real time.
    simulated = True

    def __init__(self, *, on_deadlock: Callable[[], bool], on_limit: Callable[[], object]) -> None:
        self.now: float = 0.0
        #: How far time may go, and what is called when it would go farther.
        self.limit: float = math.inf
        self._on_limit = on_limit
        #: Called when nothing is runnable and there is no deadline to wait for.  Returns False once the run is over:
        #: trio then waits for its own wake-up socket.
        self._on_deadlock = on_deadlock
        #: The run's tasks in ``trio.testing.wait_all_tasks_blocked``, which come before any jump.
        self._waiting_for_idle: Collection[object] = ()
        #: What is to happen: (time, a number that keeps the order of asking, what).
        self._alarms: list[tuple[float, int, Callable[[], object]]] = []
        self._alarm_count = 0
        #: Who sleeps: (until when, a number, the task); and the numbers of those whose sleep was cancelled.
        self._sleepers: list[tuple[float, int, trio.lowlevel.Task]] = []
        self._cancelled: set[int] = set()
        #: Time has passed within a step: some may have slept too long.
        self.late: bool = False

    def start_clock(self) -> None:
        """Make the run that begins a cheap one."""
        self._waiting_for_idle = _runner().waiting_for_idle
        _quicken(_runner(), self)

    def current_time(self) -> float:
        """The seconds that the simulation has lasted."""
        return self.now

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Asked by the run loop only when no task is runnable: jump."""
        if self._waiting_for_idle:
            return math.inf
        alarms, sleepers = self._alarms, self._sleepers
        while self._cancelled and sleepers and sleepers[0][1] in self._cancelled:
            self._cancelled.remove(heapq.heappop(sleepers)[1])
        if sleepers and sleepers[0][0] < deadline:
            deadline = sleepers[0][0]
        if alarms and (now := alarms[0][0]) <= deadline and now <= self.limit:
            if now > self.now:
                self.now = now
            else:
                now = self.now
            while alarms and alarms[0][0] <= now:
                heapq.heappop(alarms)[2]()
        elif deadline == math.inf and not alarms:
            if not self._on_deadlock():
                return math.inf
        elif deadline > self.limit:
            self.now, self.limit = self.limit, math.inf
            self._on_limit()
        elif deadline > self.now:
            self.now = deadline
        if sleepers and sleepers[0][0] <= self.now:
            self.wake_sleepers()
        return 0.0

    def wake_sleepers(self) -> None:
        """Wake the tasks whose sleep is over."""
        self.late = False
        sleepers, cancelled = self._sleepers, self._cancelled
        while sleepers and sleepers[0][0] <= self.now:
            _, number, task = heapq.heappop(sleepers)
            if number in cancelled:
                cancelled.remove(number)
            else:
                trio.lowlevel.reschedule(task)

    def call_at(self, time: float, callback: Callable[[], object]) -> None:
        """Call back at ``time``, as soon as no task is runnable then; a device does so without a task."""
        self._alarm_count += 1
        heapq.heappush(self._alarms, (time, self._alarm_count, callback))

    async def wait(self, seconds: float) -> None:
        """Sleep without a cancel scope.  Checkpoint: always.  Cancellation: is not noticed."""
        self.call_at(self.now + seconds, partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))
        await uncancelled()

    async def sleep(self, seconds: float) -> None:
        """Sleep as ``trio.sleep`` does; see ``sleep_until``.  Checkpoint: always.  Cancellation: nothing happens."""
        if not seconds >= 0:
            raise ValueError(f"seconds={seconds} is not allowed; allowed: 0 or more")
        await self.sleep_until(self.now + seconds)

    async def sleep_until(self, deadline: float) -> None:
        """Sleep as ``trio.sleep_until`` does, without its cancel scope, which costs more than the sleep.

        Checkpoint: always.  Cancellation: nothing happens.
        """
        if math.isnan(deadline):
            raise ValueError("the deadline is no number")
        if deadline <= self.now:
            await trio.lowlevel.checkpoint()
        elif deadline == math.inf:
            await trio.sleep_forever()
        else:
            self._alarm_count = number = self._alarm_count + 1
            heapq.heappush(self._sleepers, (deadline, number, trio.lowlevel.current_task()))
            await trio.lowlevel.wait_task_rescheduled(partial(self._cancel, number))
            # A cancellation that came before the task could go on counts for more than the end of the sleep.
            await trio.lowlevel.checkpoint_if_cancelled()

    def _cancel(self, number: int, raise_cancel: object) -> trio.lowlevel.Abort:
        self._cancelled.add(number)
        return trio.lowlevel.Abort.SUCCEEDED

    def advance(self, seconds: float) -> None:
        """Let time pass within a step, as when the caller blocks its thread and all other clocks go on."""
        self.now += seconds
        self.late = True


class Scheduler(random.Random):
    """The generator with which trio shuffles each batch of runnable tasks, and so the scheduler.

    ``trace`` is a hash over every batch so far: who ran, in which order, when.  It depends on the seed and the
    code only, for one version of Python.  ``on_stuck`` is called when one instant takes too many turns.
    """

    def __init__(self, rng: random.Random, clock: VirtualClock, *, on_stuck: Callable[[], object]) -> None:
        super().__init__(0)
        self._rng = rng
        self._clock = clock
        #: The thread of the run that is scheduled.  Runs of other threads are trio's own.
        self.thread: int = threading.get_ident()
        self.trace: int = 0
        #: Set to a list, it gets each batch: (time, names of tasks).  To find where two runs part.
        self.record: list[tuple[float, tuple[str, ...]]] | None = None
        #: Batches so far.
        self.turns: int = 0
        #: The number of the batch at which the clock moved, and at which disk or network did something.
        self._moved_at = 0
        self._busy_at = 0
        self._instant = -1.0
        self._first_task: int | None = None
        self._batch: list[trio.lowlevel.Task] = []
        #: Lives that are not running.
        self._stopped: dict[Life, None] = {}
        self._on_stuck = on_stuck
        #: Turns left before the run is abandoned; None while it is not being ended.
        self.turns_left: int | None = None

    # -- called by trio --------------------------------------------------------------------------------------

    def shuffle(self, x: Any) -> None:
        """Decide which of these tasks run in this turn, and in which order."""
        if threading.get_ident() != self.thread:
            super().shuffle(x)
            return
        batch = cast("list[trio.lowlevel.Task]", x)
        self._batch = batch
        self.turns = turns = self.turns + 1
        now = self._clock.now
        if now != self._instant:
            self._instant = now
            self._moved_at = self._busy_at = turns
        elif turns - self._busy_at > IDLE_TURNS_MAX or turns - self._moved_at > TURNS_MAX:
            self._moved_at = self._busy_at = turns
            self._on_stuck()
        if self.turns_left is not None:
            self.turns_left -= 1
            if self.turns_left < 0:
                raise AbandonedError
        if self._stopped:
            for task in batch:
                life = task.context.get(LIFE)
                if life is not None and not life.running:
                    self._hold()
                    break
            # Nearly always not: the dead are stopped for ever, and seldom woken.
        count = len(batch)
        if count > 1:
            self._mix(batch, count)
        if self._first_task is None and batch:
            self._first_task = NUMBER_OF(batch[0])
        if self.record is not None:
            self.record.append((now, tuple(task.name for task in batch)))
        first = self._first_task or 0
        if count == 1:
            # Four turns of five; the same hash.
            self.trace = hash((self.trace, now, batch[0]._counter - first))
        else:
            self.trace = hash((self.trace, now, *[number - first for number in map(NUMBER_OF, batch)]))

    def _mix(self, batch: list[trio.lowlevel.Task], count: int) -> None:
        if count == 2:
            if self._rng.getrandbits(1):
                batch.reverse()
        else:
            self._rng.shuffle(batch)

    def _hold(self) -> None:
        """Take the tasks of stopped and dead nodes out of the batch."""
        kept: list[trio.lowlevel.Task] = []
        for task in self._batch:
            life = task.context.get(LIFE)
            if life is None or life.running:
                kept.append(task)
            else:
                life.held.append(task)
        self._batch[:] = kept

    # -- called by the harness -------------------------------------------------------------------------------

    def reseed(self, rng: random.Random) -> None:
        """Draw the order of tasks from ``rng`` from now on, and begin the trace anew."""
        self._rng = rng
        self.trace = 0
        self._first_task = None

    def progress(self) -> None:
        """Disk or network did something: this instant is not a spin."""
        self._busy_at = self.turns

    def stop(self, life: Life) -> None:
        """Let no task of ``life`` run from now on, those already chosen for this turn included."""
        if life.running:
            life.running = False
            self._stopped[life] = None
            self._hold()

    def kill(self, life: Life) -> None:
        """Stop ``life`` for ever."""
        life.dead = True
        self.stop(life)

    def resume(self, life: Life) -> None:
        """Let ``life`` run again, unless it is dead."""
        if not life.dead:
            self._release(life)

    def _release(self, life: Life) -> None:
        if not life.running:
            life.running = True
            self._stopped.pop(life, None)
            _runner().runq.extend(life.held)
            life.held.clear()

    def end(self, turns_max: int) -> None:
        """Let all tasks run again, also the tasks of dead nodes, and abandon the run after ``turns_max`` more turns."""
        self.turns_left = turns_max
        for life in list(self._stopped):
            self._release(life)


def _runner() -> Any:
    return _run.GLOBAL_RUN_CONTEXT.runner


def tasks_of(life: Life) -> list[trio.lowlevel.Task]:
    """The tasks of a life that have not ended."""
    root = trio.lowlevel.current_root_task()
    waiting, found = [] if root is None else [root], []
    while waiting:
        task = waiting.pop()
        if task.context.get(LIFE) is life:
            found.append(task)
        for nursery in task.child_nurseries:
            waiting.extend(sorted(nursery.child_tasks, key=NUMBER_OF))
    return found


def waits_for_idle() -> bool:
    """Whether a task is in ``trio.testing.wait_all_tasks_blocked``, which comes before any jump."""
    return bool(_runner().waiting_for_idle)


def missing_names() -> list[str]:
    """The private names of trio that this file needs and that the installed trio lacks."""
    missing = [f"{getattr(owner, '__name__', owner)}.{name}" for owner, name in NEEDED if not hasattr(owner, name)]
    fields = {field.name for field in attrs.fields(_run.Runner)} | {field.name for field in attrs.fields(_run.Task)}
    needed = ("runq", "waiting_for_idle", "io_manager", "instruments", "_counter")
    missing += [name for name in needed if name not in fields]
    return missing


@contextmanager
def scheduled_by(scheduler: Scheduler) -> Iterator[None]:
    """Let ``scheduler`` decide in every run of trio that this thread begins inside this block."""
    scheduler.thread = threading.get_ident()
    before = _run._r, _run._ALLOW_DETERMINISTIC_SCHEDULING
    setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", True)  # noqa: B010 - declared Final
    _run._r = scheduler
    try:
        yield
    finally:
        _run._r = before[0]
        setattr(_run, "_ALLOW_DETERMINISTIC_SCHEDULING", before[1])  # noqa: B010


def _clock_of_this_run() -> object:
    """Return the clock of the run to which the caller belongs; None: there is no run."""
    return getattr(getattr(_run.GLOBAL_RUN_CONTEXT, "runner", None), "clock", None)


async def sleep(seconds: float) -> None:
    """Sleep as ``trio.sleep`` does, by the clock of the simulation if the caller's run is one.

    Other threads have runs of their own meanwhile, and a module that was imported in a simulation keeps this function.

    Checkpoint: always.  Cancellation: nothing happens.
    """
    clock = _clock_of_this_run()
    await (clock.sleep(seconds) if isinstance(clock, SimClock) else _SLEEP(seconds))


async def sleep_until(deadline: float) -> None:
    """Sleep as ``trio.sleep_until`` does, by the clock of the simulation if the caller's run is one.

    Checkpoint: always.  Cancellation: nothing happens.
    """
    clock = _clock_of_this_run()
    await (clock.sleep_until(deadline) if isinstance(clock, SimClock) else _SLEEP_UNTIL(deadline))


@contextmanager
def slept_by_clocks() -> Iterator[None]:
    """Let the clock of a simulation see to its sleeps in this block: a third of all cancel scopes are made to sleep."""
    before = trio.sleep, trio.sleep_until
    setattr(trio, "sleep", sleep)  # noqa: B010 - a function is no variable
    setattr(trio, "sleep_until", sleep_until)  # noqa: B010
    try:
        yield
    finally:
        setattr(trio, "sleep", before[0])  # noqa: B010
        setattr(trio, "sleep_until", before[1])  # noqa: B010


def stacks() -> str:
    """Where every task of the current run stands, with the life it belongs to."""
    root = trio.lowlevel.current_root_task()
    waiting, lines = [] if root is None else [root], []
    while waiting:
        task = waiting.pop(0)
        life = task.context.get(LIFE)
        owner = "harness" if life is None else f"{life.node}/{life.number}"
        state = "" if life is None or life.running else (" dead" if life.dead else " paused")
        lines.append(f"task {task.name} of {owner}{state}")
        for frame, line in task.iter_await_frames():
            lines.append(f"    {frame.f_code.co_filename}:{line} in {frame.f_code.co_qualname}")
        for nursery in task.child_nurseries:
            waiting.extend(sorted(nursery.child_tasks, key=NUMBER_OF))
    return "\n".join(lines)
