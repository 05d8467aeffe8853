"""Turns: so many of a kind at a time, and the others wait in the order in which they came."""

from __future__ import annotations

from meshq.client._calls import OpenCompletion
from meshq.client._outbox import outcome_of
from meshq.errors import CallTimeoutError, ClosedError, MeshqError, caused


class SlotWait(OpenCompletion):
    """The wait of one task for its turn.

    While there is a connection it has no timeout: it waits for what others wait for, as a run in line does.
    """

    __slots__ = ("acquired", "queued")

    def __init__(self, what: str, since: float) -> None:
        super().__init__(what)
        self.since = since
        #: It is its turn, or was.
        self.acquired = False
        self.queued = True

    def expired(self, why: BaseException) -> None:
        """The time is up."""
        self.fail(caused(CallTimeoutError(f"{self.what} found no connection in time", outcome="not_done"), why))

    def abandon(self) -> None:
        """The task that waited was cancelled."""
        self.fail(ClosedError(f"{self.what} was given up"))


class Slots:
    """Gives ``most`` turns at a time."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: dict[SlotWait, None] = {}

    def acquire(self, what: str, now: float) -> SlotWait:
        """A turn, which is had at once or waits; whatever becomes of it, it is to be given back."""
        slot = SlotWait(what, now)
        if self._free:
            self._free -= 1
            self._grant(slot)
        else:
            self._waiting[slot] = None
        return slot

    def release(self, slot: SlotWait) -> None:
        """Let the next one have it, or wait no longer."""
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
        """Nobody gets a turn any more."""
        waiting, self._waiting = self._waiting, {}
        for slot in waiting:
            slot.fail(outcome_of(error, "not_done"))

    def _grant(self, slot: SlotWait) -> None:
        slot.acquired = True
        slot.queued = False
        slot.succeed()
