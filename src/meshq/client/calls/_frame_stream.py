"""The frames of a session: numbered, over one link after the other, and kept until they have arrived.

A session without a link numbers nothing: whatever is to be sent waits in its queue until the session is resumed or
made anew.

Order on the link: acknowledgements that were gathered go before any other numbered frame, so that whatever an
application does after an acknowledgement also comes after it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from meshq import limits
from meshq.concurrency import Wakeup
from meshq.wire import Attached, Frame, FrameType, IncomingStream, Link, OutgoingStream


class SettleSource(Protocol):
    """A consumer's side of the acknowledgements that wait to be sent."""

    @property
    def done(self) -> bool:
        """Whether everything that arrived is handed over and settled."""

    def take_settles(self) -> list[Frame]:
        """Take the gathered acknowledgements as SETTLE frames."""


class FrameStream:
    """The numbered frames of one session, out and in.  ``now`` is the monotonic clock.

    ``wakeup`` wakes the task that sends the gathered frames.  ``window_bytes``: of frames that the other side keeps
    for a resume, and that this side keeps; 0: none.
    """

    __slots__ = (
        "_now",
        "_report_bytes",
        "_window_bytes",
        "asked_at",
        "flushed_at",
        "heard_at",
        "incoming",
        "link",
        "outgoing",
        "resumable",
        "settling",
        "unflushed",
        "wake",
    )

    def __init__(self, now: Callable[[], float], wakeup: Wakeup, window_bytes: int) -> None:
        self._now = now
        self._window_bytes = window_bytes
        # Received bytes after which the other side is told, because it keeps a bounded number of frames.
        self._report_bytes = min(window_bytes // 4, limits.REPORT_BYTES_MAX)
        #: The link that the session is attached to; None between links.
        self.link: Link | None = None
        self.outgoing: OutgoingStream = OutgoingStream()
        self.incoming: IncomingStream = IncomingStream()
        #: Whether sent frames are kept for a resume: not on a lossless link, nor without a window.
        self.resumable: bool = False
        #: Consumers with acknowledgements that were not sent yet.
        self.settling: dict[SettleSource, None] = {}
        #: When bytes were last received; when bytes were last sent; when a sign of life was last asked for.
        self.heard_at: float = 0.0
        self.flushed_at: float = 0.0
        self.asked_at: float = 0.0
        #: Wakes the task that sends the gathered frames.
        self.wake: Callable[[], None] = wakeup.wake
        #: Whether a frame was queued on the link since the last flush.
        self.unflushed: bool = False

    # -- out

    def out(self, frame: Frame) -> None:
        """Number a frame and queue it on the link."""
        link = self.link
        assert link is not None
        if self.settling:
            self.send_settles()
        self.outgoing.number(frame, keep=self.resumable)
        self._put(link, frame)

    def _put(self, link: Link, frame: Frame) -> None:
        if not link.lossless:
            # A lossless link needs no report of received frames.
            frame.received = self.incoming.last
            self.incoming.unreported_bytes = 0
        self.unflushed = True
        link.send(frame)

    def say(self, frame_type: FrameType) -> None:
        """Queue a frame that has neither number nor content, if there is a link."""
        link = self.link
        if link is not None:
            self._put(link, Frame(frame_type))

    def gathered(self, source: SettleSource) -> None:
        """Send the gathered acknowledgements of a consumer at the end of this loop turn.

        In process it is sent at once if nothing is left that could join it: another task's turn would cost more.
        """
        self.settling[source] = None
        link = self.link
        if link is not None and link.lossless and source.done:
            self.send_settles()
            self.flush()
        else:
            self.wake()

    def send_settles(self) -> None:
        """Send the acknowledgements that were gathered."""
        if self.link is None or not self.settling:
            return
        settling, self.settling = self.settling, {}
        for source in settling:
            for frame in source.take_settles():
                self.out(frame)

    def flush(self) -> None:
        """Pass the numbered frames to the network; always the last step of a caller."""
        link = self.link
        if link is not None and self.unflushed:
            self.unflushed = False
            if not link.lossless:
                self.flushed_at = self._now()
            link.flush()

    def report(self) -> None:
        """Report the received frames if a report is due, and flush the link."""
        link = self.link
        if link is not None and self.resumable and self.incoming.unreported_bytes > self._report_bytes:
            self._put(link, Frame(FrameType.RECEIVED))
        self.flush()

    # -- life

    def attach(self, link: Link, attached: Attached) -> None:
        """Continue over a link: send the frames again that have not arrived, or begin anew at number 1.

        Raises:
            RemoteProtocolError: the node claims to have received what was not sent.
        """
        self.resumable = not link.lossless and self._window_bytes > 0
        self.heard_at = self._now()
        if attached.resumed:
            again = self.outgoing.resume(attached.received)
            self.link = link
            for frame in again:
                self._put(link, frame)
        else:
            self.link = link
            self.outgoing, self.incoming = OutgoingStream(), IncomingStream()
            self.settling.clear()

    def detach(self) -> None:
        """Let go of the link."""
        self.link = None

    def abandon(self) -> None:
        """Give up the resume, and drop the frames kept for that."""
        self.resumable = False
        self.outgoing = OutgoingStream()
