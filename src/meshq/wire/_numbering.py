"""The two numbered streams of a session, which make the session resumable.

Each side numbers its state-changing frames from 1, keeps each frame until the other side has reported it as received,
and after a reconnect sends again exactly the frames that were not received.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from meshq.errors import invariant
from meshq.wire._frames import NUMBERED, Frame
from meshq.wire._refusals import violation


class OutgoingStream:
    """The numbers of the frames that are sent, and the frames that may have to be sent again."""

    __slots__ = ("_arrived", "_kept", "_kept_bytes", "last")

    def __init__(self) -> None:
        #: The highest number given.
        self.last: int = 0
        # The highest number that the other side has reported.  A frame that is sent again says less: what its
        # sender had received when it was made.
        self._arrived = 0
        # Frames sent and not known to have arrived, oldest first: those above ``_arrived``, and no others.
        self._kept: deque[Frame] = deque()
        self._kept_bytes = 0

    @property
    def kept_bytes(self) -> int:
        """The bytes of the frames that are not known to have arrived."""
        return self._kept_bytes

    @property
    def reported(self) -> int:
        """The highest number that the other side has reported."""
        return self._arrived

    def number(self, frame: Frame, *, keep: bool) -> None:
        """Give a frame its number if its type has one.  ``keep=False``: the link can't lose frames."""
        if frame.type in NUMBERED:
            self.last = frame.number = self.last + 1
            if keep:
                self._kept.append(frame)
                self._kept_bytes += frame.size_bytes

    def arrived(self, received: int) -> None:
        """Forget the frames up to ``received``, which the other side has received.

        Raises:
            RemoteProtocolError: it has received more than was sent.
        """
        if received > self.last:
            raise violation("bad_number", f"frame {received} is said to have arrived, {self.last} were sent")
        if received > self._arrived:
            self._arrived = received
        kept = self._kept
        while kept and kept[0].number <= received:
            self._kept_bytes -= kept.popleft().size_bytes

    def resume(self, received: int) -> Iterator[Frame]:
        """Return the frames to be sent again, in order, when the other side has everything up to ``received``.

        Raises:
            RemoteProtocolError: it has received more than was sent, or lacks what it had reported received.
        """
        if received < self._arrived:
            raise violation("bad_number", f"frame {received} is said to be the last, after {self._arrived} had arrived")
        self.arrived(received)
        invariant(
            len(self._kept) == self.last - received,
            "every frame that has not arrived is kept, and nothing else",
        )
        return iter(tuple(self._kept))


class IncomingStream:
    """The check of the numbers of received frames."""

    __slots__ = ("last", "unreported_bytes")

    def __init__(self) -> None:
        #: The highest number received.
        self.last: int = 0
        #: Bytes received since the other side was last told of it.
        self.unreported_bytes: int = 0

    def accept(self, frame: Frame) -> None:
        """Check the number of a received frame, and count the frame.

        Raises:
            RemoteProtocolError: its number isn't the next one, or it has one and should not.
        """
        expected = self.last + 1 if frame.type in NUMBERED else 0
        if frame.number != expected:
            raise violation("bad_number", f"{frame.type.name} has number {frame.number}, not {expected}")
        if expected:
            self.last = expected
            self.unreported_bytes += frame.size_bytes
