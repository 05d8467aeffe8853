"""The clock of a simulated test: a ``MockClock`` that jumps, and alarms for network, disks and threads.

A test may bring a ``MockClock`` of its own (``autojump_clock``), and looks at that one.  Let to jump by itself it takes
a turn of the loop for every jump, and each alarm would need a task that sleeps until it is due: a third of all turns.
So the loop runs on the clock below, which has its time from the ``MockClock`` and, as the simulator's own clock does,
jumps and calls what is due when it is asked for the next deadline, which is just when no task can run.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from functools import partial

import trio
from trio.testing import MockClock

from meshq.testing._scheduler import uncancelled, waits_for_idle


class MockTime(trio.abc.Clock):
    """A clock with the time of a ``MockClock``, and alarms: the next deadline or alarm comes when no task can run."""

    #: Told to those who would keep tests from waiting in real time.
    simulated = True

    def __init__(self, clock: MockClock) -> None:
        self.clock: MockClock = clock
        #: What is to happen: (time, a number that keeps the order of asking, what).
        self._alarms: list[tuple[float, int, Callable[[], object]]] = []
        self._asked = 0

    # -- for network, disks and threads

    @property
    def now(self) -> float:
        """The seconds that the test has lasted."""
        return self.clock.current_time()

    def call_at(self, time: float, callback: Callable[[], object]) -> None:
        """Call back at ``time``, after all that was asked for that time before."""
        self._asked += 1
        heapq.heappush(self._alarms, (time, self._asked, callback))

    async def wait(self, seconds: float) -> None:
        """Sleep without a cancel scope.  Checkpoint: always.  Cancellation: is not noticed."""
        self.call_at(self.now + seconds, partial(trio.lowlevel.reschedule, trio.lowlevel.current_task()))
        await uncancelled()

    def advance(self, seconds: float) -> None:
        """Let time pass within a step, as when the caller blocks its thread and all other clocks go on."""
        self.clock.jump(seconds)

    # -- what trio asks of a clock

    def start_clock(self) -> None:
        """Nothing to start."""

    def current_time(self) -> float:
        """The time of the ``MockClock``."""
        return self.clock.current_time()

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Jump to the next deadline or alarm; asked by the run loop only when no task is runnable."""
        if waits_for_idle():
            return math.inf
        alarms, now = self._alarms, self.clock.current_time()
        following = min(deadline, alarms[0][0]) if alarms else deadline
        if following == math.inf:
            return math.inf
        if following > now:
            self.clock.jump(following - now)
            # The sum may round to less than what was asked for.
            while (now := self.clock.current_time()) < following:
                self.clock.jump(math.ulp(following))
        while alarms and alarms[0][0] <= now:
            heapq.heappop(alarms)[2]()
        return 0.0
