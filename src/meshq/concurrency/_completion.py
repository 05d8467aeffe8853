"""``Completion``: the result of an operation, for one waiting task; cheaper than a ``trio.Event``.

A ``trio.Event`` and a cancel scope cost more than all the rest of a send, so a task that waits is parked directly, and
one timer of the client watches all deadlines.
"""

from __future__ import annotations

from typing import Any, Final

import trio

_PENDING: Final = object()


class Completion:
    """The result of an operation, a value or an error, and the task that waits for the result."""

    __slots__ = ("_error", "_task", "_value", "since")

    def __init__(self) -> None:
        self._value: Any = _PENDING
        self._error: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None
        #: When the wait that a timeout bounds began; seconds of trio's clock.
        self.since: float = 0.0

    @property
    def done(self) -> bool:
        """Whether the operation has completed or failed."""
        return self._value is not _PENDING or self._error is not None

    @property
    def has_waiter(self) -> bool:
        """Whether a task is waiting."""
        return self._task is not None

    def succeed(self, value: Any = None) -> None:
        """Complete the operation with ``value``; later results are ignored."""
        if self._value is _PENDING and self._error is None:
            self._value = value
            task, self._task = self._task, None
            if task is not None:
                trio.lowlevel.reschedule(task)

    def fail(self, error: BaseException) -> None:
        """Fail the operation with ``error``; later results are ignored."""
        if self._value is _PENDING and self._error is None:
            self._error = error
            task, self._task = self._task, None
            if task is not None:
                trio.lowlevel.reschedule(task)

    async def wait(self) -> Any:
        """Wait for the operation; return its value or raise its error.

        Checkpoint: always.  Cancellation: the operation goes on.
        """
        await self.wait_done()
        return self.result()

    async def wait_done(self) -> None:
        """Wait until the operation has completed or failed.

        Checkpoint: always.  Cancellation: the operation goes on.
        """
        if self._value is _PENDING and self._error is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            await trio.lowlevel.checkpoint()

    @property
    def failed(self) -> bool:
        """Whether the operation has failed."""
        return self._error is not None

    def result(self) -> Any:
        """Return the value of a completed operation, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._value

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
