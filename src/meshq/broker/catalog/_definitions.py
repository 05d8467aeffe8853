"""Making and deleting addresses and queues, in memory and in the journal at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from meshq.address import (
    INTERNAL,
    SEPARATOR,
    TEMPORARY,
    Target,
    check_literal,
    check_name,
    check_routing,
    kept_copy,
    tells_events,
)
from meshq.broker.catalog._auto_create_plan import makeable, resolve_target
from meshq.broker.catalog._definition_records import DefinitionRecords, kept_filter
from meshq.broker.catalog._distribution_plan import ClusteredQueue, RemoteBinding
from meshq.broker.catalog._divert_definitions import DivertDefinitions
from meshq.broker.catalog._kept_pins import KeptPins
from meshq.broker.catalog._known_peers import KnownPeers
from meshq.broker.catalog._names import check_made, check_open
from meshq.broker.catalog._network_demand_plan import ROUTES_SEPARATOR, holder_of, kept_routes
from meshq.broker.catalog._queue_numbers import QueueNumbers
from meshq.broker.catalog._relay_table import RelayPlace
from meshq.broker.catalog._router import Address, Router
from meshq.broker.catalog._settings_definitions import SettingsDefinitions
from meshq.broker.catalog._settings_table import SettingsTable
from meshq.broker.catalog._stage_definitions import StageDefinitions
from meshq.broker.catalog._subscription import check_same
from meshq.broker.events._advisories_plan import check_advisory
from meshq.broker.events._event_bus import EventBus
from meshq.broker.log._cursor_records import CursorRecords
from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._delivery_options import QueueThere
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import AUTO_CREATED, DEFAULT_SPEC, SUBSCRIPTIONS, QueueKind, QueueSpec
from meshq.broker.queue._session_identity import SessionOwner
from meshq.errors import NotFoundError, UsageError
from meshq.notifications import QueueCreated, QueueDeleted
from meshq.selector import Filter, parse_filter


class Definitions:
    """Creates, finds and deletes addresses and queues."""

    def __init__(
        self,
        router: Router,
        release_queue: ReleaseQueue,
        watermarks: HighWatermarks,
        event_bus: EventBus,
        *,
        check_settings: Callable[[SettingsTable], None],
        warn: Callable[[str, str], None],
    ) -> None:
        """``check_settings`` checks new settings against the open producers, and raises UsageError."""
        self._event_bus = event_bus
        self.router = self._router = router
        self._release_queue = release_queue
        #: The watermarks of the queues, which begin and end with these.
        self.watermarks: HighWatermarks = watermarks
        self._records = DefinitionRecords(release_queue, router)
        self.numbers: QueueNumbers = self._records.numbers
        self.diverts: DivertDefinitions = DivertDefinitions(router.diverts, self._records)
        self.settings: SettingsDefinitions = SettingsDefinitions(router, release_queue, self._records, check_settings)
        #: The stages and the sinks.
        self.stages: StageDefinitions = StageDefinitions(router, self._records, watermarks)
        #: The records of the cursors of queues.
        self.cursors: CursorRecords = watermarks.cursors
        #: The queues of other nodes, as far as known.
        self.peers: KnownPeers = KnownPeers(release_queue, router.relays, warn)
        #: The pins of message groups that this node has given.
        self.pins: KeptPins = KeptPins(release_queue)

    @property
    def durable(self) -> bool:
        """Whether anything survives the process."""
        return self._release_queue.durable

    def create_address(self, name: str, routing: str) -> Address:
        """Return the address; create it unless it exists.

        Raises:
            UsageError: the address exists with the other routing type, or the name is not valid.
        """
        check_made(check_name("address", name))
        if check_routing("routing", routing) != "multicast" and tells_events(name):
            raise UsageError(f"the address {name!r} is multicast, and stays it: {routing} is not possible")
        address = self._router.check_address(name, routing)
        if address is not None and address.auto_created:
            # From now on it was created on purpose.
            values = {"kind": "address", "name": name, "routing": routing}
            address.position = self._records.write(values, [address.position] if address.position else None)
            address.auto_created = False
        return address or self._add_address(name, routing)

    def _add_address(self, name: str, routing: str, *, auto_created: bool = False, advisories: bool = False) -> Address:
        check_advisory(name, supported=advisories or self._event_bus.advisory_support)
        # The journal may refuse: it is asked before anything has changed.
        position = self._records.write({"kind": "address", "name": name, "routing": routing, "on_use": auto_created})
        address = self._router.add_address(name, routing)
        address.position, address.auto_created = position, auto_created
        return address

    def create_queue(
        self, name: str, *, address: str | None, routing: str, durable: bool, filter: Filter | None = None
    ) -> Queue:
        """Return the queue; create it, and its address, unless it exists.

        Raises:
            UsageError: it, or its address, exists in another way; or a name is not valid.
        """
        bound_to = check_name("queue", name) if address is None else check_name("address", address)
        check_made(check_name("queue", name), bound_to)
        if f"{bound_to}{SEPARATOR}{name}" in self._router.queues:
            raise UsageError(f"there is a subscription {name!r} on {bound_to!r}")
        queue = self._router.check_queue(name, bound_to, durable)
        if queue is not None:
            self._router.check_address(bound_to, routing)
            if queue.spec.filter != filter:
                found, wanted = (one.text if one is not None else None for one in (queue.spec.filter, filter))
                raise UsageError(f"the queue {name!r} exists with filter={found!r}, and keeps it: not {wanted!r}")
            if queue.spec.auto_created:
                # From now on it was created on purpose.
                self._rewrite(queue, {"on_use": False})
                queue.spec, queue.auto_delete = attrs.evolve(queue.spec, auto_created=False), False
            return queue
        spec = DEFAULT_SPEC if filter is None else QueueSpec(filter=filter)
        return self._add_queue(name, self.create_address(bound_to, routing), durable=durable, spec=spec)

    def create_temporary(self, name: str, owner: SessionOwner) -> Queue:
        """Create a queue that ends with its owner, on an address of its own; neither is written to the journal."""
        address = self._router.add_address(name, "anycast")
        return self._add_queue(name, address, durable=False, spec=QueueSpec(owner=owner))

    def subscription(
        self, address: str, name: str, *, kind: str, durable: bool, filter: Filter | None, holder: str = ""
    ) -> Queue:
        """Return the queue ``address::name`` of a subscription; create it, and its address, unless it exists.

        ``holder``: for whom it is, as that of a network consumer; empty: it is none of these.

        Raises:
            NotFoundError: the address doesn't exist, and isn't made on first use.
            UsageError: it exists in another way, or can't be made.
        """
        check_made(check_name("address", address), check_name("name", name))
        if kind not in SUBSCRIPTIONS:
            raise UsageError(f"a subscription is one of {', '.join(SUBSCRIPTIONS)}, not {kind!r}")
        if kind == "own" and durable:
            raise UsageError("a subscription without a name goes with its consumer, and can't be durable")
        full = f"{address}{SEPARATOR}{name}"
        queue = self._router.queues.get(full)
        if queue is not None:
            check_same(queue, kind=kind, durable=durable, filter=filter.text if filter is not None else "")
            return queue
        other = self._router.queues.get(name)
        if other is not None and other.address == address:
            raise UsageError(f"{full!r} is a queue that was not made by a subscription")
        spec = QueueSpec(subscription=kind, filter=filter, network=bool(holder), holder=holder)
        return self._subscribed(full, address, durable=durable, spec=spec)

    def kept_for_network(self, address: str, name: str, spec: QueueSpec) -> Queue:
        """Return the durable queue of a topic for another broker of the network; create it if it is missing.

        It takes from now on what ``spec`` says.

        Raises:
            NotFoundError: the address doesn't exist, and isn't made on first use.
            UsageError: the name is none of such a queue, the address is no topic, or the ways are too long.
        """
        full = f"{check_made(check_name('address', address))}{SEPARATOR}{check_name('name', name)}"
        queue = self._router.queues.get(full)
        if kept_copy(name) is None or (queue is not None and not queue.spec.routes):
            raise UsageError(f"{full!r} is no name of a queue that keeps messages for another broker")
        if queue is None:
            kept_routes(spec.routes)
            return self._subscribed(full, address, durable=True, spec=spec)
        self.keep_for_network(queue, spec)
        return queue

    def keep_for_network(self, queue: Queue, spec: QueueSpec) -> None:
        """Change the filter and the ways of a queue for another broker of the network, and for whom it is.

        Raises:
            UsageError: the ways are too long.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        former, address = queue.spec, self._router.addresses[queue.address]
        spec = attrs.evolve(spec, holder=address.network.holder_after(former.holder, spec.holder))
        if spec.said != former.said:
            about = {"filter": spec.filter_text, "wanted": spec.wanted, "holder": spec.holder}
            self._rewrite(queue, {**about, "routes": kept_routes(spec.routes)})
            address.count(former, -1)
            address.count(spec, 1)
            queue.spec = spec
            self._router.demand.changed(queue)

    def _subscribed(self, full: str, address: str, *, durable: bool, spec: QueueSpec) -> Queue:
        """Create the queue of a subscription, and its address if there is none."""
        found = self._router.check_address(address, "multicast")
        if found is None:
            if not self._router.settings(address).auto_create_queues:
                raise NotFoundError(f"there is no address {address!r}")
            found = self._add_address(address, "multicast", auto_created=True)
        return self._add_queue(full, found, durable=durable, spec=spec)

    def queue_there(self, address: str, wanted: QueueThere) -> Queue:
        """Return the queue of handed-over messages; create the queue, and its address, if missing.

        Raises:
            UsageError: another queue has its name, or the address has the other routing type.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        known = self._router.queues.get(wanted.name)
        if known is not None and known.address != address:
            raise UsageError(f"the queue {wanted.name!r} of another node has the name of one on {known.address!r}")
        found = self.address_there(address, wanted)
        if known is not None:
            return known
        features = wanted.features.split()
        auto_created = "on_use" in features
        filter = parse_filter(wanted.filter) if wanted.filter else None
        spec = QueueSpec(subscription=wanted.subscription, filter=filter, auto_created=auto_created)
        return self._add_queue(wanted.name, found, durable="durable" in features, spec=spec)

    def address_there(self, address: str, wanted: QueueThere) -> Address:
        """Return the address of handed-over messages or ids; create the address if it is missing.

        Raises:
            UsageError: the address has the other routing type.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        found = self._router.check_address(address, wanted.routing)
        if found is None:
            # Also an advisory, which this node may not tell: what is handed over has to be somewhere.
            auto_created = "on_use" in wanted.features.split()
            found = self._add_address(address, wanted.routing, auto_created=auto_created, advisories=True)
        return found

    def _add_queue(self, name: str, address: Address, *, durable: bool, spec: QueueSpec = DEFAULT_SPEC) -> Queue:
        address.check_room(spec)
        number = self._router.last_number + 1
        # The journal may refuse: it is asked before anything has changed.
        made = Queue(number, name, address.name, durable=durable, spec=spec)
        position = 0
        if durable:
            position = self._records.write(_definition_of(made))
        else:
            self.numbers.reserve(number)
        queue = self._router.add_queue(made, address)
        self._router.positions[number] = self.numbers.given(number, position)
        self.watermarks.open(queue)
        self._event_bus.emit(
            QueueCreated,
            address=address.name,
            queue=name,
            routing=address.routing,
            durable=durable,
            temporary=queue.kind is QueueKind.TEMPORARY,
        )
        return queue

    def forward_queue(self, name: str) -> Queue:
        """Return a store-and-forward queue; create it unless it exists."""
        queue = self._router.queues.get(name)
        if queue is not None:
            return queue
        address = self._router.addresses.get(name) or self._add_address(name, "anycast")
        return self._add_queue(name, address, durable=True)

    def relay(self, binding: RemoteBinding) -> int:
        """Return the number by which further nodes know a queue of another node; give one if need be.

        Raises:
            JournalBrokenError: nothing changed.
        """
        place = RelayPlace(binding.forward.number, binding.number, binding.address)
        known = self._router.relays.number_of(place.forward, place.number)
        if known:
            return known
        number = self._router.last_number + 1
        # Also if the disk has no room for a record of the queue no later life may give the number again.
        self.numbers.reserve(number)
        self._router.skip_numbers(number)
        kept = {
            "name": binding.name,
            "address": binding.address,
            "routing": binding.routing,
            "filter": binding.filter.text if binding.filter is not None else "",
            "path": " ".join(binding.path[:-1]),
            "node_name": binding.node_name if binding.distance > 1 else "",
            "durable": binding.durable,
        }
        self.numbers.given(number, self.peers.relay(number, place, kept))
        return number

    def pause(self, queue: Queue, paused: bool) -> None:
        """Pause or resume the deliveries of a queue; for a durable queue also after a restart.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
        """
        if queue.paused is paused:
            return
        self._rewrite(queue, {"paused": paused})
        queue.paused = paused
        self._router.demand.changed(queue)

    def _rewrite(self, queue: Queue, changed: dict[str, Any]) -> None:
        """Write the changed definition of a queue; the same record deletes the old one."""
        position = self._router.positions[queue.number]
        if queue.durable:
            values = {**_definition_of(queue), **changed}
            self._router.positions[queue.number] = self._records.write(values, [position] if position else None)

    def delete_queue(self, queue: Queue) -> None:
        """Delete an empty queue, and its address if that ends with it.  The queue's number is never used again."""
        position = self._router.positions.pop(queue.number)
        self._router.remove_queue(queue)
        dead = [*self.watermarks.close(queue), position]
        address = self._router.addresses.get(queue.address)
        if address is not None and self._router.may_go(address):
            self._router.remove_address(address)
            dead.append(address.position)
        self._records.forget(dead)
        self._event_bus.emit(QueueDeleted, address=queue.address, queue=queue.name)

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Restore a definition from the journal."""
        kind = values["kind"]
        if kind == "address":
            made = self._router.add_address(values["name"], values["routing"])
            made.position, made.auto_created = position, values["on_use"]
        elif kind == "settings":
            self.settings.restore(values, position)
        elif kind == "divert":
            self.diverts.restore(values, position)
        elif kind in ("cursor", "holes"):
            self.cursors.restore(values, position)
        elif kind in ("stage", "sink"):
            self.stages.restore(values, position)
        elif kind == "queue":
            address = self._router.addresses[values["address"]]
            spec = DEFAULT_SPEC
            if values["subscription"] or values["filter"] or values["on_use"]:
                filter = kept_filter(values["filter"], position)
                routes = tuple(values["routes"].split(ROUTES_SEPARATOR)) if values["routes"] else ()
                spec = QueueSpec(
                    subscription=values["subscription"],
                    filter=filter,
                    auto_created=values["on_use"],
                    routes=routes,
                    network=bool(routes),
                    wanted=values["wanted"],
                    # Earlier versions did not write it.
                    holder=values["holder"] or (holder_of(routes) if routes else ""),
                )
            queue = Queue(values["number"], values["name"], address.name, durable=True, spec=spec)
            queue.paused = values["paused"]
            self._router.add_queue(queue, address)
            self._router.positions[queue.number] = position
        else:
            self._router.skip_numbers(values["last"])
            self.numbers.restore(values["last"], position)

    def address_for(self, target: Target) -> tuple[Address, Queue | ClusteredQueue | None]:
        """Find the address of a target, and the queue that the target names; create both on first use if allowed.

        Raises:
            NotFoundError: the target doesn't exist, and isn't created on first use.
            UsageError: the queue can't be created: another queue has its name.
        """
        if target.queue is not None or target.address.startswith(INTERNAL):
            check_open(target.address, target.queue)
        found = self._router.addresses.get(target.address)
        if found is not None and target.queue is None and found.queues:
            return found, None
        check_open(target.address)
        use = resolve_target(self._router, target)
        address = use.address
        if address is None and target.address.startswith(TEMPORARY):
            address = self._router.add_address(target.address, use.routing)
        elif address is None:
            address = self._add_address(check_literal("address", target.address), use.routing, auto_created=True)
        if use.makes:
            self._add_queue(use.makes, address, durable=True, spec=AUTO_CREATED)
        return address, self._router.only(address, use.only)

    def address_routed(self, name: str, routing: str) -> None:
        """See that an address has a routing type; create the address on first use if allowed.

        Raises:
            NotFoundError: the address doesn't exist, and isn't created on first use.
            UsageError: it has the other routing type, or can't be made.
        """
        found = self._router.check_address(name, check_routing("routing", routing))
        if found is None and not name.startswith(TEMPORARY):
            if not self._router.settings(name).auto_create_queues:
                raise NotFoundError(f"there is no address {name!r}")
            self._add_address(check_made(name), routing, auto_created=True)

    def would_make(self, target: Target) -> bool:
        """Whether sending to ``target`` would create an address or a queue."""
        if target.address.startswith(TEMPORARY) or not self._router.settings(target.address).auto_create_queues:
            return False
        try:
            use = resolve_target(self._router, target)
        except (NotFoundError, UsageError):
            # Whoever may not make it need not hear why nobody can.
            return True
        return use.address is None or bool(use.makes)

    def would_make_to_read(self, target: Target) -> bool:
        """Whether consuming from ``target`` would create an address or a queue."""
        if target.address.startswith(TEMPORARY) or not self._router.settings(target.address).auto_create_queues:
            return False
        if target.queue is None and self._routing_of(target.address) == "multicast":
            return False
        return self._router.find_queue(target) is None

    def _routing_of(self, name: str) -> str:
        """The routing type of an address here, or else on other nodes, or else by its settings."""
        address = self._router.addresses.get(name)
        if address is not None:
            return address.routing
        return self._router.remote_routing(name) or self._router.settings(name).default_routing

    def address_of_moved(self, target: Target) -> tuple[Address, Queue | None]:
        """Find the address, and the queue, of moved messages; create both if need be, without regard to the settings.

        Raises:
            UsageError: the target is a temporary queue that is gone.
            AddressFullError, JournalBrokenError: the disk is full, or has failed.
        """
        address, queue = self.known_of_moved(target)
        if address is not None and queue is not None:
            return address, queue
        if address is None and target.address.startswith(TEMPORARY):
            raise UsageError(f"the temporary queue {target.address!r} is gone")
        if address is None:
            address = self._add_address(target.address, "anycast", auto_created=True)
        if not address.queues and address.routing == "anycast" and target.address not in self._router.queues:
            self._add_queue(target.address, address, durable=True, spec=AUTO_CREATED)
        return address, None

    def known_of_moved(self, target: Target) -> tuple[Address | None, Queue | None]:
        """Find the address and the queue of a target without creating either."""
        address = self._router.addresses.get(target.address)
        if address is not None and target.queue is not None:
            queues = self._router.queues
            queue = queues.get(f"{target.address}{SEPARATOR}{target.queue}") or queues.get(target.queue)
            if queue is not None and queue.address == target.address:
                return address, queue
        return address, None

    def queue_for(self, target: Target) -> Queue:
        """Find the queue that a consumer of ``target`` reads; create it on first use if allowed.

        Raises:
            NotFoundError: the queue doesn't exist, and isn't created on first use.
            UsageError: the queue can't be created: another queue has its name; or the name is a multicast address, of
                which a consumer needs a queue.
        """
        check_open(target.address, target.queue)
        queue = self._router.find_queue(target)
        if queue is not None:
            return queue
        if target.queue is None and self._routing_of(target.address) == "multicast":
            raise UsageError(f"the address {target.address!r} is multicast: consume from one of its queues")
        check_literal("queue", target.address if target.queue is None else f"{target.address}{SEPARATOR}{target.queue}")
        makes = makeable(self._router, target.queue or target.address, target.address)
        address = self._router.addresses.get(target.address)
        if address is None:
            address = self._add_address(target.address, self._routing_of(target.address), auto_created=True)
        return self._add_queue(makes, address, durable=True, spec=AUTO_CREATED)


def _definition_of(queue: Queue) -> dict[str, Any]:
    return {
        "kind": "queue",
        "name": queue.name,
        "address": queue.address,
        "number": queue.number,
        "paused": queue.paused,
        "subscription": queue.spec.subscription,
        "filter": queue.spec.filter_text,
        "on_use": queue.spec.auto_created,
        "routes": ROUTES_SEPARATOR.join(queue.spec.routes),
        "wanted": queue.spec.wanted,
        "holder": queue.spec.holder,
    }
