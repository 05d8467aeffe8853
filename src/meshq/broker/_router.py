"""Addresses and their queues: who gets a message that is sent to a name."""

from __future__ import annotations

from typing import Any

from meshq.address import Target
from meshq.broker._duplicates import DuplicateIds
from meshq.broker._queue_machine import Queue
from meshq.errors import NotFoundError, UsageError
from meshq.settings import AddressSettings, settings_for


class Address:
    """One address: its routing type, its queues, its window of duplicate ids."""

    __slots__ = ("duplicates", "name", "position", "queues", "routing", "turn")

    def __init__(self, name: str, routing: str, settings: AddressSettings) -> None:
        self.name = name
        self.routing = routing
        self.queues: list[Queue] = []
        # Which of several anycast queues is next.
        self.turn = 0
        self.duplicates = DuplicateIds(settings.duplicate_id_cache_size)
        # Where its definition stands in the journal.
        self.position = 0


class Router:
    """All names of one node."""

    def __init__(self, patterns: dict[str, AddressSettings]) -> None:
        self._patterns = patterns
        self.addresses: dict[str, Address] = {}
        self.queues: dict[str, Queue] = {}
        self.by_number: dict[int, Queue] = {}
        #: Journal positions of queue definitions, by queue number; 0: nowhere.
        self.positions: dict[int, int] = {}
        #: The highest queue number ever given.
        self.last_number = 0

    def settings(self, address: str) -> AddressSettings:
        """The settings of an address."""
        return settings_for(self._patterns, address)

    def add_address(self, name: str, routing: str) -> Address:
        """Make an address that does not exist yet."""
        address = self.addresses[name] = Address(name, routing, self.settings(name))
        return address

    def add_queue(self, name: str, address: Address, *, durable: bool, number: int) -> Queue:
        """Make a queue that does not exist yet."""
        self.skip_numbers(number)
        queue = Queue(number, name, address.name, durable=durable)
        address.queues.append(queue)
        self.queues[name] = self.by_number[queue.number] = queue
        return queue

    def skip_numbers(self, last: int) -> None:
        """Queue numbers up to ``last`` were given to queues that are gone."""
        self.last_number = max(self.last_number, last)

    def remove_queue(self, queue: Queue) -> None:
        """Take a queue out of all tables."""
        del self.queues[queue.name], self.by_number[queue.number]
        self.addresses[queue.address].queues.remove(queue)

    def check_address(self, name: str, routing: str | None) -> Address | None:
        """The address of a name, None if there is none yet.

        Raises:
            UsageError: it has the other routing type.
        """
        address = self.addresses.get(name)
        if address is not None and routing is not None and address.routing != routing:
            raise UsageError(f"the address {name!r} is {address.routing}, and stays it: {routing} is not possible")
        return address

    def check_queue(self, name: str, address: str | None, durable: bool | None) -> Queue | None:
        """The queue of a name, None if there is none yet.

        Raises:
            UsageError: it is bound to another address, or its durability is another.
        """
        queue = self.queues.get(name)
        if queue is None:
            return None
        if address is not None and queue.address != address:
            raise UsageError(f"the queue {name!r} is bound to {queue.address!r}, not to {address!r}")
        if durable is not None and queue.durable != durable:
            raise UsageError(f"the queue {name!r} exists with durable={queue.durable}")
        return queue

    def find_queue(self, target: Target) -> Queue | None:
        """The queue that a consumer means by ``queue`` or ``address::queue``; None if it doesn't exist.

        Raises:
            NotFoundError: the queue exists on another address.
        """
        queue = self.queues.get(target.queue or target.address)
        if queue is not None and target.queue is not None and queue.address != target.address:
            raise NotFoundError(
                f"the queue {target.queue!r} is on the address {queue.address!r}, not {target.address!r}"
            )
        return queue

    def statistics(self, queue: Queue) -> dict[str, Any]:
        """What is known of a queue, by name."""
        return {
            "name": queue.name,
            "address": queue.address,
            "routing": self.addresses[queue.address].routing,
            "durable": queue.durable,
            "ready": queue.ready,
            "delivering": queue.held,
            "added": queue.added,
            "acknowledged": queue.acknowledged,
            "rejected": queue.rejected,
            "purged": queue.purged,
            "redelivered": queue.redelivered,
            "consumers": len(queue.consumers),
            "last_sequence": queue.last,
        }
