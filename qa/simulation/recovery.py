"""Recovering in every way that can happen: once, twice, and after a crash at each step inside recovery."""

from __future__ import annotations

import math
import random
from collections.abc import Awaitable, Callable, Iterator

import attrs
import trio

from meshq.abc import Env
from meshq.testing import SimDisk, SimNode, Simulation
from meshq.testing.history._history import History

Recover = Callable[[Env], Awaitable[object]]


async def record_recoveries(
    simulation: Simulation,
    history: History,
    subject: str,
    disk: SimDisk,
    recover: Recover,
    *,
    crashes: float = math.inf,
    images: bool = False,
) -> int:
    """Recover copies of ``disk`` in every way and record the states for Q15; returns how many ways there were.

    ``recover`` is run as the only task of a node and returns what it found, in a form that can be compared.
    Crashes are after each of its disk calls, or after about ``crashes`` of them, evenly spread: by SIGKILL, by a
    power loss, and with ``images`` by every power loss that is possible there.  ``disk`` itself isn't changed.  An
    error of ``recover`` fails the simulation.

    Checkpoint: always.
    Cancellation: what was recorded stays.
    """
    trials = _Trials(simulation, recover, subject)
    node, state = await trials.run(disk.copy())
    history.final.recovered(subject, "once", state)
    calls_made = node.disk.calls
    history.final.recovered(subject, "twice", (await trials.run(node.disk))[1])
    ways = 2
    spread = max(1, int(calls_made // crashes)) if crashes else 0
    for crash in ("kill", "power loss") if crashes else ():
        calls = 1
        while (crashed := await trials.crash(disk.copy(), calls)) is not None:
            for left in _left_by(crash, crashed, calls, images):
                history.final.recovered(
                    subject, f"after a {crash} at its disk call {calls}", (await trials.run(left))[1]
                )
                ways += 1
            calls += spread
    return ways


def _left_by(crash: str, disk: SimDisk, calls: int, images: bool) -> Iterator[SimDisk]:
    if crash == "power loss" and images:
        yield from disk.crash_images()
    else:
        if crash == "power loss":
            disk.power_loss(random.Random(calls))
        yield disk


@attrs.define
class _Trials:
    """Nodes of which each recovers once.  Those that crash are held by the scheduler, so nothing unwinds."""

    simulation: Simulation
    recover: Recover
    subject: str
    count: int = 0

    def _node(self, disk: SimDisk) -> SimNode:
        self.count += 1
        return SimNode(self.simulation, f"{self.subject}/{self.count}", disk=disk)

    async def run(self, disk: SimDisk) -> tuple[SimNode, object]:
        """Recover to the end; return the node, which is dead then, and the recovered state."""
        node = self._node(disk)
        done, found = trio.Event(), list[object]()
        node.spawn(self._recover, node, found, done)
        await done.wait()
        node.kill()
        return node, found[0]

    async def crash(self, disk: SimDisk, calls: int) -> SimDisk | None:
        """The disk as it is right after that many calls of a recovery; None if it makes fewer."""
        node = self._node(disk)
        done, taken = trio.Event(), list[SimDisk]()

        def blow() -> None:
            taken.append(disk.copy())
            node.kill()
            done.set()

        disk.fuse(calls, blow)
        node.spawn(self._recover, node, [], done)
        await done.wait()
        disk.faults.fuse = None
        node.kill()
        return taken[0] if taken else None

    async def _recover(self, node: SimNode, found: list[object], done: trio.Event) -> None:
        found.append(await self.recover(node.env))
        done.set()
