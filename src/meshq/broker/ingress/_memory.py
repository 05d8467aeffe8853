"""The memory limit of a broker, at which producers wait for credit.

A session may send only as many bytes as it was granted.  Unused credit counts against the limit, too, with the memory
that it may come to: a run of one small message takes several times the bytes of its frame.  So the limit holds for any
number of producers, apart from the last frame of each, which may be as large as a frame can be.

Credit can't be taken back.  So that idle sessions don't keep others from sending, a session that waits only for the
unused credit of others is granted a single byte: one frame, of any size.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, Protocol

from meshq import limits
from meshq.broker.events._event_bus import EventBus
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import RUN_OVERHEAD_BYTES
from meshq.broker.queue._unacked_memory import UNACKED_SHARE, UnackedMemory
from meshq.notifications import MemoryFull
from meshq.wire import HEAD_BYTES, RUN_ROW_BYTES

#: The least that is granted where there is room: one small run.
GRANT_BYTES_MIN: Final = 64 * limits.KIB
#: Of the room that is left, one grant takes such a part at most.
GRANT_SHARE: Final = 4
#: When less than such a part of memory is left it is scarce.
SCARCE_SHARE: Final = 4
#: When less than such a part of memory is used there is room again.
FREE_SHARE: Final = 4
#: Bytes of memory for a byte of a frame, at worst: a message without a body (rounded up).
MEMORY_PER_FRAME: Final = -(-(RUN_OVERHEAD_BYTES + RUN_ROW_BYTES) // (HEAD_BYTES + RUN_ROW_BYTES))


class CreditedSender(Protocol):
    """A session, as far as the bound knows it."""

    #: Bytes granted and bytes received of SEND frames, in all.
    granted_bytes: int
    sent_bytes: int

    def credit_changed(self) -> None:
        """More was granted, or nothing is for want of room on the disk: the other side must be told."""


class MemoryBound:
    """Used memory, granted credit, and the sessions that wait for credit."""

    __slots__ = (
        "_event_bus", "_press", "_reserved", "_told", "_waiting", "blocked", "limit_bytes", "page_at", "unacked",
        "used_bytes",
    )  # fmt: skip

    def __init__(
        self,
        limit_bytes: int,
        *,
        event_bus: EventBus,
        press: Callable[[], None],
        schedule_dispatch: Callable[[Queue], None],
    ) -> None:
        """``press`` has something paged soon."""
        self._event_bus = event_bus
        self._press = press
        self.limit_bytes: int = limit_bytes
        #: The part that unacked messages may keep in memory.
        self.unacked: UnackedMemory[Queue] = UnackedMemory(limit_bytes // UNACKED_SHARE, schedule_dispatch)
        #: Bytes of runs held.
        self.used_bytes: int = 0
        #: When more is used, something is paged.
        self.page_at: float = math.inf
        # The full policies of addresses that have begun to feel that memory is used, and of which that was told; an
        # ordered set.
        self._told: dict[str, None] = {}
        # Bytes granted and not yet sent.
        self._reserved = 0
        # Sessions without credit, first come first served; a dict as an ordered set.
        self._waiting: dict[CreditedSender, None] = {}
        #: The disk is full: grants are withheld, and those who wait know why.
        self.blocked: bool = False

    @property
    def waiting(self) -> int:
        """Sessions that wait for credit."""
        return len(self._waiting)

    @property
    def scarce(self) -> bool:
        """Whether addresses with the policies ``drop`` and ``fail`` take nothing more."""
        return self.used_bytes >= self.limit_bytes // SCARCE_SHARE * (SCARCE_SHARE - 1)

    @property
    def reserved_bytes(self) -> int:
        """Bytes granted and not yet sent."""
        return self._reserved

    def open(self, sender: CreditedSender) -> None:
        """Grant a new session its first credit, which is small."""
        offer = 0 if self._waiting else self._offer()
        if offer:
            self._grant(sender, min(offer, GRANT_BYTES_MIN))
        else:
            self._wait(sender)

    def _wait(self, sender: CreditedSender) -> None:
        self._waiting[sender] = None
        if self.blocked:
            sender.credit_changed()
        if self.used_bytes >= self.limit_bytes:
            self.reached("block")
        self._press()

    def block(self, blocked: bool) -> None:
        """Withhold credit while the disk is full; waiting sessions are told."""
        self.blocked = blocked
        if not blocked:
            self.released(0)
            return
        for sender in self._waiting:
            sender.credit_changed()

    def reached(self, policy: str) -> None:
        """So much is used that addresses with this full policy feel it: told once, until there is room again."""
        if policy not in self._told:
            self._told[policy] = None
            self._event_bus.emit(MemoryFull, policy=policy, used=self.used_bytes, limit=self.limit_bytes)

    def received(self, sender: CreditedSender, size_bytes: int) -> None:
        """A frame of a session was taken in, and is used memory if it is kept.

        The session is granted more once it has used half of what a step allows.
        """
        left = sender.granted_bytes - sender.sent_bytes - size_bytes
        if left > limits.SEND_CREDIT_BYTES // 2 and not self._waiting:
            # More than half of the largest step: nothing to decide.
            sender.sent_bytes += size_bytes
            self._reserved -= size_bytes
            return
        before = max(0, sender.granted_bytes - sender.sent_bytes)
        sender.sent_bytes += size_bytes
        after = max(0, sender.granted_bytes - sender.sent_bytes)
        self._reserved -= before - after
        step = min(limits.SEND_CREDIT_BYTES, max(GRANT_BYTES_MIN, sender.sent_bytes))
        if after <= step // 2:
            offer = 0 if self._waiting else self._offer()
            if offer >= GRANT_BYTES_MIN or (offer and not after):
                self._grant(sender, min(offer, step))
                return
            if not after:
                self._wait(sender)
        if self._waiting:
            self._serve()

    def close(self, sender: CreditedSender) -> None:
        """Free the unused credit of a session that ends."""
        self._reserved -= max(0, sender.granted_bytes - sender.sent_bytes)
        sender.granted_bytes = sender.sent_bytes
        self._waiting.pop(sender, None)
        self._serve()

    def look_again(self) -> None:
        """Try again to page: runs may have become evictable."""
        if self._waiting:
            self._press()

    def use(self, size_bytes: int) -> None:
        """Count a run that is kept in memory."""
        self.used_bytes += size_bytes
        if self.used_bytes > self.page_at:
            self._press()

    def released(self, size_bytes: int) -> None:
        """Free bytes of runs, and grant credit to waiting sessions."""
        self.used_bytes -= size_bytes
        if self._told and self.used_bytes < self.limit_bytes // FREE_SHARE:
            self._told.clear()
        if self._waiting:
            self._serve()

    def _serve(self) -> None:
        while self._waiting and (offer := self._offer()):
            sender = next(iter(self._waiting))
            del self._waiting[sender]
            self._grant(sender, offer)

    def _offer(self) -> int:
        """Return the bytes of frames that the next session may be granted."""
        free = self.limit_bytes - self.used_bytes
        if self.blocked or free <= 0:
            return 0
        room = free // MEMORY_PER_FRAME - self._reserved
        if room < GRANT_BYTES_MIN:
            return 1
        return min(limits.SEND_CREDIT_BYTES, max(GRANT_BYTES_MIN, room // GRANT_SHARE))

    def _grant(self, sender: CreditedSender, size_bytes: int) -> None:
        # What was overdrawn by the last frame is made good first.
        base = max(sender.granted_bytes, sender.sent_bytes)
        sender.granted_bytes = base + size_bytes
        self._reserved += size_bytes
        sender.credit_changed()
