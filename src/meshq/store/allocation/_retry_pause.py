"""The pause between two attempts on a full disk."""

from __future__ import annotations

from typing import Final

import trio

#: Pauses between two attempts on a full disk.
RETRY_S_MIN: Final = 0.05
RETRY_S_MAX: Final = 5.0


class RetryPause:
    """The length of the pause between two attempts on a full disk, doubled with each attempt that fails."""

    __slots__ = ("_stopped", "seconds")

    def __init__(self) -> None:
        self.seconds: float = RETRY_S_MIN
        self._stopped = trio.Event()

    def lengthen(self) -> None:
        """Double the pause: an attempt has failed."""
        self.seconds = min(self.seconds * 2, RETRY_S_MAX)

    def reset(self) -> None:
        """Begin with the shortest pause again: an attempt has succeeded."""
        self.seconds = RETRY_S_MIN

    def stop(self) -> None:
        """End every ``wait``, also those to come."""
        self._stopped.set()

    async def wait(self) -> None:
        """Wait for the length of the pause, or until ``stop``.

        Checkpoint: always.
        Cancellation: nothing has changed.
        """
        with trio.move_on_after(self.seconds):
            await self._stopped.wait()
