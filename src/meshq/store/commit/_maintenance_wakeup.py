"""The wakeup of maintenance, which costs nothing per batch while maintenance is awake."""

from __future__ import annotations

from meshq.concurrency import Wakeup


class MaintenanceWakeup:
    """A wakeup with two strengths: a batch wakes only who waits for one."""

    __slots__ = ("_for_batch", "_wakeup")

    def __init__(self) -> None:
        self._wakeup = Wakeup()
        self._for_batch = False

    def wake(self) -> None:
        """Wake maintenance: after a roll, when the disk is full, at the end."""
        self._wakeup.wake()

    def batch_written(self) -> None:
        """Wake maintenance if it waits for a batch."""
        if self._for_batch:
            self._for_batch = False
            self._wakeup.wake()

    async def wait(self) -> None:
        """Return when ``wake`` was called since the last wait.

        Checkpoint: always.
        Cancellation: no wakeup is lost.
        """
        await self._wakeup.wait()

    async def wait_for_batch(self) -> None:
        """Return when a batch was written, or ``wake`` was called.

        Checkpoint: always.
        Cancellation: no wakeup is lost.
        """
        self._for_batch = True
        await self._wakeup.wait()
        self._for_batch = False
