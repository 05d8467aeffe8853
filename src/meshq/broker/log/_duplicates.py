"""Duplicate ids of one address: a bounded window, oldest out first.

Ids arrive in the record of their run.  When that record is deleted before its ids leave the window, the ids move into a
record of their own, which is deleted when the last of them leaves.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence


class IdChunk:
    """The ids that came with one run."""

    __slots__ = ("ids", "origin", "record", "start")

    def __init__(self, origin: int, ids: Sequence[bytes], record: int = 0) -> None:
        # Position of the run's record; 0 for ids that stand in no record.
        self.origin: int = origin
        self.ids: Sequence[bytes] = ids
        # Position of the record that the ids moved into; 0 while the run's own record holds them.
        self.record: int = record
        # How many of the ids have left the window.
        self.start: int = 0


class DuplicateIds:
    """The window of one address."""

    __slots__ = ("_by_origin", "_chunks", "_count", "_known", "capacity")

    def __init__(self, capacity: int) -> None:
        self.capacity: int = capacity
        # Never iterated: membership only.
        self._known: set[bytes] = set()
        # Oldest first.
        self._chunks: deque[IdChunk] = deque()
        self._by_origin: dict[int, IdChunk] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def fresh_rows(self, ids: Sequence[bytes]) -> list[int] | None:
        """Which rows are not repeats, by index; ``None``: all.  ``b""`` is no id."""
        if not self.capacity:
            return None
        known = self._known
        if known.isdisjoint(ids) and len(dict.fromkeys(ids)) == len(ids):
            return None
        seen: dict[bytes, None] = {}
        rows = []
        for row, duplicate_id in enumerate(ids):
            if duplicate_id:
                if duplicate_id in known or duplicate_id in seen:
                    continue
                seen[duplicate_id] = None
            rows.append(row)
        return rows

    def add(self, chunk: IdChunk) -> list[int]:
        """Enter the ids of a run; return positions of id records that are no longer needed."""
        if not self.capacity:
            return [chunk.record] if chunk.record else []
        self._known.update(chunk.ids)
        self._chunks.append(chunk)
        if chunk.origin:
            self._by_origin[chunk.origin] = chunk
        self._count += len(chunk.ids)
        return self._evict() if self._count > self.capacity else []

    def resize(self, capacity: int) -> list[int]:
        """Change how many ids are remembered; return positions of id records that are no longer needed."""
        self.capacity = capacity
        return self._evict() if self._count > capacity else []

    def _evict(self) -> list[int]:
        dead: list[int] = []
        over = self._count - self.capacity
        self._count -= over
        while over > 0:
            chunk = self._chunks[0]
            end = min(len(chunk.ids), chunk.start + over)
            self._known.difference_update(chunk.ids[chunk.start : end])
            over -= end - chunk.start
            chunk.start = end
            if end == len(chunk.ids):
                self._chunks.popleft()
                self._by_origin.pop(chunk.origin, None)
                if chunk.record:
                    dead.append(chunk.record)
        return dead

    def surviving(self, origin: int) -> IdChunk | None:
        """The chunk of the run at ``origin``, if ids of it are still in the window."""
        return self._by_origin.get(origin)
