"""Answers that are kept for a resume, and may have arrived: a client that asks on has to say how far."""

from __future__ import annotations

from collections import deque
from typing import Final

from meshq import limits
from meshq.wire import Frame, violation

#: Of memory, that an answer takes beside its bytes while it is kept.
OVERHEAD_BYTES: Final = 512


class Answers:
    """The kept answers of one session.  Deliveries are bounded by windows; the number of answers is not."""

    __slots__ = ("_bytes", "_kept")

    def __init__(self) -> None:
        # By number, the oldest first: what each of them takes.
        self._kept: deque[tuple[int, int]] = deque()
        self._bytes = 0

    def add(self, frame: Frame) -> None:
        """Note an answer that was sent."""
        size = frame.size_bytes + OVERHEAD_BYTES
        self._kept.append((frame.number, size))
        self._bytes += size

    def check(self, reported: int) -> None:
        """The client asks again, and has said that everything up to ``reported`` has come.

        Raises:
            RemoteProtocolError: too much was answered that it says nothing of.
        """
        while self._kept and self._kept[0][0] <= reported:
            self._bytes -= self._kept.popleft()[1]
        if self._bytes > limits.UNREPORTED_BYTES_MAX:
            raise violation("no_credit", f"{self._bytes} bytes of answers are not reported to have come")
