"""Recovering in every way that can happen: once, twice, and after a crash at each step inside recovery."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable, Iterator

import outcome

from meshq.abc import Disk
from meshq.testing._disk import SimDisk
from meshq.testing._disk_faults import SimulatedCrash
from meshq.testing._history import History

Recover = Callable[[Disk], Awaitable[object]]


async def record_recoveries(
    history: History, subject: str, disk: SimDisk, recover: Recover, *, images: bool = False
) -> int:
    """Recover copies of ``disk`` in every way and record the states for Q15; returns how many ways there were.

    ``recover`` gets a disk and returns what it found there, in a form that can be compared; whatever it leaves
    open is closed as by SIGKILL.  Crashes are after each of its disk calls: by SIGKILL, by a power loss, and with
    ``images`` by every power loss that is possible there.  ``disk`` itself isn't changed.

    Checkpoint: as ``recover``.
    Cancellation: nothing is left but what was recorded.
    Raises: what ``recover`` raises where no crash was made.
    """
    first = disk.copy()
    history.recovered(subject, "once", await recover(first))
    first.kill()
    history.recovered(subject, "twice", await recover(first))
    ways = 2
    for crash in ("kill", "power loss"):
        calls = 1
        while (crashed := await _crash_inside(disk, recover, calls)) is not None:
            for left in _left_by(crash, crashed, calls, images):
                history.recovered(subject, f"after a {crash} at its disk call {calls}", await recover(left))
                ways += 1
            calls += 1
    return ways


def _left_by(crash: str, disk: SimDisk, calls: int, images: bool) -> Iterator[SimDisk]:
    if crash == "power loss" and images:
        yield from disk.crash_images()
    elif crash == "power loss":
        disk.power_loss(random.Random(calls))
        yield disk
    else:
        yield disk


async def _crash_inside(disk: SimDisk, recover: Recover, calls: int) -> SimDisk | None:
    """A disk as it is right after that many calls of a recovery; None if it makes fewer."""
    victim = disk.copy()
    taken: list[SimDisk] = []

    def blow() -> None:
        taken.append(victim.copy())
        victim.kill()

    victim.fuse(calls, blow)
    result = await outcome.acapture(recover, victim)
    if not taken:
        result.unwrap()
        return None
    if isinstance(result, outcome.Error) and not _is_crash(result.error):
        result.unwrap()
    return taken[0]


def _is_crash(error: BaseException) -> bool:
    """Whether this is what the crash caused: itself, what a dead disk answers, or an error of ours after that."""
    if isinstance(error, BaseExceptionGroup):
        return all(_is_crash(inner) for inner in error.exceptions)
    causes: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in causes:
        causes.append(cause)
        cause = cause.__cause__ or cause.__context__
    return any(isinstance(each, SimulatedCrash | OSError) for each in causes)
