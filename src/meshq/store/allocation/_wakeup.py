"""A wakeup for one waiting task: it wakes that task, or lets its next wait return at once."""

from __future__ import annotations

import trio


class Wakeup:
    """A ``trio.Event`` that resets itself after each wait, at half the price."""

    __slots__ = ("_is_set", "_task")

    def __init__(self) -> None:
        self._is_set = False
        self._task: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        """Wake the waiting task, or let its next wait return at once."""
        task = self._task
        if task is None:
            self._is_set = True
        else:
            self._task = None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Return when ``wake`` was called since the last wait.

        Checkpoint: always.
        Cancellation: no wakeup is lost.
        """
        if self._is_set:
            await trio.lowlevel.checkpoint()
            self._is_set = False
            return
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
