"""``Completion`` and ``Wakeup``: waits of one task, cheaper than a ``trio.Event``.

A ``trio.Event`` and a cancel scope cost more than all the rest of a send, so a task that waits is parked directly, and
one timer of the client watches all deadlines.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TypeVar

import outcome
import trio

from meshq.errors import MeshqError, Outcome

E = TypeVar("E", bound=BaseException)

_PENDING: Final = object()


def copied_error(error: E) -> E:
    """Copy an error, to be raised by another task: each task has a traceback of its own."""
    copied = type(error).__new__(type(error))
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    copied.__suppress_context__ = error.__suppress_context__
    return copied


def first_error(error: BaseException) -> BaseException:
    """Return the first error inside nested groups; a cancellation only if there is no other error."""
    while isinstance(error, BaseExceptionGroup):
        others = error.split(trio.Cancelled)[1]
        error = (error if others is None else others).exceptions[0]
    return error


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

    def result(self) -> Any:
        """Return the value of a completed operation, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._value

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Wakeup:
    """A flag that wakes one waiting task, which then looks for work."""

    __slots__ = ("_task", "_woken")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._woken = False

    def wake(self) -> None:
        """Wake the waiting task, or let its next wait return at once."""
        task = self._task
        if task is None:
            self._woken = True
        else:
            self._task = None
            trio.lowlevel.reschedule(task)

    @property
    def has_waiter(self) -> bool:
        """Whether a task is waiting."""
        return self._task is not None

    @property
    def woken(self) -> bool:
        """Whether the next wait returns at once."""
        return self._woken

    async def wait(self) -> None:
        """Wait until ``wake`` is called, or return at once if it was called since the last wait.

        Checkpoint: always.  Cancellation: a call of ``wake`` isn't lost.
        """
        if self._woken:
            await trio.lowlevel.checkpoint()
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        self._woken = False

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the task that waits now, if there is one."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Error(error))

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


def combined(results: Sequence[MeshqError | None]) -> MeshqError:
    """The error that stands for all of ``results``: of the first one's kind, with all of them listed.

    Its outcome is ``not_done`` only if that is true of every message; a mixture is ``unknown`` as a whole.
    """
    errors = [error for error in results if error is not None]
    error = copied_error(errors[0])
    outcome: Outcome = "unknown"
    if len(errors) == len(results) and all(one.outcome == "not_done" for one in errors):
        outcome = "not_done"
    error.outcome = outcome
    error.results = tuple(results)
    if len(results) > 1:
        error.args = (f"{len(errors)} of {len(results)} messages failed: {errors[0]}",)
    return error
