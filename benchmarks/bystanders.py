"""What else the machine did while something was measured."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from types import TracebackType
from typing import Self

#: A run in which others had more of the processors is a disturbed one.
FOREIGN_PERCENT_MAX = 10.0
STAT = Path("/proc/stat")
#: Of the first line of that file: user, nice, system, and what the host gave to others.  Interrupts are nobody's.
COLUMNS = (1, 2, 3, 8)


class Bystanders:
    """The share of the processors that was used by others than this process and the children that it has waited for."""

    def __init__(self) -> None:
        #: Of all processors, over the whole block.
        self.percent = 0.0
        self._before = (0.0, 0.0, 0.0)

    def __enter__(self) -> Self:
        self._before = _used()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        busy, own, now = (after - before for after, before in zip(_used(), self._before, strict=True))
        self.percent = max(0.0, 100 * (busy - own) / (now * (os.cpu_count() or 1)))


def _used() -> tuple[float, float, float]:
    """Seconds of all processors that were used, and of those by us; and what the clock says."""
    ticks = STAT.read_text().split("\n", 1)[0].split() if STAT.exists() else []
    busy = sum(int(ticks[at]) for at in COLUMNS) / os.sysconf("SC_CLK_TCK") if ticks else 0.0
    spent = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return busy, sum(one.ru_utime + one.ru_stime for one in spent), time.monotonic()
