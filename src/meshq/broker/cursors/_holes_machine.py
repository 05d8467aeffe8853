"""The holes of a queue under a cursor: numbers without a message, and why there is none.

Whoever reads by number has to know whether a number that is missing was a message.  A queue under a cursor loses
messages in two ways only, and both are written down: their time to live ends, or a restart takes what was not durable.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

#: The cursor has acknowledged the message.
ACKNOWLEDGED: Final = "acknowledged"
#: The message was gone before the cursor was registered: consumed, or gone in another way.
CONSUMED: Final = "consumed"
#: The time to live of the message ended before the message was pinned.
EXPIRED: Final = "expired"
#: The number may have been that of a message which was not durable, and which a restart has taken.
LOST: Final = "lost"
#: The number was reserved, and no message had it: a repeat, a message of another queue, a block skipped by a restart.
RESERVED: Final = "reserved"
#: In the log only: numbers that messages which are not durable may have.  After a restart what is missing is ``LOST``.
VOLATILE: Final = "volatile"
#: The kinds that are written down.
LOGGED: Final = (EXPIRED, VOLATILE)


class Hole(NamedTuple):
    """The numbers ``lo`` up to, and without, ``hi``: no message has them, and ``kind`` says why."""

    lo: int
    hi: int
    kind: str


class HoleLog:
    """The holes of one queue that the journal keeps."""

    __slots__ = ("_entries", "_in_record", "volatile_until")

    def __init__(self) -> None:
        # With the position of its record; 0: it has none.
        self._entries: list[tuple[Hole, int]] = []
        # How many entries of a record are kept, by its position.
        self._in_record: dict[int, int] = {}
        #: Messages that are not durable may have numbers below this one: that is written down.
        self.volatile_until: int = 0

    def __len__(self) -> int:
        return len(self._entries)

    def note(self, holes: Iterable[Hole], position: int) -> None:
        """Note holes that a record at ``position`` says; 0: no record."""
        for hole in holes:
            if hole.kind == VOLATILE:
                self.volatile_until = max(self.volatile_until, hole.hi)
            last = self._entries[-1] if self._entries else None
            if last is not None and not position and (last[0].hi, last[0].kind, last[1]) == (hole.lo, hole.kind, 0):
                self._entries[-1] = (Hole(last[0].lo, hole.hi, hole.kind), 0)
                continue
            self._entries.append((hole, position))
            if position:
                self._in_record[position] = self._in_record.get(position, 0) + 1

    def forget_below(self, number: int) -> list[int]:
        """Forget the holes that end below ``number``; return the positions of the records that are no longer needed."""
        return self._forget([entry for entry in self._entries if entry[0].hi <= number])

    def forget_all(self) -> list[int]:
        """Forget everything; return the positions of the records."""
        return self._forget(list(self._entries))

    def _forget(self, gone: Sequence[tuple[Hole, int]]) -> list[int]:
        if not gone:
            return []
        over = set(gone)
        self._entries = [entry for entry in self._entries if entry not in over]
        dead: list[int] = []
        for _, position in gone:
            if position:
                self._in_record[position] -= 1
                if not self._in_record[position]:
                    del self._in_record[position]
                    dead.append(position)
        return dead

    def of_kind(self, kind: str) -> list[tuple[int, int]]:
        """Return the ranges of a kind, in order, without overlaps."""
        return merged((hole.lo, hole.hi) for hole, _ in self._entries if hole.kind == kind)


def merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return ranges in order, with neighbours and overlaps made one."""
    found: list[tuple[int, int]] = []
    for lo, hi in sorted(ranges):
        if found and lo <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], hi))
        elif lo < hi:
            found.append((lo, hi))
    return found


def holes_between(
    lo: int,
    hi: int,
    present: Iterable[tuple[int, int]],
    log: HoleLog | None,
    *,
    processed: tuple[int, int],
    since: int,
    floor: int,
) -> list[Hole]:
    """Return the holes from ``lo`` up to, and without, ``hi``, in order.

    ``present``: the ranges of numbers that messages have.  ``processed``: where the cursor began, and up to where it
    has acknowledged.  ``since``: what was missing below this number when the cursor was registered is ``CONSUMED``.
    ``floor``: numbers below were given in an earlier life of the node.
    """
    expired = log.of_kind(EXPIRED) if log is not None else []
    volatile = log.of_kind(VOLATILE) if log is not None else []
    cuts = sorted({since, floor, *processed, *(end for one in (*expired, *volatile) for end in one)})
    found: list[Hole] = []
    at = lo
    for start, stop in [*merged(present), (hi, hi)]:
        gap_end = min(start, hi)
        while at < gap_end:
            index = bisect_right(cuts, at)
            end = min(gap_end, cuts[index]) if index < len(cuts) else gap_end
            if processed[0] <= at < processed[1]:
                kind = ACKNOWLEDGED
            elif _inside(expired, at):
                kind = EXPIRED
            elif at < floor and _inside(volatile, at):
                kind = LOST
            else:
                kind = CONSUMED if at < since else RESERVED
            if found and found[-1].hi == at and found[-1].kind == kind:
                found[-1] = Hole(found[-1].lo, end, kind)
            else:
                found.append(Hole(at, end, kind))
            at = end
        at = max(at, stop)
    return found


def _inside(ranges: list[tuple[int, int]], number: int) -> bool:
    index = bisect_right(ranges, (number, 1 << 64)) - 1
    return index >= 0 and ranges[index][0] <= number < ranges[index][1]
