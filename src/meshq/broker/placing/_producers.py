"""The highest message number stored from each producer: what makes a resent message harmless.

Below it there may be gaps: runs that were refused while later ones were stored.  Who sent them may never have been
told, and sends them again after a restart; then they are not taken for stored.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

from meshq import limits
from meshq.broker.records import PRODUCERS_MAX, ProducersRecord, encode_producers

#: Gaps remembered, of one producer and of all.  The oldest go first: a gap matters only until its producer has
#: heard of the refusal, which is a round trip.
GAPS_OF_ONE_MAX: Final = 64
GAPS_MAX: Final = 16_384

Gap = tuple[int, int]


class ProducerMarks:
    """High marks by producer id, the least recently active first.

    Bounded.  Once a mark has been given up, a resent message of a producer that isn't remembered can't be judged.
    """

    __slots__ = ("_capacity", "_gap_count", "_gaps", "_marks", "forgotten")

    def __init__(self, capacity: int = limits.PRODUCERS_MAX) -> None:
        self._capacity = capacity
        self._marks: OrderedDict[bytes, int] = OrderedDict()
        # First and last number of what was not stored below a mark, rising.
        self._gaps: dict[bytes, list[Gap]] = {}
        self._gap_count = 0
        #: Whether some mark was given up.
        self.forgotten = False

    def __len__(self) -> int:
        return len(self._marks)

    def get(self, producer: bytes) -> int | None:
        """The highest number stored; None for a producer that isn't remembered."""
        return self._marks.get(producer)

    def whole(self, producer: bytes) -> int:
        """Everything up to this number is stored, or was refused and its producer knows."""
        gaps = self._gaps.get(producer)
        return gaps[0][0] - 1 if gaps else self._marks.get(producer, 0)

    def lacks(self, producer: bytes, first: int, last: int) -> bool:
        """Whether the messages ``first`` to ``last``, all below the mark, are known not to be stored."""
        return any(low <= first and last <= high for low, high in self._gaps.get(producer, ()))

    def raise_to(self, producer: bytes, first: int, last: int) -> None:
        """The messages ``first`` to ``last`` are placed."""
        marks = self._marks
        mark = marks.get(producer, 0)
        if last > mark:
            # Of a producer that may have been forgotten nobody knows what is below.
            if first > mark + 1 and (mark or not self.forgotten):
                self._open_gap(producer, mark + 1, first - 1)
            marks[producer] = last
        elif producer in self._gaps:
            self._fill(producer, first, last)
        marks.move_to_end(producer)
        if len(marks) > self._capacity:
            given_up, _ = marks.popitem(last=False)
            self._gap_count -= len(self._gaps.pop(given_up, ()))
            self.forgotten = True

    def restore(self, producer: bytes, mark: int) -> None:
        """A checkpoint knows of this mark."""
        if mark > self._marks.get(producer, 0):
            self.raise_to(producer, 1, mark)

    def restore_gap(self, producer: bytes, first: int, last: int) -> None:
        """A checkpoint knows of this gap."""
        if producer in self._marks:
            self._open_gap(producer, first, last)

    def _open_gap(self, producer: bytes, first: int, last: int) -> None:
        gaps = self._gaps.setdefault(producer, [])
        gaps.append((first, last))
        self._gap_count += 1
        if len(gaps) > GAPS_OF_ONE_MAX:
            del gaps[0]
            self._gap_count -= 1
        elif self._gap_count > GAPS_MAX:
            self._gap_count -= len(self._gaps.pop(next(iter(self._gaps))))

    def _fill(self, producer: bytes, first: int, last: int) -> None:
        old = self._gaps.pop(producer)
        gaps: list[Gap] = []
        for low, high in old:
            if low <= first and last <= high:
                gaps += [(begin, end) for begin, end in ((low, first - 1), (last + 1, high)) if begin <= end]
            else:
                gaps.append((low, high))
        self._gap_count += len(gaps) - len(old)
        if gaps:
            self._gaps[producer] = gaps

    def checkpoint(self) -> list[bytes]:
        """All of it as payloads of records."""
        marks = list(self._marks.items())
        chunks = [marks[at : at + PRODUCERS_MAX] for at in range(0, len(marks), PRODUCERS_MAX)]
        if not chunks and self.forgotten:
            chunks = [[]]
        return [
            encode_producers(
                ProducersRecord(
                    self.forgotten,
                    tuple(chunk),
                    tuple((producer, *gap) for producer, _ in chunk for gap in self._gaps.get(producer, ())),
                )
            )
            for chunk in chunks
        ]
