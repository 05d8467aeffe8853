"""The tally: each flight is counted once, and each further delivery is classified.

A flight may come again if it is marked so and no acknowledgement of an earlier delivery was confirmed: that is a
*redelivery*.  Any other second delivery is a *duplicate*.  Which delivery was the earlier one is decided when all
reports are in, by the clock that all processes share: reports of different consumers arrive in any order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import attrs

from meshq.demo._flights_format import Flight
from meshq.demo._report_format import ALTERED, REDELIVERED, Delivered, Settled
from meshq.errors import UsageError, invariant


@attrs.define
class CarrierCount:
    """The number of flights of one carrier, of those with a departure delay, and the sum of the delays."""

    flights: int = 0
    delays: int = 0
    delay_sum: int = 0

    def add(self, delay: int | None) -> None:
        """Count one flight."""
        self.flights += 1
        if delay is not None:
            self.delays += 1
            self.delay_sum += delay


@attrs.define
class _Batch:
    node: str
    # The first delivery of the batch, by the order in which they were reported; how many; when.
    first: int
    count: int
    at_ns: int


@attrs.frozen(kw_only=True)
class Verdict:
    """The verdict of the tally after all reports.  Flights are rows of the file."""

    lost: list[int]
    redelivered: int
    duplicates: list[int]
    #: The same by the name of the node where they came again.
    redelivered_to: Mapping[str, int]
    duplicates_to: Mapping[str, int]


class Tally:
    """Counts flights from the reports of all consumers."""

    def __init__(self, flights: Sequence[Flight]) -> None:
        """Raises: UsageError: two flights have the same key."""
        self.flights = flights
        # The row of each flight.
        self._rows = {flight.key: row for row, flight in enumerate(flights)}
        if len(self._rows) != len(flights):
            raise UsageError("two lines of the file have the same date, carrier, flight and origin")
        #: What was delivered, every flight once, by carrier.
        self.counts: dict[str, CarrierCount] = {}
        #: Flights delivered, and deliveries of all kinds.
        self.delivered = 0
        self.deliveries = 0
        #: Flights delivered, by the node of the delivery that was heard of first.
        self.delivered_to: Counter[str] = Counter()
        #: Deliveries whose acknowledgement is not decided yet, by consumer.
        self.unsettled: dict[str, int] = {}
        #: Deliveries of flights that the file doesn't have; deliveries whose parts don't fit each other.
        self.foreign = 0
        self.altered = 0
        # The first reported delivery of each row, -1 for none; rows that have more, with all others.
        self._first = [-1] * len(flights)
        self._others: dict[int, list[int]] = {}
        # By delivery: its flags, and whether its acknowledgement was confirmed.
        self._flags = bytearray()
        self._confirmed = bytearray()
        # In the order of reports; and by consumer and its number.
        self._batches: list[_Batch] = []
        self._open: dict[tuple[str, int], _Batch] = {}

    def open_batches(self) -> list[tuple[str, int]]:
        """Batches whose acknowledgement is not decided yet, by consumer and number."""
        return list(self._open)

    def all_settled(self, batches: list[tuple[str, int]]) -> bool:
        """Whether the acknowledgements of these batches are decided."""
        return not any(batch in self._open for batch in batches)

    @property
    def unsettled_total(self) -> int:
        """Deliveries whose acknowledgement is not decided yet."""
        return sum(self.unsettled.values())

    def take_delivered(self, consumer: str, report: Delivered) -> None:
        """Take a batch that a consumer has received."""
        delivery = self.deliveries
        batch = _Batch(report.node, delivery, len(report.keys), report.at_ns)
        before = self.delivered
        self._batches.append(batch)
        self._open[consumer, report.batch] = batch
        self._flags += report.flags
        self._confirmed += bytes(batch.count)
        find, first, counts = self._rows.get, self._first, self.counts
        for key, carrier, delay in zip(report.keys, report.carriers, report.delays, strict=True):
            row = find(key)
            if row is None:
                self.foreign += 1
            elif first[row] < 0:
                first[row] = delivery
                self.delivered += 1
                count = counts.get(carrier)
                if count is None:
                    count = counts[carrier] = CarrierCount()
                count.add(delay)
            else:
                self._others.setdefault(row, []).append(delivery)
            delivery += 1
        self.deliveries = delivery
        self.delivered_to[report.node] += self.delivered - before
        self.altered += sum(flag & ALTERED != 0 for flag in report.flags if flag)
        self.unsettled[consumer] = self.unsettled.get(consumer, 0) + batch.count

    def take_settled(self, consumer: str, report: Settled) -> None:
        """Take the outcome of a batch's acknowledgement."""
        batch = self._open.pop((consumer, report.batch))
        invariant(len(report.confirmed) == batch.count, "an acknowledgement is decided for every message of its batch")
        self._confirmed[batch.first : batch.first + batch.count] = report.confirmed
        self.unsettled[consumer] -= batch.count

    def verdict(self, confirmed: int) -> Verdict:
        """Judge the deliveries: the first ``confirmed`` rows must have arrived, all others may have."""
        redelivered: Counter[str] = Counter()
        duplicates_to: Counter[str] = Counter()
        duplicates: list[int] = []
        repeated = {row: [self._first[row], *others] for row, others in sorted(self._others.items())}
        of = self._batches_of(sorted(delivery for deliveries in repeated.values() for delivery in deliveries))
        for row, deliveries in repeated.items():
            acknowledged = False
            # Within one batch, and one reading of the clock, as reported.
            for place, delivery in enumerate(sorted(deliveries, key=lambda found: (of[found].at_ns, found))):
                if place and (acknowledged or not self._flags[delivery] & REDELIVERED):
                    duplicates.append(row)
                    duplicates_to[of[delivery].node] += 1
                elif place:
                    redelivered[of[delivery].node] += 1
                acknowledged |= bool(self._confirmed[delivery])
        return Verdict(
            lost=[row for row in range(confirmed) if self._first[row] < 0],
            redelivered=redelivered.total(),
            duplicates=duplicates,
            redelivered_to=redelivered,
            duplicates_to=duplicates_to,
        )

    def _batches_of(self, deliveries: list[int]) -> dict[int, _Batch]:
        """The batch of each of these deliveries, which rise."""
        found: dict[int, _Batch] = {}
        batches = iter(self._batches)
        batch = _Batch("", 0, 0, 0)
        for delivery in deliveries:
            while delivery >= batch.first + batch.count:
                batch = next(batches)
            found[delivery] = batch
        return found
