"""Slots: a limited number of operations at a time; others wait in order."""

from __future__ import annotations

from typing import ClassVar

from meshq.client.calls._link_failures import outcome_of
from meshq.concurrency import Completion
from meshq.errors import CallTimeoutError, ClosedError, MeshqError, caused


class SlotWait(Completion):
    """The wait of one task for a slot.

    While there is a connection the wait has no timeout, as a queued run has none.
    """

    __slots__ = ("acquired", "queued", "what")

    waits_for_disk: ClassVar[bool] = False

    def __init__(self, what: str, since: float) -> None:
        super().__init__()
        self.what: str = what
        self.since = since
        #: Whether the slot is or was acquired.
        self.acquired: bool = False
        self.queued: bool = True

    def expired(self, why: BaseException) -> None:
        """Fail the wait with a timeout."""
        self.fail(caused(CallTimeoutError(f"{self.what} found no connection in time", outcome="not_done"), why))

    def abandon(self) -> None:
        """End the wait, because the waiting task was cancelled."""
        self.fail(ClosedError(f"{self.what} was given up"))


class Slots:
    """A limited number of slots, given in order of request."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: dict[SlotWait, None] = {}

    def acquire(self, what: str, now: float) -> SlotWait:
        """Acquire a slot, at once or later; the caller releases the slot in every case."""
        slot = SlotWait(what, now)
        if self._free:
            self._free -= 1
            self._grant(slot)
        else:
            self._waiting[slot] = None
        return slot

    def release(self, slot: SlotWait) -> None:
        """Release the slot for the next waiting task, or end the wait for it."""
        if not slot.acquired:
            self._waiting.pop(slot, None)
            return
        for other in list(self._waiting):
            del self._waiting[other]
            if not other.done:
                self._grant(other)
                return
        self._free += 1

    def fail(self, error: MeshqError) -> None:
        """Fail all waits for a slot."""
        waiting, self._waiting = self._waiting, {}
        for slot in waiting:
            slot.fail(outcome_of(error, "not_done"))

    def _grant(self, slot: SlotWait) -> None:
        slot.acquired = True
        slot.queued = False
        slot.succeed()
