"""The time of a simulated test: a clock of trio that jumps, and alarms for network, disks and threads.

The simulator's own clock calls alarms without a task.  A test may bring a ``MockClock`` of its own, though
(``autojump_clock``), and programs under test look at ``trio.lowlevel.current_clock()``; so here it is a ``MockClock``,
and one task of the harness sleeps until the next alarm.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial

import trio
from trio.testing import MockClock

from meshq.testing._scheduler import uncancelled


class MockTime:
    """Alarms on a ``MockClock``, which jumps from one deadline to the next."""

    def __init__(self, clock: MockClock) -> None:
        clock.autojump_threshold = 0
        self.clock: MockClock = clock
        #: What is to happen: (time, a number that keeps the order of asking, what).
        self._alarms: list[tuple[float, int, Callable[[], object]]] = []
        self._asked = 0
        self._next = math.inf
        self._scope: trio.CancelScope | None = None

    @property
    def now(self) -> float:
        """The seconds that the test has lasted."""
        return self.clock.current_time()

    def call_at(self, time: float, callback: Callable[[], object]) -> None:
        """Call back at ``time``, after all that was asked for that time before."""
        self._asked += 1
        heapq.heappush(self._alarms, (time, self._asked, callback))
        if time < self._next:
            self._next = time
            if self._scope is not None:
                self._scope.deadline = time

    async def wait(self, seconds: float) -> None:
        """Sleep without a cancel scope.  Checkpoint: always.  Cancellation: is not noticed."""
        self.call_at(self.now + seconds, partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))
        await uncancelled()

    def advance(self, seconds: float) -> None:
        """Let time pass within a step, as when the caller blocks its thread and all other clocks go on."""
        self.clock.jump(seconds)

    async def run(self) -> None:
        """Call the alarms that are due, until cancelled.

        Checkpoint: always.  Cancellation: what is not due yet stays.
        """
        alarms = self._alarms
        while True:
            while alarms and alarms[0][0] <= self.clock.current_time():
                heapq.heappop(alarms)[2]()
            self._next = alarms[0][0] if alarms else math.inf
            with trio.CancelScope(deadline=self._next) as self._scope:
                await trio.sleep_forever()
