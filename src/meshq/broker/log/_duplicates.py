"""Duplicate ids of one address: a bounded window, oldest out first.

Ids arrive in the record of their run.  When that record is deleted before its ids leave the window, the ids move into a
record of their own, which is deleted when the last of them leaves.

The id of a message that is not durable holds for others that are not durable only: a durable one that is confirmed has
to be there after a restart, which such an id does not outlive.  A durable message with it is stored, and its id counts
from then on.

A node that leaves hands its ids over.  These stand beside the window's own, so that it grows to the sum: each id stays
until as many newer ones have come, counted where it was before and from then on here, as the window has room for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class IdChunk:
    """The ids that came with one run, or that another node has handed over together.

    ``origin``: position of the run's record; 0 for ids that stand in no record.  ``record``: position of the record
    that the ids moved into; 0 while the run's own record holds them.  ``newer``: of ids that were handed over, how many
    newer ones the other node had; None: these came here.  ``durable``: whether their messages are.
    """

    __slots__ = ("durable", "given", "ids", "newer", "origin", "record", "since", "start")

    def __init__(
        self, origin: int, ids: Sequence[bytes], record: int = 0, newer: int | None = None, *, durable: bool = True
    ) -> None:
        self.origin: int = origin
        self.ids: Sequence[bytes] = ids
        self.record: int = record
        self.newer: int | None = newer
        self.durable: bool = durable
        # How many of the ids have left the window.
        self.start: int = 0
        # Up to where the ids were handed over to another node.
        self.given: int = 0
        # Of ids that were handed over: how many ids of its own the window had taken by then.
        self.since: int = 0

    @property
    def kept(self) -> range:
        """The places of the ids that are in the window and were not handed over."""
        return range(max(self.start, self.given), len(self.ids))

    def shorten(self) -> None:
        """Forget the ids that have left the window."""
        self.ids, self.given, self.start = self.ids[self.start :], max(0, self.given - self.start), 0


class IdPart(NamedTuple):
    """Ids of a window, oldest first, and how many newer ones the window has; ``durable``: those of durable messages."""

    ids: tuple[bytes, ...]
    newer: int
    durable: bool


class _Leaving:
    """The chunks whose ids are to be handed over, in the order in which these go.

    So no part looks at what went before it, and ids of one kind are one part, however often the kinds take turns.
    ``taken``: how many ids of its own the window had taken by then.
    """

    __slots__ = ("_kinds", "taken")

    def __init__(self, chunks: Iterator[IdChunk], left: int, taken: int) -> None:
        self.taken: int = taken
        # Each chunk, with the number of ids behind it: those of messages that are not durable, and the others.
        self._kinds: tuple[deque[tuple[IdChunk, int]], deque[tuple[IdChunk, int]]] = deque(), deque()
        for chunk in chunks:
            if count := len(chunk.kept):
                left -= count
                self._kinds[chunk.durable].append((chunk, left))

    @property
    def chunks(self) -> deque[tuple[IdChunk, int]]:
        """The chunks of one kind that have ids to hand over, oldest first; empty: none has."""
        for kind in self._kinds:
            while kind and not kind[0][0].kept:
                kind.popleft()
            if kind:
                return kind
        return self._kinds[1]

    @property
    def more(self) -> bool:
        """Whether ids are left."""
        return bool(self.chunks)


class DuplicateIds:
    """The window of one address."""

    __slots__ = (
        "_by_origin", "_chunks", "_count", "_handed", "_known", "_leaving", "_outlived", "_taken", "_volatile",
        "capacity",
    )  # fmt: skip

    def __init__(self, capacity: int) -> None:
        self.capacity: int = capacity
        # Never iterated: membership only.
        self._known: set[bytes] = set()
        # Of these, the ids of messages none of which is durable, and where each stands.
        self._volatile: dict[bytes, IdChunk] = {}
        # Where ids stand that were handed over for messages that are durable: they may stay longer there.
        self._outlived: dict[bytes, IdChunk] = {}
        # What is left to hand over; None: nobody has asked yet.
        self._leaving: _Leaving | None = None
        # Oldest first: its own, and what was handed over.
        self._chunks: deque[IdChunk] = deque()
        self._handed: list[IdChunk] = []
        self._by_origin: dict[int, IdChunk] = {}
        # Its own ids, and how many it has ever taken.
        self._count = self._taken = 0

    def __len__(self) -> int:
        return len(self._known)

    @property
    def left(self) -> int:
        """How many ids were not handed over to another node."""
        return sum(len(chunk.kept) for chunk in self._all())

    def _all(self) -> Iterator[IdChunk]:
        yield from self._handed
        yield from self._chunks

    def known(self) -> list[bytes]:
        """Return all ids: first the handed-over ids, then the window's own ids, oldest first."""
        return [
            one
            for chunk in self._all()
            for one in chunk.ids[chunk.start :]
            if chunk.durable or self._volatile.get(one) is chunk
        ]

    def part(self, ids_max: int, bytes_max: int) -> tuple[IdPart, list[tuple[IdChunk, int]]]:
        """Return the oldest ids that were not handed over; and up to where they reach in their chunks (``give``).

        A part has ids of durable messages, or of others.  The others go first: an id of both is a durable one there.
        """
        leaving = self._leaving
        if leaving is None or not leaving.more:
            # Nothing is left of what was there then; more may have come since.
            leaving = self._leaving = _Leaving(self._all(), self.left, self._taken)
        found: list[bytes] = []
        reached: list[tuple[IdChunk, int]] = []
        newer = 0
        chunks = leaving.chunks
        for chunk, behind in chunks:
            place = chunk.kept.start
            while place < len(chunk.ids) and len(found) < ids_max and bytes_max > 0:
                found.append(chunk.ids[place])
                bytes_max -= len(chunk.ids[place])
                place += 1
            if place > chunk.kept.start:
                reached.append((chunk, place))
                newer = len(chunk.ids) - place + behind + self._taken - leaving.taken
            if place < len(chunk.ids):
                break
        return IdPart(tuple(found), newer, reached[0][0].durable if reached else True), reached

    def take_back(self) -> None:
        """Count no id as handed over any more."""
        for chunk in self._all():
            chunk.given = 0
        self._leaving = None

    def fresh_rows(self, ids: Sequence[bytes], *, durable: bool = True) -> list[int] | None:
        """Which rows are not repeats, by index; ``None``: all.  ``b""`` is no id.

        ``durable``: whether the messages of these ids are.
        """
        if not self.capacity or not any(ids):
            return None
        known = self._known
        if known.isdisjoint(ids) and len(dict.fromkeys(ids)) == len(ids):
            return None
        seen: dict[bytes, None] = {}
        rows = []
        for row, duplicate_id in enumerate(ids):
            if duplicate_id:
                if duplicate_id in seen:
                    continue
                if duplicate_id in known and not (durable and duplicate_id in self._volatile):
                    continue
                seen[duplicate_id] = None
            rows.append(row)
        return rows

    def add(self, chunk: IdChunk) -> list[int]:
        """Enter ids that are fresh (``fresh_rows``); return positions of id records that are no longer needed."""
        if not self.capacity:
            return [chunk.record] if chunk.record else []
        self._place(chunk)
        if chunk.newer is not None:
            chunk.since = self._taken
            self._handed.append(chunk)
            return self._age()
        self._chunks.append(chunk)
        if chunk.origin:
            self._by_origin[chunk.origin] = chunk
        self._count += len(chunk.ids)
        self._taken += len(chunk.ids)
        dead = self._evict() if self._count > self.capacity else []
        return dead + self._age() if self._handed else dead

    def _place(self, chunk: IdChunk) -> None:
        """Know the ids of a chunk, and which of them are of messages that are not durable."""
        handed = chunk.newer is not None
        if not chunk.durable:
            self._volatile.update(dict.fromkeys(chunk.ids, chunk))
        elif self._volatile:
            for one in chunk.ids:
                former = self._volatile.pop(one, None)
                if former is not None and handed:
                    self._outlived[one] = former
        self._known.update(chunk.ids)

    def resize(self, capacity: int) -> list[int]:
        """Change how many ids are remembered; return positions of id records that are no longer needed."""
        self.capacity = capacity
        return (self._evict() if self._count > capacity else []) + self._age()

    def _evict(self) -> list[int]:
        dead: list[int] = []
        over = self._count - self.capacity
        self._count -= over
        while over > 0:
            chunk = self._chunks[0]
            end = min(len(chunk.ids), chunk.start + over)
            self._forget(chunk, end)
            over -= end - chunk.start
            chunk.start = end
            if end == len(chunk.ids):
                self._chunks.popleft()
                self._by_origin.pop(chunk.origin, None)
                if chunk.record:
                    dead.append(chunk.record)
        return dead

    def _forget(self, chunk: IdChunk, end: int) -> None:
        """Know the ids of a chunk no more that come before ``end``."""
        gone = chunk.ids[chunk.start : end]
        if not chunk.durable:
            # The others have come again, with a message that is durable.
            for one in gone if self._outlived else ():
                if self._outlived.get(one) is chunk:
                    del self._outlived[one]
            gone = [one for one in gone if self._volatile.get(one) is chunk]
            for one in gone:
                del self._volatile[one]
        elif self._outlived:
            still = [one for one in gone if one in self._outlived]
            self._volatile.update((one, self._outlived.pop(one)) for one in still)
            gone = [one for one in gone if one not in self._volatile]
        self._known.difference_update(gone)

    def _age(self) -> list[int]:
        """Drop the ids that were handed over and are too old by now."""
        dead: list[int] = []
        for chunk in self._handed:
            newer = (chunk.newer or 0) + self._taken - chunk.since
            end = min(len(chunk.ids), max(chunk.start, newer + len(chunk.ids) - self.capacity))
            self._forget(chunk, end)
            chunk.start = end
            if end == len(chunk.ids) and chunk.record:
                dead.append(chunk.record)
        self._handed = [chunk for chunk in self._handed if chunk.start < len(chunk.ids)]
        return dead

    def surviving(self, origin: int) -> IdChunk | None:
        """The chunk of the run at ``origin``, if ids of it are still in the window."""
        return self._by_origin.get(origin)
