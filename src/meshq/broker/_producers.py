"""The highest message number stored from each producer: what makes a resent message harmless."""

from __future__ import annotations

from collections import OrderedDict

from meshq import limits
from meshq.broker._records import PRODUCERS_MAX, encode_producers


class ProducerMarks:
    """High marks by producer id, the least recently active first.

    Bounded.  Once a mark has been given up, a resent message of a producer that isn't remembered can't be judged.
    """

    __slots__ = ("_capacity", "_marks", "forgotten")

    def __init__(self, capacity: int = limits.PRODUCERS_MAX) -> None:
        self._capacity = capacity
        self._marks: OrderedDict[bytes, int] = OrderedDict()
        #: Whether some mark was given up.
        self.forgotten = False

    def __len__(self) -> int:
        return len(self._marks)

    def get(self, producer: bytes) -> int | None:
        """The highest number stored; None for a producer that isn't remembered."""
        return self._marks.get(producer)

    def raise_to(self, producer: bytes, number: int) -> None:
        """Messages up to ``number`` are placed."""
        marks = self._marks
        if number > marks.get(producer, 0):
            marks[producer] = number
        marks.move_to_end(producer)
        if len(marks) > self._capacity:
            marks.popitem(last=False)
            self.forgotten = True

    def checkpoint(self) -> list[bytes]:
        """All marks as payloads of records."""
        marks = list(self._marks.items())
        chunks = [marks[at : at + PRODUCERS_MAX] for at in range(0, len(marks), PRODUCERS_MAX)]
        if not chunks and self.forgotten:
            chunks = [[]]
        return [encode_producers(chunk, forgotten=self.forgotten) for chunk in chunks]
