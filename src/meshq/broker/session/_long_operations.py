"""What takes many steps: between two of them everybody else has a turn."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from meshq.broker.ingress._fair_scheduler import CostlyScan, Owner
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun
from meshq.errors import MeshqError, NotActiveError


class FaultInWait(NamedTuple):
    """A job can't go on before the content of this run is here."""

    queue: Queue
    view: QueueRun


class DiskSpaceWait(NamedTuple):
    """A job can't go on before there is room on the disk for so many bytes, or is known to be none."""

    size_bytes: int


class FairTurnWait(NamedTuple):
    """A job does costly steps before it goes on, or just waits for its turn among what costs as much: users take turns,
    and then the keys of each.

    ``alive``: whether anybody still wants them.
    """

    owner: Owner
    key: Hashable
    costly: CostlyScan
    alive: Callable[[], bool] | None = None


class PendingMovesWait(NamedTuple):
    """A job can't go on before all moves from a queue are done that wait for filters, or for room on the disk, now."""

    queue: Queue


#: What a job waits for.
Needs = FaultInWait | DiskSpaceWait | FairTurnWait | PendingMovesWait
#: None after each step, what is answered at the end, or what is needed first.
Steps = Iterator[dict[str, Any] | Needs | None]


def at_once(values: dict[str, Any] | Steps) -> dict[str, Any]:
    """What the last of some steps gives, all of which are done now: for whoever is the same program, and waits.

    They need nothing but their turn.
    """
    if isinstance(values, dict):
        return values
    for step in values:
        if isinstance(step, dict):
            return step
        if isinstance(step, FairTurnWait):
            for _ in step.costly.steps:
                pass
    return {}


class LongOperation:
    """Steps, and whom to tell of their end."""

    __slots__ = ("_fail", "_steps", "_then")

    def __init__(
        self, steps: Steps, then: Callable[[dict[str, Any]], None], fail: Callable[[MeshqError], None]
    ) -> None:
        self._steps = steps
        self._then = then
        self._fail = fail

    def step(self, closing: str | None) -> bool | Needs:
        """Do the next step; whether it was the last, or what is needed before the next one.

        ``closing``: why there are no more.
        """
        try:
            if closing is not None:
                raise NotActiveError(closing, outcome="unknown")
            values = next(self._steps)
        except MeshqError as error:
            self._fail(error)
            return True
        if values is None or isinstance(values, Needs):
            return values or False
        self._then(values)
        return True
