"""The numbered frames of a session, in both directions, across the links of its client."""

from __future__ import annotations

from collections.abc import Callable

from meshq import limits
from meshq.wire import Frame, FrameType, IncomingStream, Link, OutgoingStream


class SessionStream:
    """The numbered frames of one session.  Frames that the client may lack are kept, and sent again after a resume."""

    __slots__ = ("_keeps", "_report_bytes", "incoming", "link", "outgoing", "resumable", "schedule_flush")

    def __init__(self, window_bytes: int, schedule_flush: Callable[[], None]) -> None:
        #: Has the session flushed at the end of the pass.
        self.schedule_flush: Callable[[], None] = schedule_flush
        self.incoming: IncomingStream = IncomingStream()
        self.outgoing: OutgoingStream = OutgoingStream()
        #: The link of the client; None while the session is detached.
        self.link: Link | None = None
        #: Whether every frame can be sent again; False on a lossless link, and without a confirmation window.
        self.resumable: bool = window_bytes > 0
        self._keeps = self.resumable
        # What is heard before that is said, if nothing else is: the client stops at its own window, which may be small.
        self._report_bytes = max(window_bytes, limits.CONFIRMATION_WINDOW_BYTES_MIN) // 4

    @property
    def report_due(self) -> bool:
        """Whether so many bytes were received unreported that the client must be told."""
        return self.incoming.unreported_bytes > self._report_bytes

    def put(self, frame: Frame) -> None:
        """Number a frame and give it to the link; the caller sees to it that the session is flushed."""
        link = self.link
        if link is not None and link.lossless:
            self.outgoing.number(frame, keep=False)
            link.send(frame)
        else:
            self.outgoing.number(frame, keep=self.resumable)
            if link is not None:
                self._send_out(link, frame)

    def say_later(self, frame: Frame) -> None:
        """Number a frame, and flush the session at the end of the pass."""
        self.put(frame)
        self.schedule_flush()

    def report(self, link: Link) -> None:
        """Tell the client how far its frames were received."""
        self._send_out(link, Frame(FrameType.RECEIVED))

    def _send_out(self, link: Link, frame: Frame) -> None:
        if not link.lossless:
            # Where nothing can be lost, nobody waits to hear of it.
            frame.received = self.incoming.last
            self.incoming.unreported_bytes = 0
        link.send(frame)

    def attach(self, link: Link, received: int) -> None:
        """Go on over a link: send the frames after ``received`` again, which the client has not."""
        again = list(self.outgoing.resume(received))
        self.link = link
        self.resumable = not link.lossless and self._keeps
        for frame in again:
            self._send_out(link, frame)

    def detach(self) -> None:
        """Keep frames from now on; there is no link."""
        self.link = None

    def refuse_resume(self) -> None:
        """Refuse a resume: a numbered frame of the client was not taken."""
        self.resumable = False
