"""The time of day."""

from __future__ import annotations

import time

from meshq.abc import WallClock

NANOSECONDS_PER_MS = 1_000_000


class SystemClock(WallClock):
    """The clock of this host, which jumps when the system time is set."""

    __slots__ = ()

    def now_ms(self) -> int:
        return time.time_ns() // NANOSECONDS_PER_MS
