"""The bound on bytes to one client that are on their way: sent and not acknowledged, or not yet read by the client.

All links together have a part of the node's memory, each link an equal share.  A client whose share is used up gets no
more deliveries until it has read, or reported as read, half of that.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final

from meshq import limits
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.session._session_stream import SessionStream

#: The part of a node's memory that may be on its way to clients.
OUTGOING_SHARE: Final = 4
#: A broker that kept less would stop after every few deliveries.
LEAST_BYTES: Final = 64 * limits.KIB


class OutgoingBound:
    """The share of one session.  ``sessions``: all sessions of the node."""

    __slots__ = ("_least", "_memory", "_sessions", "_stream", "_window_bytes")

    def __init__(self, memory: MemoryBound, sessions: Sized, stream: SessionStream, window_bytes: int) -> None:
        self._memory = memory
        self._sessions = sessions
        self._stream = stream
        # What may be kept for a client that resumes, for it has no more room either; 0: nothing is.
        self._window_bytes = max(window_bytes, LEAST_BYTES) if window_bytes else 0
        # It may say nothing before it has heard so much.
        self._least = LEAST_BYTES + min(self._window_bytes // 4, limits.REPORT_BYTES_MAX)

    @property
    def used_bytes(self) -> int:
        """Bytes that are on their way."""
        kept, link = self._stream.outgoing.kept_bytes, self._stream.link
        return kept if link is None else max(kept, link.waiting)

    @property
    def bytes_max(self) -> int:
        """The share."""
        share = max(self._memory.limit_bytes // OUTGOING_SHARE // max(1, len(self._sessions)), self._least)
        return min(share, self._window_bytes) if self._window_bytes else share

    @property
    def reached(self) -> bool:
        """Whether nothing more is to be delivered."""
        link = self._stream.link
        if self._stream.outgoing.kept_bytes <= LEAST_BYTES and (link is None or link.waiting <= LEAST_BYTES):
            return False
        return self.used_bytes > self.bytes_max

    @property
    def left(self) -> bool:
        """Whether so much of it has arrived that deliveries go on."""
        return self.used_bytes <= self.bytes_max // 2
