"""Made-up flights and reports."""

from __future__ import annotations

from meshq.demo._flights_format import Flight
from meshq.demo._report_format import REDELIVERED, Delivered, Settled
from meshq.demo._result_format import Result, Steps, conclude
from meshq.demo._tally_machine import Tally

CARRIERS = ("UA", "AA", "B6")


def made_up(count: int) -> list[Flight]:
    """Flights that nobody took; every tenth was cancelled."""
    return [
        Flight(
            key=b"2013-1-%d XX %d EWR" % (number % 31 + 1, number),
            carrier=CARRIERS[number % len(CARRIERS)],
            origin="EWR",
            month=1,
            delay=None if number % 10 == 9 else number % 7 - 3,
        )
        for number in range(count)
    ]


class Story:
    """Deliveries and acknowledgements in the order in which they are told; each happens a tick after the last."""

    def __init__(self, count: int = 10, **nodes: str) -> None:
        """``nodes``: the node of each consumer; the first one if none is said."""
        self.flights = made_up(count)
        self._nodes = {name.replace("_", " "): node for name, node in nodes.items()}
        self.tally = Tally(self.flights)
        self._ticks = 0
        self._batches: dict[str, int] = {}

    def delivered(self, consumer: str, *rows: int, marked: bool = False, at: int | None = None) -> int:
        """A consumer is handed these rows in one batch; returns its number."""
        self._ticks += 1
        number = self._batches[consumer] = self._batches.get(consumer, 0) + 1
        flights = [self.flights[row] for row in rows]
        report = Delivered(
            batch=number,
            at_ns=self._ticks if at is None else at,
            keys=[flight.key for flight in flights],
            carriers=[flight.carrier for flight in flights],
            delays=[flight.delay for flight in flights],
            flags=bytes([REDELIVERED if marked else 0]) * len(rows),
            node=self._nodes.get(consumer, "node-1"),
        )
        self.tally.take_delivered(consumer, report)
        return number

    def settle_at(self, node: str, consumer: str) -> None:
        """A consumer goes on at another node."""
        self._nodes[consumer] = node

    def settled(self, consumer: str, batch: int, *confirmed: bool) -> None:
        """The acknowledgement of a batch was confirmed, or not, for each of its rows."""
        self.tally.take_settled(consumer, Settled(batch, bytes(confirmed)))

    def acknowledged(self, consumer: str, *rows: int, marked: bool = False) -> None:
        """A consumer is handed these rows, and its acknowledgement is confirmed."""
        self.settled(consumer, self.delivered(consumer, *rows, marked=marked), *[True] * len(rows))

    def result(self, confirmed: int | None = None, left: int = 0) -> Result:
        """What the demo would say."""
        count = len(self.flights) if confirmed is None else confirmed
        return conclude(self.tally, confirmed=count, steps=Steps(), left=[left], phases={"all": 1.0})
