"""The life cycle of a journal, as a table, and the reason of its failure."""

from __future__ import annotations

from typing import Final

from meshq.errors import ClosedError, JournalBrokenError, MeshqError, caused, invariant
from meshq.lifecycle import LifeCycle, Transitions

#: ``recover``: the records of the last life are proven.  ``run``: the tasks begin.  ``halt``: the tasks are told to
#: end, because ``run`` was cancelled or the journal is being closed.  ``close``: ``aclose`` was called.  ``fail``: the
#: disk failed.  ``end``: the files are closed and the lock is released.
JOURNAL_TRANSITIONS: Final[Transitions] = {
    "new": {"open": "opening", "close": "closed"},
    "opening": {"recover": "open", "close": "abandoned", "end": "closed"},
    "abandoned": {"end": "closed"},
    "open": {"run": "running", "close": "flushing", "fail": "failed"},
    "running": {"halt": "halted", "close": "draining", "fail": "failed"},
    "halted": {"close": "flushing", "fail": "failed"},
    "draining": {"halt": "flushing", "fail": "failed, closing"},
    "flushing": {"fail": "failed, closing", "end": "closed"},
    "failed": {"close": "failed, closing"},
    "failed, closing": {"end": "failed, closed"},
    "closed": {},
    "failed, closed": {},
}
#: The words of ``Journal.state``, which says only what an owner can do.
_SHOWN: Final = {
    "new": "new",
    "opening": "opening",
    "abandoned": "opening",
    **dict.fromkeys(("open", "running", "halted", "draining", "flushing"), "open"),
    "closed": "closed",
    **dict.fromkeys(("failed", "failed, closing", "failed, closed"), "failed"),
}
_TAKING: Final = ("open", "running", "halted")
_CLOSING: Final = ("abandoned", "draining", "flushing", "closed", "failed, closing", "failed, closed")
_ENDING: Final = ("halted", "flushing", "closed", "failed", "failed, closing", "failed, closed")


class JournalLife:
    """The life of one journal."""

    __slots__ = ("_life", "failure")

    def __init__(self) -> None:
        self._life: Final = LifeCycle("journal", JOURNAL_TRANSITIONS)
        #: The error that ended the journal: of the disk, or of replication.
        self.failure: JournalBrokenError | None = None

    @property
    def state(self) -> str:
        """The state in the table."""
        return self._life.state

    @property
    def shown(self) -> str:
        """The state as an owner sees it: ``new``, ``opening``, ``open``, ``failed`` or ``closed``."""
        return _SHOWN[self._life.state]

    @property
    def taking(self) -> bool:
        """Whether records can be placed, as far as the life decides."""
        return self._life.state in _TAKING

    @property
    def closing(self) -> bool:
        """Whether ``aclose`` was called, or the journal was never opened and is closed."""
        return self._life.state in _CLOSING

    @property
    def ending(self) -> bool:
        """Whether the tasks are to end."""
        return self._life.state in _ENDING

    @property
    def flushing(self) -> bool:
        """Whether the tasks are to end when all placed records are written."""
        return self._life.state == "flushing"

    def on(self, event: str) -> str:
        """Take an event of the table; return the next state.  Raises: InvariantError."""
        return self._life.on(event)

    def fail(self, error: BaseException, part: str = "disk") -> bool:
        """Take the first error of the disk, or of replication; False if the journal has failed before, or is closed."""
        if self.failure is not None or self._life.state == "closed":
            return False
        self._life.on("fail")
        self.failure = caused(JournalBrokenError(f"the journal's {part} failed: {error}"), error)
        return True

    def broken(self, *, outcome_not_done: bool = False) -> JournalBrokenError:
        """Return a new error that says why the journal has failed."""
        failure = self.failure
        invariant(failure is not None, "something failed")
        error = JournalBrokenError(str(failure), outcome="not_done" if outcome_not_done else "unknown")
        return caused(error, failure.__cause__ if failure is not None else None)

    def refusal(self) -> MeshqError:
        """Return the error of a call that a journal in this state can't serve."""
        return (
            self.broken(outcome_not_done=True)
            if self.failure is not None
            else ClosedError(f"the journal is {self.shown}")
        )
