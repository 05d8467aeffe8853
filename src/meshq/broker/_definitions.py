"""Making and deleting addresses and queues, in memory and in the journal at once."""

from __future__ import annotations

from typing import Any

from meshq.address import Target, check_name, check_routing
from meshq.broker._ledger import Ledger
from meshq.broker._marks import Marks
from meshq.broker._queue_machine import Queue
from meshq.broker._records import DEFINITION, encode_definition
from meshq.broker._router import Address, Router
from meshq.errors import NotFoundError, UsageError


class Definitions:
    """What may be made, found or made on first use."""

    def __init__(self, router: Router, ledger: Ledger, marks: Marks) -> None:
        self._router = router
        self._ledger = ledger
        self._marks = marks
        # Position of the record that keeps the highest queue number that was ever given.
        self._numbers_position = 0

    def create_address(self, name: str, routing: str) -> Address:
        """The address; made unless it exists.

        Raises:
            UsageError: it exists with the other routing type, or the name is not valid.
        """
        check_name("address", name)
        check_routing("routing", routing)
        address = self._router.check_address(name, routing)
        if address is None:
            address = self._router.add_address(name, routing)
            address.position = self._write({"kind": "address", "name": name, "routing": routing})
        return address

    def create_queue(self, name: str, *, address: str | None, routing: str, durable: bool) -> Queue:
        """The queue; made unless it exists, with its address if need be.

        Raises:
            UsageError: it, or its address, exists in another way; or a name is not valid.
        """
        check_name("queue", name)
        bound_to = name if address is None else check_name("address", address)
        queue = self._router.check_queue(name, bound_to, durable)
        if queue is not None:
            self._router.check_address(bound_to, routing)
            return queue
        return self._add_queue(name, self.create_address(bound_to, routing), durable=durable)

    def _add_queue(self, name: str, address: Address, *, durable: bool) -> Queue:
        queue = self._router.add_queue(name, address, durable=durable)
        self._marks.open(queue)
        if durable:
            self._router.positions[queue.number] = self._write(
                {"kind": "queue", "name": name, "address": address.name, "number": queue.number}
            )
        return queue

    def delete_queue(self, queue: Queue) -> None:
        """Forget an empty queue.  Its number is never given again."""
        position = self._router.positions.pop(queue.number, 0)
        self._router.remove_queue(queue)
        dead = self._marks.close(queue)
        if position:
            dead.append(position)
        if self._numbers_position:
            dead.append(self._numbers_position)
        self._numbers_position = self._write({"kind": "numbers", "last": queue.number}, dead)

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Take up a definition from the journal."""
        kind = values["kind"]
        if kind == "address":
            self._router.add_address(values["name"], values["routing"]).position = position
        elif kind == "queue":
            address = self._router.addresses[values["address"]]
            queue = self._router.add_queue(values["name"], address, durable=True, number=values["number"])
            self._router.positions[queue.number] = position
        else:
            self._router.skip_numbers(values["last"])
            self._numbers_position = position

    def address_for(self, target: Target) -> tuple[Address, Queue | None]:
        """Where a message to ``target`` goes: an address, or one queue of it; made on first use if that is allowed.

        Raises:
            NotFoundError: it doesn't exist, and isn't made on first use.
        """
        address = self._router.addresses.get(target.address)
        settings = self._router.settings(target.address) if address is None or not address.queues else None
        if address is None:
            if settings is None or not settings.auto_create_queues:
                raise NotFoundError(f"there is no address {target.address!r}")
            address = self.create_address(target.address, settings.default_routing)
        if target.queue is not None:
            queue = self._router.find_queue(target)
            if queue is None:
                queue = self._on_demand(target.queue, address)
            return address, queue
        if not address.queues and address.routing == "anycast":
            self._on_demand(target.address, address)
        return address, None

    def queue_for(self, target: Target) -> Queue:
        """The queue that a consumer of ``target`` reads, made on first use if that is allowed.

        Raises:
            NotFoundError: it doesn't exist, and isn't made on first use.
            UsageError: the name is a multicast address: a consumer needs a queue of it.
        """
        queue = self._router.find_queue(target)
        if queue is not None:
            return queue
        address = self._router.addresses.get(target.address)
        if target.queue is None and address is not None and address.routing == "multicast":
            raise UsageError(f"the address {target.address!r} is multicast: consume from one of its queues")
        settings = self._router.settings(target.address)
        if address is None:
            if not settings.auto_create_queues:
                raise NotFoundError(f"there is no queue {target.address!r}")
            address = self.create_address(target.address, settings.default_routing)
        return self._on_demand(target.queue or target.address, address)

    def _on_demand(self, name: str, address: Address) -> Queue:
        if not self._router.settings(address.name).auto_create_queues:
            raise NotFoundError(f"there is no queue {name!r} on the address {address.name!r}")
        if name in self._router.queues:
            raise UsageError(f"the queue {name!r} is bound to {self._router.queues[name].address!r}")
        return self._add_queue(name, address, durable=True)

    def _write(self, values: dict[str, Any], kills: list[int] | None = None) -> int:
        return self._ledger.write(DEFINITION, [encode_definition(values)], kills=kills or [])
