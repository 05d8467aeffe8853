"""What takes many steps: between two of them everybody else has a turn."""

from __future__ import annotations

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
