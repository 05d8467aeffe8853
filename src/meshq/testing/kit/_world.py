"""The world of one simulated test: a seed, a clock, a network, and the nodes that stand on it.

The problem.  ``run_seed`` owns its run: it starts trio, and the real world is out of reach inside.  In a test of a user
pytest-trio starts trio, with fixtures of others in it, and the user's code may look at the time of day.  The world
here is laid around what pytest-trio runs: it decides the order of tasks, brings the network, and clears away the dead
when the test and its fixtures are done.

The choice.  Nodes, disks, network and scheduler are those of the simulator, so that a kill is a kill: no task of the
node takes another step, not even in ``finally``.  That needs names that are private to trio; without them no world is
made, and the error says so.  What a test starts without ``env=`` gets its outside from a context variable: in the
test the host ``test``, in a task of a node that node's.

What does not work.  Severing a node's environment alone, which needs no private name: the node's own code, and the
user's code beside it, goes on in memory after its death, and may change what the test looks at.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final

import attrs
import outcome
import trio
from trio.testing import MockClock

from meshq.env import DEFAULT_ENV
from meshq.errors import UsageError
from meshq.testing._network import MemoryNetwork
from meshq.testing._network_link import NetworkSettings
from meshq.testing._node import SimNode
from meshq.testing._scheduler import Life, Scheduler, missing_names, stacks
from meshq.testing._simulation import CLEARING_TURNS_MAX, OvertimeError, SimulationError, SpinError
from meshq.testing._swarm import Swarm
from meshq.testing.disk._disk import SimDisk
from meshq.testing.history._recorder import Recorder, recorded_by
from meshq.testing.kit._fault_plan import TEST_HOST
from meshq.testing.kit._mock_time import MockTime
from meshq.testing.kit._own_frames import trimmed, waiting_lines
from meshq.testing.kit._real_world import real_world_refused

#: A test that is not done after so many simulated seconds waits for what never comes, unless it sets another limit.
TEST_S_MAX: Final = 7_200.0
#: Events that a report shows.
EVENTS_SHOWN_MAX: Final = 20
#: Without faults that a test asks for, all datagrams arrive once.
NETWORK: Final = NetworkSettings(datagram_lost_chance=0.0, datagram_doubled_chance=0.0)


@attrs.frozen
class WorldEvent:
    """An event of a simulated test: simulated seconds, the node, and a text."""

    at_s: float
    node: str
    text: str

    def __str__(self) -> str:
        return f"{self.at_s:12.6f}  {self.node:<8}  {self.text}"


class SimulatedWorld:
    """The network, the clock and the nodes of one test.  ``seed`` decides what is left to chance."""

    def __init__(
        self,
        seed: int,
        clock: MockClock,
        tell: Callable[[WorldEvent], object] | None = None,
        *,
        limit_s: float = TEST_S_MAX,
    ) -> None:
        missing = missing_names()
        if missing:
            raise UsageError(f"this version of trio, {trio.__version__}, can't be simulated: no {', '.join(missing)}")
        self.seed: int = seed
        self.clock: MockTime = MockTime(clock)
        # No failpoint of meshq fails: the faults are those of the test.
        self.swarm: Swarm = Swarm(seed, share=0.0)
        self.scheduler: Scheduler = Scheduler(self.swarm.rng("order"), self.clock, on_stuck=self._stuck)
        self.fabric: MemoryNetwork = MemoryNetwork(self.swarm.rng("network"), NETWORK)
        self.fabric.call_at = self.clock.call_at
        self.nursery: trio.Nursery | None = None
        self.nodes: dict[str, SimNode] = {}
        #: What clients of the test have done.
        self.recorder: Recorder = Recorder(lambda: self.clock.now)
        #: The newest events last.
        self.events: list[WorldEvent] = []
        #: What clusters and brokers that were closed looked like at the end, a line each.
        self.reports: list[str] = []
        #: Names of clusters and brokers of this world, so that each host has a name of its own.
        self.generations: int = 0
        #: The first error of a task that fails the test.
        self.failure: BaseException | None = None
        #: Errors of tasks count no more: the test is over.
        self.closing: bool = False
        #: What became of the test, once it is over.
        self.result: outcome.Outcome[object] | None = None
        # Called with each event, also with those that only a trace has.
        self._tell = tell
        self._limit_s = limit_s
        self._scope = trio.CancelScope()

    # -- for clusters, brokers and fixtures

    def reseed(self, seed: int) -> None:
        """Draw from another seed all that is left to chance from now on."""
        self.seed = seed
        self.swarm = Swarm(seed, share=0.0)
        self.scheduler.reseed(self.swarm.rng("order"))
        self.fabric.rng = self.swarm.rng("network")

    def machine(self, name: str, disk: SimDisk | None = None) -> SimNode:
        """Make a machine, and start its first life; ``disk``: a disk elsewhere, which others may share."""
        node = self.nodes[name] = SimNode(self, name, disk=disk, remote_disk=disk is not None)
        return node

    def note(self, node: str, text: str, *, kept: bool = True) -> None:
        """Write an event down; without ``kept`` only a trace has it."""
        event = WorldEvent(self.clock.now, node, text)
        if kept:
            self.events.append(event)
        if self._tell is not None:
            self._tell(event)

    def fail(self, failure: BaseException) -> None:
        """Fail the test; the first failure counts."""
        if self.failure is None and not self.closing:
            self.failure = failure
            self._scope.cancel()

    async def guard(self, life: Life, function: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]) -> None:
        """Run a task of a node.

        Checkpoint: as ``function``.  Cancellation: ends the task.
        """
        result = await outcome.acapture(function, *arguments)
        if isinstance(result, outcome.Error) and not life.dead:
            self.fail(result.error)

    def start(self, function: Callable[..., Awaitable[object]], *arguments: Any) -> None:
        """Start a task of the test, whose error fails the test."""
        assert self.nursery is not None
        self.nursery.start_soon(self._watched, function, arguments, name=function)

    async def _watched(self, function: Callable[..., Awaitable[object]], arguments: tuple[Any, ...]) -> None:
        result = await outcome.acapture(function, *arguments)
        if isinstance(result, outcome.Error):
            self.fail(result.error)

    def last_events(self) -> list[str]:
        """The newest events, one line each."""
        return [str(event) for event in self.events[-EVENTS_SHOWN_MAX:]]

    # -- the run

    async def run(self, test: Callable[[], Awaitable[object]]) -> None:
        """Run a test with its fixtures in this world, and clear away its tasks.

        Checkpoint: always.  Cancellation: ends the test.
        """
        self.clock.call_at(self.clock.now + self._limit_s, self._late)
        async with trio.open_nursery() as nursery:
            self.nursery = nursery
            DEFAULT_ENV.set(self.machine(TEST_HOST).env)
            with self._scope, real_world_refused(), recorded_by(self.recorder):
                self.result = await outcome.acapture(test)
            self.closing = True
            logging.disable(logging.CRITICAL)
            for node in self.nodes.values():
                node.sever()
            self.scheduler.end(CLEARING_TURNS_MAX)
            nursery.cancel_scope.cancel()

    def verdict(self) -> None:
        """Raise the error of a task of the world, or else the error of the test."""
        __tracebackhide__ = True
        if self.failure is not None:
            raise trimmed(self.failure)
        if isinstance(self.result, outcome.Error):
            # pytest-trio runs each test in a nursery.
            error = self.result.error
            if isinstance(error, BaseExceptionGroup) and len(error.exceptions) == 1:
                error = error.exceptions[0]
            raise trimmed(error)

    def _stuck(self) -> None:
        self._give_up(SpinError, f"the clock stands still at {self.clock.now:g} s while tasks run")

    def _late(self) -> None:
        self._give_up(OvertimeError, f"the test is not done after {self.clock.now:g} simulated seconds")

    def _give_up(self, kind: type[SimulationError], text: str) -> None:
        """Fail with where the test's own code waits; a trace has all stacks, which are hundreds of lines."""
        if self._tell is not None:
            for line in stacks().splitlines():
                self.note("stack", line, kept=False)
        self.fail(kind("\n".join([text, *waiting_lines()])))
