"""What takes many steps: between two of them everybody else has a turn."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from meshq.errors import MeshqError, NotActiveError

#: None after each step, and what is answered at the end.
Steps = Iterator[dict[str, Any] | None]


class Job:
    """Steps, and whom to tell of their end."""

    __slots__ = ("_fail", "_steps", "_then")

    def __init__(
        self, steps: Steps, then: Callable[[dict[str, Any]], None], fail: Callable[[MeshqError], None]
    ) -> None:
        self._steps = steps
        self._then = then
        self._fail = fail

    def step(self, closing: str | None) -> bool:
        """Do the next step; whether it was the last.  ``closing``: why there are no more."""
        try:
            if closing is not None:
                raise NotActiveError(closing, outcome="unknown")
            values = next(self._steps)
        except MeshqError as error:
            self._fail(error)
            return True
        if values is None:
            return False
        self._then(values)
        return True
