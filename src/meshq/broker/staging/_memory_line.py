"""The line of staged runs that wait for memory: a run that is in no journal can be paged only after it was taken.

Runs that wait, for memory or for the disk, are in memory themselves: their bytes have a bound of their own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from meshq import limits
from meshq.broker.ingress._memory import MemoryBound
from meshq.errors import AddressFullError


class MemoryLine:
    """Stands among the sessions that wait for credit, in the name of all staged runs that wait."""

    __slots__ = ("_line", "_memory", "granted_bytes", "sent_bytes", "waiting_bytes")

    def __init__(self, memory: MemoryBound) -> None:
        self._memory = memory
        self._line: deque[Callable[[], None]] = deque()
        #: The bytes of all staged runs that wait, here or for the disk.
        self.waiting_bytes: int = 0
        #: What the bound has granted, which is given back as soon as the line goes on.
        self.granted_bytes: int = 0
        self.sent_bytes: int = 0

    def check(self, size_bytes: int) -> None:
        """Check that the waiting runs leave room for one more.

        Raises:
            AddressFullError: too much waits.
        """
        bound = max(self._memory.limit_bytes, limits.STAGED_WAITING_BYTES_MIN)
        if self.waiting_bytes and self.waiting_bytes + size_bytes > bound:
            raise AddressFullError(f"{self.waiting_bytes} bytes of stages wait for room; they may be {bound}")

    @contextmanager
    def holding(self, size_bytes: int) -> Iterator[None]:
        """Count a run that waits, within the block."""
        self.waiting_bytes += size_bytes
        try:
            yield
        finally:
            self.waiting_bytes -= size_bytes

    def wait(self, then: Callable[[], None]) -> None:
        """Call ``then`` when less memory than the limit is used, after the runs that came before."""
        self._line.append(then)
        if len(self._line) == 1:
            self._memory.open(self)

    def credit_changed(self) -> None:
        """Let the line go on for as long as there is memory, if something was granted."""
        memory, line = self._memory, self._line
        if self.granted_bytes <= self.sent_bytes:
            # Nothing is granted for want of room on the disk.
            return
        memory.close(self)
        while line and memory.used_bytes < memory.limit_bytes:
            line.popleft()()
        if line:
            memory.open(self)
