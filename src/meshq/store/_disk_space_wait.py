"""Who waits until what was placed before is sure to have its room on the disk.

What is placed has its place in the order for good: if a full disk has no room for it, everything behind it waits, and
with that the acknowledgements that would make some.  The reserve takes what is in the batch being written and the open
one.  When more batches than these wait for the disk, new roots are placed only as far as the segment being written and
the spare one have room for all of it.  The others wait here, one behind the other, and are asked again after each
batch: by then the next segment is there, or the disk is known to be full.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class DiskSpaceWait:
    """Roots that are not placed yet, by the bytes that they may need; first come, first served."""

    __slots__ = ("_waiting",)

    def __init__(self) -> None:
        self._waiting: deque[tuple[int, Callable[[], None]]] = deque()

    def wait(self, need: int, then: Callable[[], None]) -> bool:
        """``then`` is called once, when there is room, or none to be waited for.  False: not yet."""
        self._waiting.append((need, then))
        return False

    def resume(self, has_space_behind: Callable[[int], bool]) -> None:
        """Call those that are sure of their room by now; each has placed what it wants when its call returns."""
        while self._waiting and has_space_behind(self._waiting[0][0]):
            self._waiting.popleft()[1]()
