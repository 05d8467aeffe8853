"""``ChangeSignal``: wakes every task that waits for a change."""

from __future__ import annotations

import trio


class ChangeSignal:
    """A signal to all tasks that wait for a change.  A task looks first, and waits only if it finds nothing."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        self._event = trio.Event()

    def tell(self) -> None:
        """Wake the tasks that wait now."""
        event, self._event = self._event, trio.Event()
        event.set()

    async def wait(self) -> None:
        """Wait until the next ``tell``.  Checkpoint: always.  Cancellation: nothing has changed."""
        await self._event.wait()
