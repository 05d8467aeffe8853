"""The time of a simulation, and the time of day and the randomness of a simulated node."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Protocol

import trio

from meshq.abc import Entropy, WallClock

#: The day on which every simulation begins, in seconds since 1970: an arbitrary recent one.
EPOCH_S = 1_700_000_000


class VirtualClock(Protocol):
    """The time of a simulation, as its network, disks and threads use it."""

    @property
    def now(self) -> float:
        """The seconds that the simulation has lasted."""

    def call_at(self, time: float, callback: Callable[[], object]) -> None:
        """Call back at ``time``, outside of every node."""

    async def wait(self, seconds: float) -> None:
        """Sleep without a cancel scope.  Checkpoint: always.  Cancellation: is not noticed."""

    def advance(self, seconds: float) -> None:
        """Let time pass within a step, as when the caller blocks its thread and all other clocks go on."""


class SimWallClock(WallClock):
    """A wall clock that follows trio's clock, plus ``offset_s``, which a test may change at any moment."""

    __slots__ = ("offset_s",)

    def __init__(self, offset_s: float = 0.0) -> None:
        self.offset_s: float = offset_s

    def now_ms(self) -> int:
        return int((EPOCH_S + self.offset_s + trio.current_time()) * 1000)


class SimEntropy(Entropy):
    """Randomness for an ``Env`` that is the same in each run: drawn from a seeded generator."""

    __slots__ = ("_rng",)

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def token(self, size: int) -> bytes:
        return self._rng.randbytes(size)

    def generator(self) -> random.Random:
        return random.Random(self._rng.getrandbits(64))
