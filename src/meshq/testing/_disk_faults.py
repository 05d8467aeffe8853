"""What can go wrong with a simulated disk, chosen by a test or by chance, and how often it did."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import attrs

Call = Literal[
    "open",
    "create",
    "read",
    "write",
    "truncate",
    "sync",
    "lock",
    "replace",
    "remove",
    "names",
    "make_directory",
    "sync_directory",
]


#: What can happen to a disk besides failing calls, which are counted as ``disk.<call>.<errno name>``.
KINDS: Final = (
    "disk.bit_flip",
    "disk.dropped_sector",
    "disk.full",
    "disk.fuse",
    "disk.kill",
    "disk.lost_name",
    "disk.lost_sector",
    "disk.power_loss",
    "disk.short_write",
    "disk.stale",
    "disk.torn",
)


class SimulatedCrash(BaseException):
    """The disk call that was under way when its node died; nothing of that node may act any more.

    Not an ``Exception``: no handler of the code under test is meant to see it.
    """


class Operation(NamedTuple):
    """One disk call that was made."""

    number: int
    call: Call
    path: str
    offset: int
    size: int


@attrs.define
class Injection:
    """An error that the test asked for."""

    call: Call
    error: int
    path: str
    skip: int
    times: float


@attrs.define
class Fuse:
    """What happens right after the last of ``calls`` further calls."""

    calls: int
    blow: Callable[[], object] | int
    #: Only these calls count; empty: all.
    only: frozenset[Call]


class DiskFaults:
    """The faults of one disk.

    ``counts`` has how often each fault happened: all of ``KINDS``, and errors once they were met.
    """

    __slots__ = ("counts", "fuse", "injections", "rates", "rng", "short_write_rate")

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.injections: list[Injection] = []
        self.rates: dict[Call, tuple[int, float]] = {}
        self.short_write_rate = 0.0
        self.fuse: Fuse | None = None

    def count(self, kind: str, number: int = 1) -> None:
        """Note that a fault happened."""
        self.counts[kind] = self.counts.get(kind, 0) + number

    def inject(self, call: Call, error: int = errno.EIO, *, path: str = "", skip: int = 0, times: float = 1) -> None:
        """Let ``call`` fail with ``error`` after ``skip`` more that succeed, ``times`` times (infinity: for ever).

        ``path``: only for paths that contain it.
        """
        self.injections.append(Injection(call, error, path, skip, times))

    def rate(self, call: Call, error: int, probability: float) -> None:
        """Let each ``call`` fail with ``error`` with this probability; 0 ends it."""
        if probability:
            self.rates[call] = (error, probability)
        else:
            self.rates.pop(call, None)

    def clear(self) -> None:
        """No more faults; what is counted stays."""
        self.injections.clear()
        self.rates.clear()
        self.short_write_rate = 0.0
        self.fuse = None

    def error_for(self, call: Call, path: str) -> int:
        """The error with which this call fails, or 0."""
        if not (self.injections or self.rates):
            return 0
        error = 0
        for injection in self.injections:
            if injection.call == call and injection.path in path:
                if injection.skip:
                    injection.skip -= 1
                elif injection.times > 0 and not error:
                    injection.times -= 1
                    error = injection.error
        self.injections = [i for i in self.injections if i.times > 0]
        if not error and call in self.rates:
            number, probability = self.rates[call]
            error = number if self.rng.random() < probability else 0
        if error:
            self.count(f"disk.{call}.{errno.errorcode[error]}")
        return error

    def burn(self, call: Call) -> Callable[[], object] | int | None:
        """Count a call against the fuse; what it does if this was the last one."""
        fuse = self.fuse
        if fuse is None or (fuse.only and call not in fuse.only):
            return None
        fuse.calls -= 1
        if fuse.calls > 0:
            return None
        self.fuse = None
        self.count("disk.fuse")
        return fuse.blow


def os_error(number: int, path: str) -> OSError:
    """The error as the operating system gives it; its class follows from its number."""
    return OSError(number, os.strerror(number), path)
