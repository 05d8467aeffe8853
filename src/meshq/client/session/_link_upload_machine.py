"""The blocks of a large body that goes over a link between nodes: which is read next, and when the body is whole."""

from __future__ import annotations

from meshq import limits
from meshq.errors import invariant


class LinkUploadMachine:
    """The blocks of one body.  At most ``window`` of them are read and not answered: no more is in memory."""

    __slots__ = ("_window", "answered", "asked", "count", "sent")

    def __init__(self, size_bytes: int, window: int = limits.LARGE_WINDOW_BLOCKS) -> None:
        invariant(size_bytes > 0, "a large body has bytes")
        self.count: int = -(-size_bytes // limits.LARGE_BLOCK_BYTES)
        self._window = window
        #: Blocks that were asked for, that were sent, and that the other node has written.
        self.asked: int = 0
        self.sent: int = 0
        self.answered: int = 0

    @property
    def whole(self) -> bool:
        """Whether the other node has all of the body."""
        return self.answered == self.count

    def next(self) -> int | None:
        """Return the number of the block to read next, and count it; None: not now."""
        if self.asked == self.count or self.asked - self.answered >= self._window:
            return None
        self.asked += 1
        return self.asked - 1

    def read(self) -> bool:
        """Count a block that was read and is sent now; return whether it is the last one."""
        invariant(self.sent < self.asked, "a block is asked for before it is read")
        self.sent += 1
        return self.sent == self.count

    def written(self) -> None:
        """Count a block that the other node has written."""
        invariant(self.answered < self.sent, "a block is sent before it is written")
        self.answered += 1
