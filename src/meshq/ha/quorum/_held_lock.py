"""The lock of a session, as far as the session knows: until when it is held, and that it was lost."""

from __future__ import annotations

from typing import Final

import trio

from meshq.concurrency import ChangeSignal

#: How often a lock is renewed in the time for which a renewal holds; a pause of all but one of these parts is survived.
RENEWALS: Final = 20


class HeldLock:
    """A lock with an end that renewals move.  Once the end has passed, later renewals do not count."""

    def __init__(self) -> None:
        self._until = 0.0
        # Each time that the lock is taken it has another number, so that a late renewal renews no later lock.
        self._number = 0
        self._changed = ChangeSignal()

    @property
    def number(self) -> int:
        """The number of the lock that was taken last."""
        return self._number

    @property
    def until(self) -> float:
        """The moment until which the lock is held; 0.0 when it is not."""
        if self._until and trio.current_time() >= self._until:
            self.end()
        return self._until

    def take(self, until: float) -> None:
        """Note that the lock was taken."""
        self._number += 1
        self._until = until
        self._changed.tell()

    def renew(self, until: float, number: int) -> bool:
        """Note that a lock was renewed; return whether it is held."""
        if number != self._number or not self.until:
            return False
        self._until = max(self._until, until)
        return self.until > 0.0

    def end(self) -> None:
        """Note that the lock is not held any more."""
        self._until = 0.0
        self._changed.tell()

    async def wait_taken(self) -> None:
        """Wait until the lock is held.  Checkpoint: always."""
        await trio.lowlevel.checkpoint()
        while not self.until:
            await self._changed.wait()

    async def wait_lost(self) -> None:
        """Wait until the lock is not held.  Checkpoint: always."""
        await trio.lowlevel.checkpoint()
        while until := self.until:
            with trio.move_on_at(until):
                await self._changed.wait()
