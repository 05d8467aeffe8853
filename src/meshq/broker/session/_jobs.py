"""What takes many steps: between two of them everybody else has a turn."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun
from meshq.errors import MeshqError, NotActiveError


class Absent(NamedTuple):
    """A job can't go on before the content of this run is here."""

    queue: Queue
    view: QueueRun


class RoomOnDisk(NamedTuple):
    """A job can't go on before there is room on the disk for so many bytes, or is known to be none."""

    size_bytes: int


#: None after each step, what is answered at the end, or what is needed first.
Steps = Iterator[dict[str, Any] | Absent | RoomOnDisk | None]


class Job:
    """Steps, and whom to tell of their end."""

    __slots__ = ("_fail", "_steps", "_then")

    def __init__(
        self, steps: Steps, then: Callable[[dict[str, Any]], None], fail: Callable[[MeshqError], None]
    ) -> None:
        self._steps = steps
        self._then = then
        self._fail = fail

    def step(self, closing: str | None) -> bool | Absent | RoomOnDisk:
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
        if values is None or isinstance(values, (Absent, RoomOnDisk)):
            return values or False
        self._then(values)
        return True


class ByTurns:
    """Steps of many, of which one at a time is done; whose turn it was is the last one then.

    ``pursue`` begins a job.
    """

    def __init__(self, pursue: Callable[[Job], None]) -> None:
        self._pursue = pursue
        self._waiting: deque[tuple[Iterator[None], Callable[[], None]]] = deque()
        self._at_work = False

    def begin(self, steps: Iterator[None], then: Callable[[], None]) -> None:
        """Do some steps, and call ``then`` after the last; not at all once the node stops."""
        self._waiting.append((steps, then))
        if not self._at_work:
            self._at_work = True
            self._pursue(Job(self._steps(), _done, self._stopped))

    def _steps(self) -> Steps:
        # Whoever begins is in the middle of something: ``then`` must not come before ``begin`` has returned.
        yield None
        while self._waiting:
            steps, then = self._waiting.popleft()
            try:
                next(steps)
            except StopIteration:
                then()
            else:
                self._waiting.append((steps, then))
            yield None
        self._at_work = False
        yield {}

    def _stopped(self, error: MeshqError) -> None:
        self._waiting.clear()
        self._at_work = False


def _done(_: dict[str, Any]) -> None:
    """Nobody waits for the end of all."""
