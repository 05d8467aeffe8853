"""The bytes of batches that are on their way to a disk."""

from __future__ import annotations

from collections import deque


class Backlog:
    """The batches beyond a position, with their bytes."""

    def __init__(self) -> None:
        #: The bytes of them all.
        self.size_bytes: int = 0
        self._batches: deque[tuple[int, int]] = deque()

    def add(self, last: int, size_bytes: int) -> None:
        """Note a batch that ends with a position."""
        self._batches.append((last, size_bytes))
        self.size_bytes += size_bytes

    def reached(self, position: int) -> None:
        """Note that everything up to a position is there."""
        while self._batches and self._batches[0][0] <= position:
            self.size_bytes -= self._batches.popleft()[1]

    def clear(self) -> None:
        """Forget them all."""
        self._batches.clear()
        self.size_bytes = 0
