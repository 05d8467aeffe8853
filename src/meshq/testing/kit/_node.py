"""A node of a simulated cluster: a machine, and one broker after the other on its disk."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import attrs
import trio

from meshq.concurrency import first_error
from meshq.env import DEFAULT_ENV
from meshq.errors import BrokenError, DamagedError, MeshqError, NotActiveError
from meshq.node import Broker
from meshq.notifications import BrokerStateChanged, MessageDeadLettered, MessageExpired, Notification
from meshq.testing._node import SimNode
from meshq.testing._scheduler import tasks_of
from meshq.testing.disk._disk import SimDisk
from meshq.testing.kit._settled_plan import NodeView
from meshq.testing.kit._spawned_task import SpawnedTask
from meshq.testing.kit._views import view_of
from meshq.testing.kit._world import SimulatedWorld


class _StartReport:
    """The end of the start of a broker, which is active then or has ended."""

    def __init__(self) -> None:
        self.over = trio.Event()

    def started(self, value: None = None) -> None:
        """The broker is active."""
        self.over.set()


class KitNode:
    """A node over all its lives: its name, its machine and its present broker."""

    def __init__(
        self,
        world: SimulatedWorld,
        name: str,
        host: str,
        make: Callable[[KitNode], Broker],
        disk: SimDisk | None = None,
    ) -> None:
        self.name: str = name
        #: The name of the machine on the network.
        self.host: str = host
        self._world = world
        self._make = make
        self.machine: SimNode = world.machine(host, disk)
        self.broker: Broker | None = None
        #: The error with which the present broker has ended.
        self.error: MeshqError | None = None
        #: Tasks that the test has started here, in this life.
        self.tasks: list[SpawnedTask] = []
        self._report = _StartReport()
        self._over = trio.Event()
        # It served, and was stopped cleanly.
        self._stopped = False

    @property
    def state(self) -> str:
        """``dead``, ``paused``, or the state of the broker."""
        if self.machine.state != "running":
            return self.machine.state
        return "dead" if self.broker is None else self.broker.state

    # -- lives

    def start(self) -> None:
        """Begin a life: the first one, or a new one of a machine that is dead."""
        if self.machine.state == "dead":
            self.machine.start()
        self.error = None
        self._stopped = False
        self.tasks = []
        self._report = _StartReport()
        self._over = trio.Event()
        self._world.recorder.history.restarted(self.name)
        self.broker = self._make(self)
        self.broker._event_bus.listen(self._hear)
        with self._inside():
            self.machine.spawn(self._live, self.broker, self._report, self._over, name=f"broker {self.name}")

    async def started(self) -> None:
        """Wait until the broker of this life is active.

        Checkpoint: always.  Cancellation: it goes on starting.
        Raises:
            MeshqError: the broker has failed, with this error.
            NotActiveError: the node has died meanwhile.
        """
        await self._report.over.wait()
        if self.error is not None:
            raise self.error
        if self.state in ("dead", "stopped"):
            raise NotActiveError(f"{self.name} has ended before it was active")

    async def _live(self, broker: Broker, report: _StartReport, over: trio.Event) -> None:
        try:
            await broker.run(task_status=report)
        except (BrokenError, DamagedError, BaseExceptionGroup) as error:
            cause = first_error(error)
            if not isinstance(cause, BrokenError | DamagedError):
                raise
            # The disk has failed: the process ends, as a program of its own would.
            self.error = cause
            self._world.note(self.name, f"failed: {cause}")
            self._end(self.machine.kill)
        finally:
            report.over.set()
            over.set()

    def _hear(self, event: Notification) -> None:
        if isinstance(event, BrokerStateChanged):
            self._world.recorder.watch_terms()
            self._world.note(self.name, f"broker {event.state}")
        else:
            if isinstance(event, MessageDeadLettered | MessageExpired):
                self._world.recorder.lossy[event.queue] = event.kind
            facts = event.properties().items()
            told = " ".join(f"{name}={value!r}" for name, value in facts if name not in ("notification", "timestamp"))
            self._world.note(self.name, f"{event.kind} {told}", kept=False)

    def mend(self) -> None:
        """Let the disk work again, and let a paused node go on, or a dead one start."""
        self.machine.disk.faults.clear()
        self.machine.disk.capacity_bytes = math.inf
        if self.machine.state == "paused":
            self.machine.resume()
        elif self.state not in ("active", "starting", "waiting"):
            # It may be about to stop.
            self.kill()
            self.start()

    async def stop(self) -> list[str]:
        """Stop the broker cleanly, and end the process; returns which files and tasks the broker has left.

        Checkpoint: always.  Cancellation: the stop goes on.
        """
        if self.broker is None or self.machine.state != "running":
            return []
        self._stopped = self.broker.state == "active"
        await self.broker.stop()
        # Its last task ends in a turn of its own.
        await self._over.wait()
        left = self._left_over()
        self._world.recorder.history.final.nodes.left += left
        self._end(self.machine.kill)
        return left

    def kill(self) -> None:
        """End the process, as SIGKILL does."""
        self._end(self.machine.kill)

    def power_off(self) -> None:
        """Cut the power of the machine."""
        self._end(self.machine.power_off)

    def _end(self, fault: Callable[[], object]) -> None:
        fault()
        for task in self.tasks:
            task.killed()
        self._report.over.set()

    # -- tasks

    @contextmanager
    def _inside(self) -> Iterator[None]:
        token = DEFAULT_ENV.set(self.machine.env)
        try:
            yield
        finally:
            DEFAULT_ENV.reset(token)

    def spawn(self, function: Callable[..., Awaitable[Any]], arguments: tuple[Any, ...]) -> SpawnedTask:
        """Start a task of the test in the present life."""
        task = SpawnedTask(function, self.name)
        self.tasks.append(task)
        with self._inside():
            self.machine.spawn(task.run, function, arguments, name=task.name)
        return task

    def _left_over(self) -> list[str]:
        lines = [f"{self.name} has {self.machine.open_files} open files"] if self.machine.open_files else []
        return lines + [f"{self.name} has the task {task.name}" for task in tasks_of(self.machine.life)]

    # -- what it holds

    def view(self, name_of: dict[str, str]) -> NodeView:
        """Look at the node.  ``name_of``: the names of nodes by the names of their brokers."""
        view = view_of(self.broker, self.name, self.state, name_of)
        return attrs.evolve(view, stopped=self._stopped and view.state == "dead")
