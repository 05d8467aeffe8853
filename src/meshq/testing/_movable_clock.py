"""A clock for tests that moves as fast as a test likes: sixty seconds of waiting take milliseconds.

Jumping over the sixty seconds at once would make every timeout, ping and back-off in between due at the same moment,
in an order that never happens.  So the clock goes from one deadline to the next: whenever a loop has nothing to do,
time goes on to what the loop waits for, as far as the test has moved it.  Apart from that it goes as the real one.
"""

from __future__ import annotations

import math
import threading
import time
from contextlib import suppress
from typing import Final, TypedDict, Unpack

import attrs
import trio

from meshq.abc import Datagrams, Disk, Entropy, Env, Network, Programs, Threads, Tls, WallClock
from meshq.env import real_env
from meshq.errors import SettingsError

#: For so long a loop has nothing to do before time goes on: others may be about to send something to it.
IDLE_S: Final = 0.002


class _Wall(WallClock):
    """The time of day by a movable clock."""

    def __init__(self, clock: MovableClock) -> None:
        self._clock = clock

    def now_ms(self) -> int:
        return int(self._clock.time_of_day() * 1000)


class EnvParts(TypedDict, total=False):
    """The parts of an ``Env`` beside its clocks."""

    disk: Disk
    threads: Threads
    network: Network
    datagrams: Datagrams
    tls: Tls
    entropy: Entropy
    memory_bytes: int
    descriptors: int
    host: str
    pid: int
    programs: Programs


class MovableClock(trio.abc.Clock):
    """The clock of brokers and clients under test, which the test moves forward: ``clock.advance(60)``.

    ``env=clock.env()`` gives it to brokers and clients of ``meshq.blocking`` and ``meshq.aio``; on trio the test itself
    runs on it, too: ``trio.run(test, clock=clock)``.  Delays, redelivery, expiry, timeouts and timestamps all follow.
    Any thread may call it.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tokens: list[trio.lowlevel.TrioToken] = []
        self._began = time.monotonic()
        self._time_of_day = time.time()
        # By how much it is ahead of the real time, and how far it is to go on beyond that.
        self._ahead = 0.0
        self._left = 0.0
        self._stepped = self._began

    def env(self, **parts: Unpack[EnvParts]) -> Env:
        """The real outside world with this clock in it.  ``parts``: what else is to be another."""
        return attrs.evolve(real_env(), clock=self, wall=_Wall(self), **parts)

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass as soon as the loops on this clock have nothing to do; returns at once.

        Raises:
            SettingsError: ``seconds`` is no number from 0.
        """
        if type(seconds) not in (int, float) or not 0 <= seconds < math.inf:
            raise SettingsError("seconds", seconds, "a number from 0")
        with self._lock:
            self._left += seconds
            tokens = list(self._tokens)
        for token in tokens:
            self._wake(token)

    def time_of_day(self) -> float:
        """Seconds since 1970 on this clock."""
        return self._time_of_day + self.current_time()

    # -- what trio asks of a clock

    def start_clock(self) -> None:
        """A loop begins."""
        with self._lock:
            self._tokens.append(trio.lowlevel.current_trio_token())

    def current_time(self) -> float:
        """Seconds since the clock was made."""
        return time.monotonic() - self._began + self._ahead

    def deadline_to_sleep_time(self, deadline: float) -> float:
        """Seconds of real time until ``deadline``: a loop has nothing else to do until then."""
        with self._lock:
            wait = deadline - self.current_time()
            if not self._left or wait <= 0:
                return wait
            idle = time.monotonic() - self._stepped
            if idle < IDLE_S:
                return min(wait, IDLE_S - idle)
            step = min(self._left, wait)
            self._ahead += step
            self._left -= step
            self._stepped = time.monotonic()
            others = list(self._tokens)
        # What they wait for may be due now.
        for token in others:
            self._wake(token)
        return max(0.0, wait - step) if step < wait else 0.0

    def _wake(self, token: trio.lowlevel.TrioToken) -> None:
        with suppress(trio.RunFinishedError):
            token.run_sync_soon(_nothing)
            return
        with self._lock, suppress(ValueError):
            self._tokens.remove(token)


def _nothing() -> None:
    pass
