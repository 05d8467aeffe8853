"""The simulator: a seed, nodes with their outside world, and a main task that decides on their faults.

``run_seed(seed, main)`` runs ``await main(simulation)`` on a clock that jumps, with the order of tasks, every
latency and every choice drawn from the seed, and the real world out of reach.  It returns a ``SimulationResult``
with the failure, if there was one, and a hash of everything that ran.  The same seed and the same code give the
same hash in every process.

The run ends when ``main`` does.  Its outcome is the verdict: what happens while tasks are cleared away afterwards
(the dead ones, too, whose ``finally`` blocks may run only then) changes nothing any more.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from functools import partial
from typing import Any, Final, Unpack

import attrs
import outcome
import trio

from meshq.errors import UsageError, invariant
from meshq.testing._conditions import (
    drop_what_was_abandoned,
    logging_as_it_was,
    passwords_hashed_once,
    without_collector,
)
from meshq.testing._node import Fabric, NodeOptions, SimNode
from meshq.testing._scheduler import AbandonedError, Life, Scheduler, SimClock, scheduled_by, slept_by_clocks, stacks
from meshq.testing._swarm import Swarm
from meshq.testing._tripwires import tripwires

#: Turns of the loop in which all tasks have to be gone once the verdict is taken.
CLEARING_TURNS_MAX: Final = 20_000

Main = Callable[["Simulation"], Awaitable[object]]
NetworkFactory = Callable[["Simulation"], Fabric]


class SimulationError(AssertionError):
    """A simulation cannot go on; the message has the stack of every task."""


class DeadlockError(SimulationError):
    """No task could run and no deadline was left."""


class SpinError(SimulationError):
    """Tasks kept running at one instant without disk, network or clock."""


class OvertimeError(SimulationError):
    """The main task was not done at the end of the time allowed."""


@attrs.frozen(kw_only=True)
class SimulationResult:
    """The end of a simulated run.  ``trace`` is equal for equal runs."""

    seed: int
    #: What the main task returned; None if it failed.
    value: Any
    failure: BaseException | None
    trace: int
    simulated_s: float
    turns: int
    #: Every fault and failpoint by name, and how often it happened.
    counters: dict[str, int] = attrs.field(repr=False)
    #: Tasks could not be ended and were dropped: one of them swallows cancellation, or waits behind a shield.
    abandoned: bool = False

    def check(self) -> SimulationResult:
        """Raise the failure, if there was one; else return this result."""
        if self.failure is not None:
            raise self.failure
        return self


class Simulation:
    """A run of ``run_seed``, as its main task sees it: nodes, network and chance.

    ``fabric`` is the network, ``swarm`` decides what is left to chance, ``nodes`` has each node by name.
    """

    def __init__(self, seed: int, *, duration_s: float = 60.0) -> None:
        self.seed = seed
        #: How long the workload is meant to last, in simulated seconds.
        self.duration_s = duration_s
        self.swarm: Swarm = Swarm(seed)
        self.clock: SimClock = SimClock(on_deadlock=self._deadlock, on_limit=self._late)
        self.scheduler: Scheduler = Scheduler(self.swarm.rng("order"), self.clock, on_stuck=self._stuck)
        self.fabric: Fabric | None = None
        self.nursery: trio.Nursery | None = None
        self.nodes: dict[str, SimNode] = {}
        self._failure: BaseException | None = None
        self._value: Any = None
        #: The verdict, once it is taken.
        self._result: SimulationResult | None = None
        self._scope = trio.CancelScope()
        self._wires = ExitStack()
        #: All tasks have ended.
        self._over = False

    # -- for the main task -----------------------------------------------------------------------------------

    def node(self, name: str, **options: Unpack[NodeOptions]) -> SimNode:
        """Return the node of that name; the first call makes the node, with these options, and starts it."""
        node = self.nodes.get(name)
        if node is None:
            node = self.nodes[name] = SimNode(self, name, **options)
        elif options:
            raise UsageError(f"node {name!r} exists: its options were given when it was made")
        return node

    def fail(self, failure: BaseException) -> None:
        """End the simulation with this failure; the first failure counts."""
        if self._failure is None and self._result is None:
            self._failure = failure
            self._scope.cancel()

    def counters(self) -> dict[str, int]:
        """Return how often each fault and failpoint has happened so far, by name, sorted."""
        counts = dict(self.swarm.counters)
        if self.fabric is not None:
            for kind, number in self.fabric.counters.items():
                counts[f"network.{kind}"] = number
        for node in self.nodes.values():
            for kind, number in node.disk.faults.counts.items():
                counts[kind] = counts.get(kind, 0) + number
        return dict(sorted(counts.items()))

    async def guard(self, life: Life, function: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]) -> None:
        """Run a task of a node.

        Checkpoint: as ``function``.  Cancellation: ends the task.
        """
        result = await outcome.acapture(function, *arguments)
        if isinstance(result, outcome.Error) and not life.dead:
            self.fail(result.error)

    # -- the run ---------------------------------------------------------------------------------------------

    async def run(self, main: Main, network: NetworkFactory | None, limit_s: float) -> None:
        """Run the main task, and clear away all others.

        Checkpoint: always.  Cancellation: not meant to be.
        """
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            if network is not None:
                self.fabric = network(self)
                self.fabric.call_at = self.clock.call_at
                nursery.start_soon(self.fabric.run)
            self._wires.enter_context(tripwires())
            self.clock.limit = limit_s
            with self._scope:
                result = await outcome.acapture(main, self)
            if isinstance(result, outcome.Value):
                self._value = result.value
            elif self._failure is None:
                self._failure = result.error
            self.conclude()
            logging.disable(logging.CRITICAL)
            for node in self.nodes.values():
                node.sever()
            self.scheduler.end(CLEARING_TURNS_MAX)
            nursery.cancel_scope.cancel()
        self._over = True

    def conclude(self) -> SimulationResult:
        """Return the result of the run; later events do not change it."""
        if self._result is None:
            self._wires.close()
            self._result = SimulationResult(
                seed=self.seed,
                value=self._value,
                failure=self._failure,
                trace=self.scheduler.trace,
                simulated_s=self.clock.now,
                turns=self.scheduler.turns,
                counters=self.counters(),
            )
        return self._result

    def _deadlock(self) -> bool:
        if not self._over:
            self._still(DeadlockError, "no task can run and there is nothing to wait for")
        return not self._over

    def _stuck(self) -> None:
        self._still(SpinError, f"the clock stands still at {self.clock.now} s while tasks run")

    def _late(self) -> None:
        self.fail(OvertimeError(f"the main task is not done after {self.clock.now} s\n{stacks()}"))

    def _still(self, kind: type[SimulationError], what: str) -> None:
        if self._failure is not None or self._result is not None:
            raise AbandonedError
        self.fail(kind(f"{what}\n{stacks()}"))


def run_seed(
    seed: int,
    main: Main,
    *,
    duration_s: float = 60.0,
    limit_s: float = 3600.0,
    network: NetworkFactory | None = None,
) -> SimulationResult:
    """Run ``await main(simulation)``; ``seed`` decides the order of tasks, each delay and each choice.

    ``duration_s`` is for the main task to read.  ``limit_s``: simulated seconds by which the main task must be done.
    ``network`` makes the network, for instance ``lambda simulation: MemoryNetwork(simulation.swarm.rng("net"))``.
    A failure inside is not raised: the result has the failure, and ``check()`` raises it.
    """
    with without_collector(), logging_as_it_was(), passwords_hashed_once():
        result = _run(Simulation(seed, duration_s=duration_s), main, network, limit_s)
        if result.abandoned:
            drop_what_was_abandoned(result.failure)
    if isinstance(result.failure, KeyboardInterrupt):
        raise result.failure
    return result


def _run(simulation: Simulation, main: Main, network: NetworkFactory | None, limit_s: float) -> SimulationResult:
    with scheduled_by(simulation.scheduler), slept_by_clocks():
        run = outcome.capture(partial(trio.run, simulation.run, main, network, limit_s, clock=simulation.clock))
    result = simulation.conclude()
    invariant(result.turns > 0, "trio did not ask the scheduler: its private names have changed")
    if isinstance(run, outcome.Error):
        if not isinstance(run.error.__cause__, AbandonedError):
            run.unwrap()
        result = attrs.evolve(result, abandoned=True)
    return result
