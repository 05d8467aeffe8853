"""Turns: so many of a kind at a time, and the others wait in the order in which they came."""

from __future__ import annotations

from meshq.client._calls import Opening
from meshq.client._outbox import outcome_of
from meshq.errors import CallTimeoutError, ClosedError, MeshqError, caused


class Turn(Opening):
    """The wait of one task for its turn.

    While there is a connection it has no timeout: it waits for what others wait for, as a run in line does.
    """

    __slots__ = ("had", "in_line")

    def __init__(self, what: str, since: float) -> None:
        super().__init__(what)
        self.since = since
        #: It is its turn, or was.
        self.had = False
        self.in_line = True

    def expired(self, why: BaseException) -> None:
        """The time is up."""
        self.fail(caused(CallTimeoutError(f"{self.what} found no connection in time", outcome="not_done"), why))

    def abandon(self) -> None:
        """The task that waited was cancelled."""
        self.fail(ClosedError(f"{self.what} was given up"))


class Turns:
    """Gives ``most`` turns at a time."""

    __slots__ = ("_free", "_waiting")

    def __init__(self, most: int) -> None:
        self._free = most
        self._waiting: dict[Turn, None] = {}

    def take(self, what: str, now: float) -> Turn:
        """A turn, which is had at once or waits; whatever becomes of it, it is to be given back."""
        turn = Turn(what, now)
        if self._free:
            self._free -= 1
            self._give(turn)
        else:
            self._waiting[turn] = None
        return turn

    def give_back(self, turn: Turn) -> None:
        """Let the next one have it, or wait no longer."""
        if not turn.had:
            self._waiting.pop(turn, None)
            return
        for other in list(self._waiting):
            del self._waiting[other]
            if not other.done:
                self._give(other)
                return
        self._free += 1

    def fail(self, error: MeshqError) -> None:
        """Nobody gets a turn any more."""
        waiting, self._waiting = self._waiting, {}
        for turn in waiting:
            turn.fail(outcome_of(error, "not_done"))

    def _give(self, turn: Turn) -> None:
        turn.had = True
        turn.in_line = False
        turn.succeed()
