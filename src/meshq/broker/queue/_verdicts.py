"""Verdicts: which filters accept which messages of a run; asked in steps before the run is placed.

Placing is one step that nothing may interrupt, and on an address with hundreds of filtered queues each message of a run
is put to hundreds of filters.  So a run that is much work is put to the filters beforehand, message by message and
filter by filter; placing then looks the verdicts up.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from meshq import limits
from meshq.broker.queue._queue_spec import QueueSpec
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._run_messages import RunMessages
from meshq.selector import Filter


class FilteredQueue(Protocol):
    """A queue, as far as its filter is concerned."""

    spec: QueueSpec


class QueuePlaces(NamedTuple):
    """Positions of queues, by whether their filters were asked."""

    by_filter: dict[int, list[int]]
    #: They have no filter.
    all_taking: list[int]
    #: Their filters were not asked.
    unknown: frozenset[int]


class AskedFilters:
    """Filters that runs were put to, each with a place."""

    __slots__ = ("_places", "_queues", "by_filter")

    def __init__(self, filters: Sequence[Filter]) -> None:
        self.by_filter = {filter: place for place, filter in enumerate(filters)}
        # What ``places`` said last, and of which queues.
        self._queues: list[FilteredQueue] = []
        self._places = QueuePlaces({}, [], frozenset())

    def places(self, queues: Sequence[FilteredQueue]) -> QueuePlaces:
        """Where queues stand whose filters were asked; runs one after the other ask of the same ones."""
        if self._queues != queues:
            by_filter: dict[int, list[int]] = {}
            all_taking, unknown = list[int](), list[int]()
            for position, queue in enumerate(queues):
                filter = queue.spec.filter
                place = self.by_filter.get(filter, -1) if filter is not None else -1
                if place >= 0:
                    by_filter.setdefault(place, []).append(position)
                else:
                    (all_taking if filter is None else unknown).append(position)
            self._queues, self._places = list(queues), QueuePlaces(by_filter, all_taking, frozenset(unknown))
        return self._places


class Verdicts:
    """The verdicts of some filters about the messages of one run: a bit for each.

    ``filters``: shared by runs that are put to the same filters.  ``asked``: the messages that were put to the filters,
    each a bit.
    """

    __slots__ = ("_accepted", "_bits", "_rows", "_stride", "asked", "filters")

    def __init__(self, filters: AskedFilters, rows: int, asked: int) -> None:
        self.filters = filters
        self.asked = asked
        # What ``accepted`` says, once it was asked.
        self._accepted: dict[int, int] | None = None
        self._rows = rows
        # Bytes for each filter.
        self._stride = stride_of(rows)
        self._bits = bytearray(self._stride * len(filters.by_filter))

    @property
    def size_bytes(self) -> int:
        """Bytes in memory, without the filters."""
        return len(self._bits) + OVERHEAD_BYTES

    def accept(self, place: int, row: int) -> None:
        """The filter at a place accepts a message."""
        self._bits[place * self._stride + (row >> 3)] |= 1 << (row & 7)

    def of(self, filter: Filter) -> int | None:
        """Return the messages that a filter accepts, each a bit; None if the filter was not asked."""
        place = self.filters.by_filter.get(filter)
        return None if place is None else self.accepted().get(place, 0)

    def accepted(self) -> dict[int, int]:
        """By the place of each filter that accepts any: the messages that it accepts, each a bit."""
        if self._accepted is None:
            bits, stride = self._bits, self._stride
            places = dict.fromkeys(found.start() // stride for found in _SET.finditer(bits))
            self._accepted = {
                place: int.from_bytes(bits[place * stride : (place + 1) * stride], "little") for place in places
            }
        return self._accepted

    def picked(self, rows: Sequence[int]) -> Verdicts:
        """Return the verdicts about some of the messages, which are a run of their own."""
        if len(rows) == self._rows:
            return self
        asked = bits_of(index for index, row in enumerate(rows) if self.asked >> row & 1)
        found = Verdicts(self.filters, len(rows), asked)
        for place, bits in self.accepted().items():
            for index, row in enumerate(rows):
                if bits >> row & 1:
                    found.accept(place, index)
        return found


#: Bytes of the objects (measured, CPython 3.11, rounded up).
OVERHEAD_BYTES: Final = 250
#: A byte with a bit that is set.
_SET: Final = re.compile(rb"[^\0]")


def stride_of(rows: int) -> int:
    """Bytes in which each message of a run is a bit."""
    return (rows + 7) // 8


def bits_of(rows: Iterable[int]) -> int:
    """Some messages, each a bit."""
    bits = 0
    for row in rows:
        bits |= 1 << row
    return bits


def unasked(run: StoredRun, filters: Sequence[Filter], rows: Sequence[int] | None = None) -> Sequence[Filter]:
    """Return the filters without a verdict about each of these messages of a run."""
    if not run.verdicts:
        return filters
    wanted = (1 << run.content.rows) - 1 if rows is None else bits_of(rows)
    return [filter for filter in filters if wanted & ~known_of(run.verdicts, filter)[1]]


def known_of(verdicts: Sequence[Verdicts], filter: Filter) -> tuple[int, int]:
    """Return the messages that a filter accepts, and the messages that were put to the filter, each a bit."""
    accepted = asked = 0
    for one in verdicts:
        bits = one.of(filter)
        if bits is not None:
            accepted |= bits
            asked |= one.asked
    return accepted, asked


class Cost(NamedTuple):
    """The cost of filters: the number of names that they look up, and of their LIKE conditions."""

    terms: int
    searches: int


def cost_of(filters: Sequence[Filter]) -> Cost:
    """Return the common cost of filters."""
    return Cost(sum(filter.terms for filter in filters), sum(filter.searches for filter in filters))


def work_of(run: StoredRun, cost: Cost, rows: Sequence[int] | None = None) -> float:
    """How much work it is to put messages of a run to filters, as that of so many small messages."""
    rows = range(run.content.rows) if rows is None else rows
    terms, searches = cost
    by_byte = 1 / limits.SCAN_BYTES + searches / limits.SCAN_LIKE_BYTES
    size = len(run.content.body)
    if size * by_byte > len(rows):
        # What is in the bodies costs nothing.
        messages = RunMessages(run)
        size = sum(map(messages.attached, rows))
    return len(rows) * (1 + terms / limits.SCAN_TERMS) + size * by_byte


def judging(
    run: StoredRun, filters: Sequence[Filter], asked: AskedFilters, rows: Sequence[int] | None = None
) -> Iterator[None]:
    """Put messages of a run to filters, step by step; at the end the run has the verdicts.

    Each step asks at least one filter about one message.
    """
    rows = range(run.content.rows) if rows is None else rows
    verdicts = Verdicts(asked, run.content.rows, bits_of(rows))
    messages = RunMessages(run)
    properties = any(filter.uses_properties for filter in filters)
    left: float = limits.SCAN_MESSAGES_MAX
    for row in rows:
        if left <= 0:
            yield None
            left = limits.SCAN_MESSAGES_MAX
        messages.move(row, properties=properties)
        size = messages.attached(row)
        left -= 1 + size / limits.SCAN_BYTES
        for place, filter in enumerate(filters):
            if left <= 0:
                yield None
                left = limits.SCAN_MESSAGES_MAX
            if filter.verdict(messages) is True:
                verdicts.accept(place, row)
            left -= filter.terms / limits.SCAN_TERMS + size * filter.searches / limits.SCAN_LIKE_BYTES
    run.verdicts = (*run.verdicts, verdicts)
