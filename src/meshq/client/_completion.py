"""Waiting for one thing: cheaper than an event, and it knows what became of the thing.

A ``trio.Event`` and a cancel scope cost more than all the rest of a send, so a task that waits is parked directly, and
one timer of the client watches all deadlines.
"""

from __future__ import annotations

from typing import Any, Final, TypeVar

import outcome
import trio

E = TypeVar("E", bound=BaseException)

_PENDING: Final = object()


def fresh(error: E) -> E:
    """A copy of an error, to be raised by one more task: a traceback belongs to one of them."""
    copied = type(error).__new__(type(error))
    copied.args = error.args
    copied.__dict__.update(error.__dict__)
    copied.__cause__ = error.__cause__
    copied.__suppress_context__ = error.__suppress_context__
    return copied


def leaf(error: BaseException) -> BaseException:
    """The first error inside groups of groups; a cancellation only if there is nothing else."""
    while isinstance(error, BaseExceptionGroup):
        others = error.split(trio.Cancelled)[1]
        error = (error if others is None else others).exceptions[0]
    return error


class Completion:
    """One thing that will be done or fail, and the task that waits for it."""

    __slots__ = ("_error", "_task", "_value", "since")

    def __init__(self) -> None:
        self._value: Any = _PENDING
        self._error: BaseException | None = None
        self._task: trio.lowlevel.Task | None = None
        #: When the wait that a timeout bounds began; seconds of trio's clock.
        self.since = 0.0

    @property
    def done(self) -> bool:
        """Whether it is decided."""
        return self._value is not _PENDING or self._error is not None

    @property
    def has_waiter(self) -> bool:
        """Whether a task is parked here."""
        return self._task is not None

    def succeed(self, value: Any = None) -> None:
        """It is done; what comes later is ignored."""
        if self._value is _PENDING and self._error is None:
            self._value = value
            task, self._task = self._task, None
            if task is not None:
                trio.lowlevel.reschedule(task)

    def fail(self, error: BaseException) -> None:
        """It has failed; what comes later is ignored."""
        if self._value is _PENDING and self._error is None:
            self._error = error
            task, self._task = self._task, None
            if task is not None:
                trio.lowlevel.reschedule(task)

    async def wait(self) -> Any:
        """The value, or the error raised.

        Checkpoint: always.  Cancellation: the thing goes on; nobody waits for it any more.
        """
        await self.decided()
        return self.result()

    async def decided(self) -> None:
        """Return when it is decided, one way or the other.

        Checkpoint: always.  Cancellation: the thing goes on; nobody waits for it any more.
        """
        if self._value is _PENDING and self._error is None:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)
        else:
            await trio.lowlevel.checkpoint()

    def result(self) -> Any:
        """The value of a decided thing, or its error raised."""
        if self._error is not None:
            raise self._error
        return self._value

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class Wakeup:
    """Wakes one task, which looks for itself what there is to do."""

    __slots__ = ("_task", "_woken")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._woken = False

    def wake(self) -> None:
        """Wake the task now, or when it next waits."""
        task = self._task
        if task is None:
            self._woken = True
        else:
            self._task = None
            trio.lowlevel.reschedule(task)

    @property
    def has_waiter(self) -> bool:
        """Whether a task is parked here."""
        return self._task is not None

    async def wait(self) -> None:
        """Return when it has rung since the last time.

        Checkpoint: always.  Cancellation: the ring isn't lost.
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
