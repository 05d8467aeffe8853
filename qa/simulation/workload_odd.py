"""Messages that ask for something: to go first, to wait, to be gone after a while; and a queue that gives up on some.

Such a message may stand in one of three queues, one after the other: where it was sent, among the dead letters, or
among those that were too late.  To the history they are three places of one queue.
"""

from __future__ import annotations

import math
import random
from typing import Any, Final

from meshq.client import Consumer, Delivery
from meshq.settings import AddressSettings
from qa.simulation.workload import Batch, Traffic
from qa.simulation.workload_receive import Queues, Settling

#: The queue, and where its messages go: each with the place by which the history knows it.
ODD: Final = "odd"
PLACES: Final[dict[str, str]] = {ODD: "", "odd.dead": "dead", "odd.late": "late"}
ODD_SETTINGS: Final[dict[str, AddressSettings]] = {
    ODD: AddressSettings(
        dead_letter_address="odd.dead",
        expiry_address="odd.late",
        max_delivery_attempts=3,
        redelivery_delay=0.3,
        redelivery_delay_multiplier=2.0,
    )
}


def ttl_of(uid: int) -> float:
    """The time to live of a message, in seconds."""
    return math.inf if uid % 5 else 0.2 + uid // 5 % 7


class OddBatch(Batch):
    """A batch of messages with options, which follow from their numbers, so that a repeated send is equal."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queue of messages with options."""
        return (ODD,)

    def extras(self, uid: int) -> dict[str, Any]:
        """A third is urgent or not, some wait, some are gone after a while; and all in every mixture."""
        extras: dict[str, Any] = {}
        if uid % 3 == 0:
            extras["priority"] = uid // 3 % 10
        if (ttl_s := ttl_of(uid)) < math.inf:
            extras["ttl"] = ttl_s
        if uid % 7 == 0:
            extras["delay"] = 0.1 + 0.5 * (uid // 7 % 5)
        if uid % 11 == 0:
            extras["group"] = f"g{uid // 11 % 4}"
        return extras


class OddTraffic(Traffic):
    """Messages to the odd queue only."""

    def address(self, rng: random.Random) -> str:
        """The odd queue."""
        return ODD

    def batch(self, address: str, uids: tuple[int, ...], *, with_id: bool, durable: bool) -> Batch:
        """A batch of messages that ask for something."""
        return OddBatch(address, uids, with_id, durable)


class OddQueues(Queues):
    """The three places of the odd queue."""

    def __init__(self) -> None:
        super().__init__(tuple(PLACES))

    def place(self, queue: str) -> tuple[str, str]:
        """The queue and the place by which the history knows it."""
        return ODD, PLACES[queue]


class OddSettling(Settling):
    """Messages are given back and rejected more often than elsewhere, and some are given back for a time."""

    def __init__(self, rng: random.Random) -> None:
        super().__init__((10, 8, 3, 1))
        self._rng = rng

    async def give_back(self, consumer: Consumer, batch: list[Delivery]) -> None:
        """By the queue's settings, or after a time of one's own.  Checkpoint: maybe.  Cancellation: not touched."""
        await consumer.nack(*batch, delay=self._rng.choice((None, 0.0, 0.5)))
