"""``Wakeup``: a flag for one waiting task; cheaper than a ``trio.Event``."""

from __future__ import annotations

from typing import Any

import outcome
import trio


class Wakeup:
    """A flag that wakes one waiting task, which then looks for work.

    A wakeup between the end of a wait and the next wait is kept: the next wait returns at once.  A task that finds all
    work when it looks calls ``clear`` after each wait: what was kept while the task was being resumed is work that the
    task finds now.
    """

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
            self._woken = False
        else:
            self._task = trio.lowlevel.current_task()
            await trio.lowlevel.wait_task_rescheduled(self._abort)

    def clear(self) -> None:
        """Forget a call of ``wake`` since the last wait."""
        self._woken = False

    def fail(self, error: BaseException) -> None:
        """Raise ``error`` in the task that waits now, if there is one."""
        task, self._task = self._task, None
        if task is not None:
            trio.lowlevel.reschedule(task, outcome.Error(error))

    def _abort(self, raise_cancel: Any) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED
