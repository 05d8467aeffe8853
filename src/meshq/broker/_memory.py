"""One bound on what a broker holds in memory, at which producers wait.

A session may send only what it was granted.  What is granted and not yet sent counts against the bound like what
is held, so the bound holds however many producers there are; apart from the last frame of each, which may be as
large as a frame can be.
"""

from __future__ import annotations

from collections import deque
from typing import Final, Protocol

from meshq import limits

#: The least that is granted: one small run.
GRANT_BYTES_MIN: Final = 64 * limits.KIB


class Sender(Protocol):
    """A session, as far as the bound knows it."""

    #: Bytes granted and bytes received of SEND frames, in all.
    granted_bytes: int
    sent_bytes: int

    def credit_changed(self) -> None:
        """More was granted: the other side must be told."""


class MemoryBound:
    """What is held, what is promised, and who waits."""

    __slots__ = ("_reserved", "_waiting", "blocked", "limit_bytes", "used_bytes")

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        #: Bytes of runs held.
        self.used_bytes = 0
        # Bytes granted and not yet sent.
        self._reserved = 0
        # Sessions without credit, first come first served.
        self._waiting: deque[Sender] = deque()
        #: Grants are withheld for another reason: the disk is full.
        self.blocked = False

    @property
    def waiting(self) -> int:
        """Sessions that wait for credit."""
        return len(self._waiting)

    @property
    def reserved_bytes(self) -> int:
        """Bytes granted and not yet sent."""
        return self._reserved

    def open(self, sender: Sender) -> None:
        """A session begins; it starts small and earns more."""
        self._grant_or_wait(sender, GRANT_BYTES_MIN)

    def received(self, sender: Sender, size_bytes: int) -> None:
        """A session has sent; grant more once it has used half of what a step allows."""
        before = max(0, sender.granted_bytes - sender.sent_bytes)
        sender.sent_bytes += size_bytes
        after = max(0, sender.granted_bytes - sender.sent_bytes)
        self._reserved -= before - after
        step = min(limits.SEND_CREDIT_BYTES, max(GRANT_BYTES_MIN, sender.sent_bytes))
        if after <= step // 2 and (after > 0 or before > 0):
            self._grant_or_wait(sender, step)

    def close(self, sender: Sender) -> None:
        """A session ends; what it was promised is free."""
        self._reserved -= max(0, sender.granted_bytes - sender.sent_bytes)
        sender.granted_bytes = sender.sent_bytes
        if sender in self._waiting:
            self._waiting.remove(sender)
        self.released(0)

    def released(self, size_bytes: int) -> None:
        """Runs are gone; whoever waits may go on."""
        self.used_bytes -= size_bytes
        while self._waiting and self._room() >= GRANT_BYTES_MIN:
            sender = self._waiting.popleft()
            self._grant(sender, min(self._room(), limits.SEND_CREDIT_BYTES))

    def _room(self) -> int:
        if self.blocked:
            return 0
        return self.limit_bytes - self.used_bytes - self._reserved

    def _grant_or_wait(self, sender: Sender, step: int) -> None:
        room = self._room()
        if sender in self._waiting:
            return
        if room >= GRANT_BYTES_MIN and not self._waiting:
            self._grant(sender, min(step, room))
        elif sender.granted_bytes <= sender.sent_bytes or room < step:
            self._waiting.append(sender)

    def _grant(self, sender: Sender, size_bytes: int) -> None:
        # What was overdrawn by the last frame is made good first.
        base = max(sender.granted_bytes, sender.sent_bytes)
        sender.granted_bytes = base + size_bytes
        self._reserved += size_bytes
        sender.credit_changed()
