"""The bytes of runs that a session may send."""

from __future__ import annotations

from meshq.broker.session._session_stream import SessionStream
from meshq.wire import Frame, FrameType, violation


class SessionCredit:
    """The credit of one session, which the memory bound grants."""

    __slots__ = ("_stream", "changed", "granted_bytes", "sent_bytes")

    def __init__(self, stream: SessionStream) -> None:
        #: Bytes granted and bytes received of runs, in all; the memory bound counts both.
        self.granted_bytes: int = 0
        self.sent_bytes: int = 0
        #: Whether the client must be told of its credit at the end of the pass.
        self.changed: bool = False
        self._stream = stream

    @property
    def used_up(self) -> bool:
        """Whether nothing may be sent now."""
        return self.sent_bytes >= self.granted_bytes

    def check(self, ahead_bytes: int = 0) -> None:
        """Check that a run was within the credit, behind ``ahead_bytes`` of runs that are not taken in yet.

        Raises:
            RemoteProtocolError: the client has sent more than its credit.
        """
        if self.sent_bytes + ahead_bytes >= self.granted_bytes:
            raise violation("no_credit", f"{self.granted_bytes} bytes were granted")

    def credit_changed(self) -> None:
        """Tell the client of its credit at the end of the pass."""
        self.changed = True
        self._stream.schedule_flush()

    def flush(self) -> None:
        """Tell the client of its credit now."""
        self.changed = False
        self._stream.put(Frame(FrameType.CREDIT, first=self.granted_bytes))
