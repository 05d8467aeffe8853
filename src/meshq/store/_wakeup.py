"""A bell that one task waits for: rung, it wakes that task, or lets its next wait return at once."""

from __future__ import annotations

import trio


class Wakeup:
    """As a ``trio.Event`` that is set anew for each wait, at half its price."""

    __slots__ = ("_rung", "_task")

    def __init__(self) -> None:
        self._rung = False
        self._task: trio.lowlevel.Task | None = None

    def wake(self) -> None:
        """Wake the waiting task."""
        task = self._task
        if task is None:
            self._rung = True
        else:
            self._task = None
            trio.lowlevel.reschedule(task)

    async def wait(self) -> None:
        """Return when it has been rung since the last wait.

        Checkpoint: always.
        Cancellation: a ring is not lost.
        """
        if self._rung:
            await trio.lowlevel.checkpoint()
            self._rung = False
            return
        self._task = trio.lowlevel.current_task()

        def abort(_: object) -> trio.lowlevel.Abort:
            self._task = None
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)
