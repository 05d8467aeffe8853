"""A topic whose queues have filters, whose messages are of groups, and whose dead letters go by filters, too.

With the failpoint ``broker.costly`` each of these is looked at in steps, between which brokers die, messages come and
consumers leave.  Two consumers share each queue; one of them takes only half of what is in a group, so that the rest
waits for the next owner of it.
"""

from __future__ import annotations

import random
from typing import Any, Final

from meshq.client import Client, Delivery
from meshq.settings import AddressSettings
from meshq.testing.history._history import History, uid_of
from qa.simulation.workload import Batch, Traffic
from qa.simulation.workload_receive import Queues

#: The address, which to the history is one queue, and where what was delivered too often goes.
SIFTED: Final = "sifted"
DEAD: Final = "sifted.dead"
#: Each queue: the place by which the history knows it, and which kind of message its filter accepts.
SIFTED_PLACES: Final[dict[str, str]] = {
    "sifted-0": "0",
    "sifted-1": "1",
    "sifted.dead-0": "dead-0",
    "sifted.dead-1": "dead-1",
}
SIFTED_SETTINGS: Final[dict[str, AddressSettings]] = {
    SIFTED: AddressSettings(auto_create_queues=False, dead_letter_address=DEAD, max_delivery_attempts=2),
    DEAD: AddressSettings(auto_create_queues=False),
}
SIFTED_SHARE: Final = 0.4
SIFTED_SIGHTS: Final = ("sifted", "sifted_dead")
#: How often messages are acknowledged, given back, rejected, and kept.
SIFTED_KINDS: Final = (10, 8, 3, 1)
#: How many batches a second are sent, about.
SIFTED_PACE: Final = 0.5
#: What one of two consumers takes.
HALF: Final = "half = 0"


def kind_of(uid: int) -> int:
    """Which of two filters accepts a message."""
    return uid % 2


class SiftedBatch(Batch):
    """A batch of messages for filters; kind and group follow from the number, so that a repeated send is equal."""

    @property
    def queues(self) -> tuple[str, ...]:
        """The queue of messages for filters."""
        return (SIFTED,)

    def extras(self, uid: int) -> dict[str, Any]:
        """Return the properties for the filters of queues and consumers, which are independent of each other."""
        extras: dict[str, Any] = {"properties": {"uid": uid, "kind": kind_of(uid), "half": uid // 2 % 2}}
        if uid % 3:
            extras["group"] = f"g{uid // 4 % 5}"
        return extras


class SiftedTraffic(Traffic):
    """Messages to the topic only."""

    def address(self, rng: random.Random) -> str:
        """The topic."""
        return SIFTED

    def batch(self, address: str, uids: tuple[int, ...], *, with_id: bool, durable: bool) -> Batch:
        """A batch of messages of both kinds."""
        return SiftedBatch(address, uids, with_id, durable)


class SiftedQueues(Queues):
    """All queues of the topic, each of which must give only messages that its filter accepts."""

    def __init__(self, history: History, receiver: str, *, only: str | None = None) -> None:
        super().__init__(tuple(SIFTED_PLACES), only=only)
        self._history = history
        self._receiver = receiver
        #: How often each of ``SIFTED_SIGHTS`` was met.
        self.met = dict.fromkeys(SIFTED_SIGHTS, 0)
        self._misplaced = 0

    def place(self, queue: str) -> tuple[str, str]:
        """The queue and the place by which the history knows it."""
        return SIFTED, SIFTED_PLACES[queue]

    def handed(self, delivery: Delivery, number: int) -> None:
        """See that the filter of the queue accepts it."""
        place = self._history.deliveries[number].node
        self.met["sifted_dead"] += place.startswith("dead")
        self.met["sifted"] = 1
        uid = uid_of(delivery.body)
        if uid is not None and not place.endswith(str(kind_of(uid))):
            self._misplaced += 1
            self._history.final.left(f"messages that {self._receiver} got against a queue's filter", self._misplaced)


async def furnish_sifted(client: Client) -> None:
    """Make the queues.  Checkpoint: always.  Cancellation: some may be there."""
    for queue in SIFTED_PLACES:
        address, _, kind = queue.rpartition("-")
        await client.create_queue(queue, address=address, routing="multicast", filter=f"kind = {kind}")


def sifted_known(history: History) -> None:
    """Tell the history the moves from place to place."""
    history.expected.moves(SIFTED)
