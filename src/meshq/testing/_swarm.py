"""The choices of a seed: which kinds of faults and failpoints are on, and how often each happens.

With every fault at its usual rate in every run, all runs look alike, and a bug that needs many of one kind and
none of another is never met.  So each seed switches a random half of the kinds on.  Each decision is drawn from
a generator of its own, named after what it decides: asking in another order changes nothing.
"""

from __future__ import annotations

import random
from typing import Final

#: How often a failpoint that is on takes the rare way, one of these by seed.
FAILPOINT_RATES: Final = (0.02, 0.1, 0.5)
#: Rates of those that would leave no time for anything else: each lost connection is dialled, and its session resumed.
LOWER_RATES: Final = {"broker.drop_connection": (0.01, 0.05, 0.2)}


class Swarm:
    """The choices of one seed: seeded generators, the kinds of faults that are on, and counters.

    ``counters`` has each fault and failpoint by name; 0 if it has not happened.
    """

    __slots__ = ("_failpoint", "_forced", "_on", "_share", "counters", "seed")

    def __init__(self, seed: int, *, share: float = 0.5) -> None:
        self.seed: int = seed
        self.counters: dict[str, int] = {}
        self._share = share
        self._on: dict[str, bool] = {}
        self._forced: dict[str, bool] = {}
        self._failpoint: dict[str, tuple[float, random.Random]] = {}

    def rng(self, purpose: str) -> random.Random:
        """Return a generator for one purpose; the same seed and purpose give the same numbers in each run."""
        return random.Random(f"{self.seed}/{purpose}")

    def force(self, kind: str, on: bool) -> None:
        """Switch a kind of fault on or off, instead of the seed."""
        self._forced[kind] = on
        self._on.pop(kind, None)
        self._failpoint.pop(kind.removeprefix("chaos."), None)

    def on(self, kind: str) -> bool:
        """Return whether this kind of fault is on in this seed."""
        known = self._on.get(kind)
        if known is None:
            known = self._forced.get(kind, self.rng(f"swarm/{kind}").random() < self._share)
            self._on[kind] = known
        return known

    def count(self, kind: str, number: int = 1) -> None:
        """Add to the counter of this kind; 0 makes the counter."""
        self.counters[kind] = self.counters.get(kind, 0) + number

    def failpoint(self, name: str) -> bool:
        """Return whether the failpoint of that name fails now; for ``Env.failpoint``."""
        point = self._failpoint.get(name)
        if point is None:
            rng = self.rng(f"chaos/{name}")
            rates = LOWER_RATES.get(name, FAILPOINT_RATES)
            rate = rng.choice(rates) if self.on(f"chaos.{name}") else 0.0
            point = self._failpoint[name] = (rate, rng)
            self.count(f"chaos.{name}", 0)
        rate, rng = point
        if not rate or rng.random() >= rate:
            return False
        self.count(f"chaos.{name}")
        return True


#: Openings of files that wait for a descriptor: a thread that opens hundreds would wait far beyond the fault's end.
WAITS_MAX: Final = 30


class DiskLatency:
    """Seconds that calls of a simulated disk take: a device with a speed of its own, and now and then a stall."""

    __slots__ = ("_rng", "_stall_rate", "_sync_s", "opening_s", "waited")

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        #: From a fast device with a battery to a slow one.
        self._sync_s = rng.choice((0.0001, 0.001, 0.01))
        self._stall_rate = rng.choice((0.0, 0.001, 0.02))
        #: For so long the first openings of existing files wait for a descriptor; and how often that was.
        self.opening_s: float = 0.0
        self.waited: int = 0

    def __call__(self, call: str, size: int) -> float:
        if call == "open" and self.opening_s and self.waited < WAITS_MAX:
            self.waited += 1
            return self.opening_s
        if call not in ("sync", "sync_directory"):
            return 0.00001 + size * 1e-9
        seconds = self._sync_s * (0.5 + self._rng.random())
        if self._stall_rate and self._rng.random() < self._stall_rate:
            seconds += 0.2 * self._rng.random()
        return seconds
