"""Long operations: done in many steps, between which other work is done."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any, NamedTuple

from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun
from meshq.broker.work._fair_scheduler import CostlyScan, Owner
from meshq.errors import MeshqError, NotActiveError


class FaultInWait(NamedTuple):
    """The operation waits for the content of a paged run."""

    queue: Queue
    view: QueueRun


class DiskSpaceWait(NamedTuple):
    """The operation waits for disk space, or for the answer that there is none."""

    size_bytes: int


class FairTurnWait(NamedTuple):
    """The operation waits for its turn in the fair scheduler, or for costly filters that are asked there.

    ``alive``: whether the operation is still wanted.
    """

    owner: Owner
    key: Hashable
    costly: CostlyScan
    alive: Callable[[], bool] | None = None


class PendingMovesWait(NamedTuple):
    """The operation waits for all moves of a queue that are pending now."""

    queue: Queue


class AnswerWait(NamedTuple):
    """The operation waits for the answer of another node, which has a bound of its own.

    ``begin`` is called once, with the function to call when the answer, or why there is none, is there.
    """

    begin: Callable[[Callable[[], None]], None]


#: The values of an answer, by name.
Values = dict[str, Any]
#: The reasons for which an operation waits.
Needs = FaultInWait | DiskSpaceWait | FairTurnWait | PendingMovesWait | AnswerWait
#: Yields None after each step, the reason to wait, or the result at the end.
Steps = Iterator[Values | Needs | None]


def at_once(values: Values | Steps) -> Values:
    """Do all steps now and return the result: for calls of the same program, whose steps wait only for their turn."""
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
    """An operation of many steps, and the functions to call with its result or error."""

    __slots__ = ("_fail", "_steps", "_then")

    def __init__(self, steps: Steps, then: Callable[[Values], None], fail: Callable[[MeshqError], None]) -> None:
        self._steps = steps
        self._then = then
        self._fail = fail

    def step(self, closing: str | None) -> bool | Needs:
        """Do the next step; return True if it was the last, or the reason to wait before the next one.

        ``closing``: why the node does no more steps.
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
