"""The flights of a forwarder: messages that are sent together and not waited for, while others follow.

A forwarder that waits for each answer has either itself, its target or one of the two disks at work, never all of them.
So it sends on as long as its window allows; what the target has confirmed is acknowledged in the order in which it was
sent, and counts for the window until that is stored.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshq.client import (
    Consumer,
    DeliverySpan,
    RunsOnTheWay,
    Settlement,
    receive_spans,
    settle_spans,
)
from meshq.errors import StaleDeliveryError


class Flight(NamedTuple):
    """Messages that were sent together."""

    address: str
    spans: Sequence[DeliverySpan]
    messages: int
    sending: RunsOnTheWay


class _Settling(NamedTuple):
    """Acknowledgements that are being stored, and how many messages of each address they settle."""

    settlement: Settlement
    counts: Counter[str]


class Flights:
    """The flights from one consumer to one target, in the order in which they were sent."""

    def __init__(self, consumer: Consumer) -> None:
        self._consumer = consumer
        self._flights: deque[Flight] = deque()
        # The last flight to each address that is under way.
        self._last: dict[str, Flight] = {}
        self._settling: deque[_Settling] = deque()
        self._under_way: Counter[str] = Counter()

    def __bool__(self) -> bool:
        """Whether a flight is under way: no longer once it was settled or taken."""
        return bool(self._flights)

    def under_way(self, address: str) -> int:
        """The messages that were sent to an address and whose acknowledgement is not stored."""
        return self._under_way[address]

    def is_queued(self, address: str) -> bool:
        """Whether the last flight to an address is not sent yet: for want of a connection, or because the target takes
        no more now."""
        last = self._last.get(address)
        return last is not None and last.sending.queued

    def decided(self) -> bool:
        """Whether the first flight is confirmed, refused or broken."""
        return bool(self._flights) and self._flights[0].sending.done

    @property
    def troubled(self) -> bool:
        """Whether the first flight is refused or broken."""
        return self.decided() and self._flights[0].sending.failed

    def begin(self, flight: Flight) -> None:
        """Take a flight that was sent."""
        self._flights.append(flight)
        self._last[flight.address] = flight
        self._under_way[flight.address] += flight.messages

    def _take_first(self) -> Flight:
        flight = self._flights.popleft()
        if self._last[flight.address] is flight:
            del self._last[flight.address]
        flight.sending.end()
        return flight

    def settle(self) -> int:
        """Acknowledge the confirmed flights before the first other one; return the number of their messages.

        Raises:
            MeshqError: an acknowledgement came too late, or could not be stored.
        """
        counts: Counter[str] = Counter()
        fresh = True
        while self.decided() and not self.troubled:
            flight = self._take_first()
            fresh &= settle_spans(self._consumer, flight.spans)
            counts[flight.address] += flight.messages
        if counts:
            self._settling.append(_Settling(Settlement(self._consumer), counts))
        while self._settling and self._settling[0].settlement.done:
            settlement, stored = self._settling.popleft()
            settlement.result()
            self._under_way -= stored
        if not fresh:
            raise StaleDeliveryError("the session or consumer of what was sent is gone; the messages come again")
        return counts.total()

    def take_troubled(self) -> Flight:
        """Take the first flight, which is refused or broken; nothing of it is under way any more."""
        flight = self._take_first()
        self._under_way[flight.address] -= flight.messages
        return flight

    async def wait(self, look: Callable[[], bool] = lambda: False) -> None:
        """Wait until the first flight is decided, an acknowledgement is stored, or ``look`` says that there is
        something else to do.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            MeshqError: the consumer is gone.
        """
        await receive_spans(self._consumer, 0, lambda: self._is_over() or look())

    def _is_over(self) -> bool:
        return self.decided() or (bool(self._settling) and self._settling[0].settlement.done)

    @property
    def is_storing(self) -> bool:
        """Whether an acknowledgement is being stored."""
        return bool(self._settling)

    def give_up(self) -> int:
        """End all waits: acknowledge confirmed messages, give the others back as never delivered; return the number of
        those acknowledged."""
        confirmed = 0
        for flight in self._flights:
            done = flight.sending.done and not flight.sending.failed
            confirmed += flight.messages if done else 0
            flight.sending.end()
            settle_spans(self._consumer, flight.spans, back=not done)
        for settling in self._settling:
            settling.settlement.give_up()
        self._flights.clear()
        self._last.clear()
        self._settling.clear()
        self._under_way.clear()
        return confirmed
