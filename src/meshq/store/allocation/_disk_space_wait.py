"""The queue of new records that may not be placed before their disk space is certain.

A placed record keeps its position: if a full disk has no space for it, every later record waits too, and so do the
acknowledgements that would free space.  The reserve holds the batch being written and the open batch.  When more
batches than these wait for the disk, new records are placed only as far as the segment being written and the spare
segment can hold all of them.  Other new records wait here in order, and are tried again after each batch: by then the
next segment exists, or the disk is known to be full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class DiskSpaceWait:
    """The records that are not placed yet, by the bytes that they may need, in order of arrival."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def wait(self, need: int, then: Callable[[], None]) -> bool:
        """Queue a record that needs ``need`` bytes; return False.  ``then`` is called once: when the space is
        certain, or when the disk is known to be full.
        """
        self._waiting.append((need, then))
        return False

    def resume(self, has_space_behind: Callable[[int], bool]) -> None:
        """Call the waiting records whose space is certain now, in order; each call places its records."""
        while self._waiting and has_space_behind(self._waiting[0][0]):
            self._waiting.popleft()[1]()
