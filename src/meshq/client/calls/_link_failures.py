"""The failures of a session's links: the causes of the errors that its calls raise."""

from __future__ import annotations

from meshq.concurrency import copied_error
from meshq.errors import MeshqError, UnblockedError, caused
from meshq.wire import decline


class LinkFailures:
    """The last failures of a session's links and connection attempts."""

    __slots__ = ("absent", "lost")

    def __init__(self) -> None:
        #: Why the last link was lost.
        self.lost: MeshqError | None = None
        #: Why there is no link: the loss of the last one, or what became of the last attempt; None while there is one.
        self.absent: MeshqError | None = None

    def attached(self) -> None:
        """Note that the session has a link."""
        self.absent = None

    def ended(self, error: MeshqError, *, attached: bool) -> None:
        """Note the end of a link, or a failed attempt to connect."""
        # Kept without the frames in which it was raised.
        self.absent = copied_error(error)
        if attached:
            self.lost = self.absent

    def cut_off(self, text: str) -> UnblockedError:
        """The error of an operation that was lost with its session."""
        return caused(UnblockedError(text), self.lost)

    def late(self, waited_s: float, *, attached: bool) -> BaseException:
        """The cause of a timeout: without a link, why there is none; else only the silence."""
        if self.absent is not None and not attached:
            return self.absent
        whom = "an answer" if attached else "a connection"
        return TimeoutError(f"waited {waited_s:g} s for {whom}")


def body_lost(link_failures: LinkFailures) -> MeshqError:
    """Make the error of a message whose body was lost with its session before the message was sent."""
    error = decline("body_missing", "it was sent in a session that is gone")
    error.outcome = "not_done"
    return caused(error, link_failures.lost)


def outcome_of(error: MeshqError, outcome: str) -> MeshqError:
    """Copy an error with the outcome of one operation."""
    copied = copied_error(error)
    copied.outcome = outcome  # type: ignore[assignment]
    return copied
