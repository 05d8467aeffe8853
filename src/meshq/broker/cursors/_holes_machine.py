"""The holes of a queue under a cursor: numbers without a message, and why there is none.

Whoever reads by number has to know whether a number that is missing was a message.  A queue under a cursor loses
messages in two ways only, and both are written down: their time to live ends, or a restart takes what was not durable.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from itertools import chain
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
#: Holes of one record, which has at most 4,096 bytes.
RECORD_HOLES_MAX: Final = 200
#: So many records more than are needed are not written anew.
_SPARE_RECORDS: Final = 64
#: No number of a message.
_NEVER: Final = 1 << 64


class Hole(NamedTuple):
    """The numbers ``lo`` up to, and without, ``hi``: no message has them, and ``kind`` says why."""

    lo: int
    hi: int
    kind: str


class HoleLog:
    """The holes of one queue that the journal keeps."""

    __slots__ = ("_ranges", "_records", "volatile_until")

    def __init__(self) -> None:
        # By kind, in order, without overlaps: neighbours are one.
        self._ranges: dict[str, list[tuple[int, int]]] = {kind: [] for kind in LOGGED}
        # By position of the record the number behind its holes.
        self._records: dict[int, int] = {}
        #: Messages that are not durable may have numbers below this one: that is written down.
        self.volatile_until: int = 0

    def __len__(self) -> int:
        return sum(map(len, self._ranges.values()))

    @property
    def scattered(self) -> bool:
        """Whether far fewer records would say the same: holes that came one by one have become neighbours."""
        return len(self._records) > 2 * (len(self) // RECORD_HOLES_MAX + 1) + _SPARE_RECORDS

    def note(self, holes: Iterable[Hole], position: int) -> None:
        """Note holes that a record at ``position`` says; 0: no record."""
        for hole in holes:
            if hole.kind == VOLATILE:
                self.volatile_until = max(self.volatile_until, hole.hi)
            _add(self._ranges[hole.kind], hole.lo, hole.hi)
            if position:
                self._records[position] = max(self._records.get(position, 0), hole.hi)

    def all(self) -> list[Hole]:
        """Return all holes, the kinds one after the other."""
        return [Hole(lo, hi, kind) for kind, ranges in self._ranges.items() for lo, hi in ranges]

    def forget_below(self, number: int) -> list[int]:
        """Forget the holes that end below ``number``; return the positions of the records that are no longer needed."""
        for ranges in self._ranges.values():
            del ranges[: _first_behind(ranges, number)]
        dead = [position for position, hi in self._records.items() if hi <= number]
        for position in dead:
            del self._records[position]
        return dead

    def forget_all(self) -> list[int]:
        """Forget everything; return the positions of the records."""
        return self.forget_below(_NEVER)

    def has(self, kind: str, lo: int, hi: int) -> bool:
        """Whether all numbers of a range are holes of a kind."""
        return _inside(self._ranges[kind], lo)[0] and _inside(self._ranges[kind], lo)[1] >= hi

    def of_kind(self, kind: str) -> list[tuple[int, int]]:
        """Return the ranges of a kind, in order, without overlaps."""
        return self._ranges[kind]


def _first_behind(ranges: list[tuple[int, int]], number: int) -> int:
    """The index of the first of some ranges in order that ends behind a number."""
    index = bisect_right(ranges, (number, _NEVER))
    return index - 1 if index and ranges[index - 1][1] > number else index


def _add(ranges: list[tuple[int, int]], lo: int, hi: int) -> None:
    """Add a range to others in order; neighbours and overlaps are made one."""
    if lo >= hi:
        return
    first = bisect_left(ranges, (lo, 0))
    if first and ranges[first - 1][1] >= lo:
        first -= 1
    last = bisect_right(ranges, (hi, _NEVER), first)
    if first < last:
        lo, hi = min(lo, ranges[first][0]), max(hi, ranges[last - 1][1])
    ranges[first:last] = [(lo, hi)]


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
) -> Iterator[Hole]:
    """Yield the holes from ``lo`` up to, and without, ``hi``, in order: only as much is looked at as is asked for.

    ``present``: the ranges of numbers that messages have, in order.  ``processed``: where the cursor began, and up to
    where it has acknowledged.  ``since``: what was missing below this number when the cursor was registered is
    ``CONSUMED``.  ``floor``: numbers below were given in an earlier life of the node.
    """
    expired = log.of_kind(EXPIRED) if log is not None else []
    volatile = log.of_kind(VOLATILE) if log is not None else []
    last: Hole | None = None
    at = lo
    for start, stop in chain(present, [(hi, hi)]):
        while at < min(start, hi):
            in_expired, expired_end = _inside(expired, at)
            in_volatile, volatile_end = _inside(volatile, at)
            ends = (start, hi, expired_end, volatile_end, since, floor, *processed)
            end = min(end for end in ends if end > at)
            if processed[0] <= at < processed[1]:
                kind = ACKNOWLEDGED
            elif in_expired:
                kind = EXPIRED
            elif at < floor and in_volatile:
                kind = LOST
            else:
                kind = CONSUMED if at < since else RESERVED
            if last is not None and (last.hi, last.kind) == (at, kind):
                last = Hole(last.lo, end, kind)
            else:
                if last is not None:
                    yield last
                last = Hole(at, end, kind)
            at = end
        at = max(at, stop)
    if last is not None:
        yield last


def _inside(ranges: list[tuple[int, int]], number: int) -> tuple[bool, int]:
    """Whether a number is in one of some ranges in order, and up to where that is so."""
    index = _first_behind(ranges, number)
    if index == len(ranges):
        return False, _NEVER
    lo, hi = ranges[index]
    return (True, hi) if lo <= number else (False, lo)
