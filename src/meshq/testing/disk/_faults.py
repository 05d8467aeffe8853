"""The faults of a simulated disk, chosen by a test or by chance, and their counters."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable
from typing import Final, Literal, NamedTuple

import attrs

DiskCall = Literal[
    "open",
    "create",
    "read",
    "write",
    "truncate",
    "sync",
    "lock",
    "replace",
    "move_directory",
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
    """The power was cut, or the process killed, during a disk call of that process.

    Not an ``Exception``, so that no handler of the code under test goes on after the crash.
    """


class DiskOperation(NamedTuple):
    """A call that a simulated disk has carried out; ``SimDisk.watch`` gets each of them."""

    number: int
    call: DiskCall
    path: str
    offset: int
    size: int


@attrs.define
class Injection:
    """An error that the test asked for."""

    call: DiskCall
    error: int
    path: str
    skip: int
    times: float


@attrs.define
class Fuse:
    """An action that follows the last of ``calls`` further calls."""

    calls: int
    blow: Callable[[], object] | int
    #: Only these calls count; empty: all.
    only: frozenset[DiskCall]
    #: Only the calls of this process count; None: all.
    of: object | None = None


class DiskFaults:
    """The faults of one simulated disk.

    ``counts`` says how often each kind of fault has happened.
    """

    __slots__ = ("counts", "fuse", "injections", "rates", "rng", "short_write_rate")

    def __init__(self, rng: random.Random) -> None:
        self.rng: random.Random = rng
        self.counts: dict[str, int] = dict.fromkeys(KINDS, 0)
        self.injections: list[Injection] = []
        self.rates: dict[DiskCall, tuple[int, float]] = {}
        self.short_write_rate: float = 0.0
        self.fuse: Fuse | None = None

    def count(self, kind: str, number: int = 1) -> None:
        """Count a fault that has happened."""
        self.counts[kind] = self.counts.get(kind, 0) + number

    def inject(
        self, call: DiskCall, error: int = errno.EIO, *, path: str = "", skip: int = 0, times: float = 1
    ) -> None:
        """Let the calls ``call`` fail with ``error``: the next ``times`` calls after ``skip`` more that succeed.

        ``times=math.inf``: all of them.  ``path``: only calls whose path contains this text.
        """
        self.injections.append(Injection(call, error, path, skip, times))

    def rate(self, call: DiskCall, error: int, probability: float) -> None:
        """Let each call ``call`` fail with ``error`` at this probability; 0 ends that."""
        if probability:
            self.rates[call] = (error, probability)
        else:
            self.rates.pop(call, None)

    def clear(self) -> None:
        """Drop the faults that have not happened yet; ``counts`` stays."""
        self.injections.clear()
        self.rates.clear()
        self.short_write_rate = 0.0
        self.fuse = None

    def error_for(self, call: DiskCall, path: str) -> int:
        """Return the number of the error with which this call fails, or 0."""
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

    def burn(self, call: DiskCall, caller: object) -> Callable[[], object] | int | None:
        """Count a call of a process against the fuse; return the action of the fuse if this was the last call."""
        fuse = self.fuse
        if fuse is None or (fuse.only and call not in fuse.only) or fuse.of not in (None, caller):
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
