"""The end of one link of a client, and the consequences for the next attempt."""

from __future__ import annotations

import errno
from typing import Final

from meshq.endpoint import Endpoint
from meshq.errors import ConnectionBrokenError, MeshqError, caused
from meshq.wire import BY_NUMBER, Close, error_of

#: Refusals after which this node is left alone for the others.
_LEAVE: Final = frozenset(
    {
        "not_active", "stopping", "too_many_sessions", "journal_broken", "crowded", "not_handed_over",
        "use_another_server",
    }
)  # fmt: skip
#: Refusals that end a link and nothing else.
_LOST: Final = frozenset({"session_taken", "silent"})

#: Errors that say nothing about the other side: no room for another connection here, a wall on this side, a connection
#: that was made and has ended, a handshake that has failed (whose number is that of ``EPERM``).
_NOT_OF_THERE: Final = frozenset(
    {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EPERM, errno.EACCES, errno.ENOTCONN}
)


class LinkEnd:
    """The reason for the end of a link."""

    __slots__ = ("error", "fatal", "held", "leave", "onward", "parted")

    def __init__(
        self,
        error: MeshqError,
        *,
        leave: bool = False,
        fatal: bool = False,
        held: bool = False,
        parted: str = "",
        onward: Endpoint | None = None,
    ) -> None:
        self.error = error
        #: Whether the node waits for what another node hands over.
        self.held = held
        self.leave = leave
        self.fatal = fatal
        #: How the node is gone, if this says it: "left" with a good-bye, "away" without a word.
        self.parted = parted
        #: Where the node sends the client on; None: nowhere.
        self.onward = onward


def closed_by(peer: str, close: Close) -> LinkEnd:
    """Return the end of a link that a node closes."""
    entry = BY_NUMBER.get(close.code)
    if close.code == 0:
        closed = ConnectionBrokenError(f"{peer} has closed the connection")
        return LinkEnd(caused(closed, EOFError("the stream has ended, with a good-bye")), leave=True)
    if entry is not None and entry.name in _LEAVE:
        parted = "left" if entry.name == "stopping" else ""
        held = entry.name == "not_handed_over"
        return LinkEnd(error_of(close.code, close.text), leave=True, held=held, parted=parted)
    if entry is not None and entry.name in _LOST:
        closed = ConnectionBrokenError(f"{peer} has closed the connection: {close.text}")
        return LinkEnd(caused(closed, error_of(close.code, close.text)))
    return LinkEnd(error_of(close.code, close.text), fatal=True)


def nobody_there(error: ConnectionBrokenError) -> bool:
    """Whether a failed attempt to connect says that a place has no listener, and is no fault of this side.

    A connection that is made and then ends is no sign of that, be it before the first word.
    """
    cause = error.__cause__
    if error.outcome != "not_done" or not isinstance(cause, OSError | LookupError):
        return False
    return not _numbers(cause) & _NOT_OF_THERE


def _numbers(error: BaseException | None) -> set[int]:
    """Return the numbers of all the errors of a system behind an error."""
    if error is None:
        return set()
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else (error.__cause__,)
    found = {error.errno} if isinstance(error, OSError) and error.errno is not None else set()
    return found.union(*(_numbers(one) for one in inner))
