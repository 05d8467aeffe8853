"""A link: frames out by a call, frames in to a receiver; over bytes, or directly within a process.

Nothing here waits.  Whoever owns a ``StreamLink`` reads its stream and feeds it, and sees to what could not be
written at once.
"""

from __future__ import annotations

from typing import TypeAlias

from meshq import abc, limits
from meshq.errors import ConnectionBrokenError, invariant
from meshq.wire._frames import FLAG_BODY_CHECKED, Frame, head
from meshq.wire._receive_buffer import ReceiveBuffer

#: One side of a link, with the frames of the protocol.
Link: TypeAlias = abc.FrameLink[Frame]


class StreamLink(Link):
    """A link over a byte stream."""

    lossless = False
    _receiver: abc.FrameReceiver[Frame]

    def __init__(self, stream: abc.Stream, *, local: bool) -> None:
        self.stream = stream
        self.peer: str = stream.peer
        self.binding: bytes = stream.binding
        self.identities: tuple[str, ...] = stream.identities
        self.server_name: str = stream.server_name
        # TLS protects every byte: a checksum over the bodies would find nothing more.
        self.local: bool = local or bool(stream.binding)
        self.waiting: int = 0
        self._buffer = ReceiveBuffer()
        self._out: list[bytes | memoryview] = []
        self._closed = False

    def start(self, receiver: abc.FrameReceiver[Frame]) -> None:
        """Hand over received frames to ``receiver``, which is told of unsent bytes, too."""
        invariant(not hasattr(self, "_receiver"), "a link is started once")
        self._receiver = receiver

    def send(self, frame: Frame) -> None:
        """Queue a frame, with a checksum where neither TLS nor the loopback device protects it."""
        if self._closed:
            return
        if not self.local and frame.body:
            frame.flags |= FLAG_BODY_CHECKED
        # The body is copied once, when all queued frames are joined.
        self._out.append(head(frame))
        if frame.body:
            self._out.append(frame.body)

    def flush(self) -> None:
        """Write the queued frames."""
        out = self._out
        if not out:
            return
        data = b"".join(out)
        out.clear()
        try:
            self.waiting = self.stream.send_nowait(data)
        except ConnectionBrokenError:
            # The reader of this stream gets the same error, and owns what follows from it.
            return
        if self.waiting:
            self._receiver.backlogged()

    def feed(self, data: bytes) -> None:
        """Parse received bytes, and hand over complete frames.

        Raises:
            RemoteProtocolError: the bytes break the protocol.
        """
        if self._closed:
            return
        frames = self._buffer.feed(data)
        if frames:
            self._receiver.frames(frames)

    def end(self) -> None:
        """Check that the stream has ended between two frames.

        Raises:
            RemoteProtocolError: the stream has ended inside a frame.
        """
        self._buffer.end()

    def close(self) -> None:
        """End the stream."""
        if not self._closed:
            self.flush()
            self._closed = True
            self.stream.close()

    def admit(self) -> None:
        """Allow large frames."""
        self._buffer.body_bytes_max = limits.BODY_BYTES_MAX


class DirectLink(Link):
    """A link within a process: frames are handed over as objects, and handled in the sender's call."""

    lossless = True
    local = True
    _receiver: abc.FrameReceiver[Frame]

    def __init__(self, peer: str) -> None:
        self.peer = peer
        self._other: DirectLink | None = None
        self._out: list[Frame] = []
        # A hand-over from the other side is under way, perhaps further up on the stack.
        self._busy = False
        self._closed = False

    @staticmethod
    def pair(client: str, server: str) -> tuple[DirectLink, DirectLink]:
        """Make both ends, the client's and the server's; each one's ``peer`` is the other's name."""
        here, there = DirectLink(server), DirectLink(client)
        here._other, there._other = there, here
        return here, there

    def start(self, receiver: abc.FrameReceiver[Frame]) -> None:
        """Hand over received frames to ``receiver``, which is told of the end by the other side, too."""
        invariant(not hasattr(self, "_receiver"), "a link is started once")
        self._receiver = receiver

    def send(self, frame: Frame) -> None:
        """Queue a frame."""
        if not self._closed:
            self._out.append(frame)

    def flush(self) -> None:
        """Hand over the queued frames, unless the other side is handing over frames: then it hands over these, too."""
        other = self._other
        if other is None or other._busy:
            return
        other._busy = True
        try:
            while self._out and not other._closed:
                frames, self._out = self._out, []
                other._receiver.frames(frames)
        finally:
            other._busy = False
        if self._closed:
            self._part()

    def close(self) -> None:
        """End the link on both sides; within a hand-over to the other side, as soon as that is done."""
        # From here on no frame is queued or received, but the queued frames are still handed over.
        self._closed = True
        self.flush()

    def _part(self) -> None:
        other, self._other = self._other, None
        if other is not None and not other._closed:
            other._closed = True
            other._other = None
            other._out.clear()
            other._receiver.lost()

    def admit(self) -> None:
        """Do nothing: both sides are one program."""
