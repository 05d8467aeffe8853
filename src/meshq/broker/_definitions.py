"""Making and deleting addresses and queues, in memory and in the journal at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs

from meshq import limits
from meshq.address import (
    INTERNAL,
    MANAGEMENT,
    NOTIFICATIONS,
    SEPARATOR,
    TEMPORARY,
    Target,
    check_literal,
    check_name,
    check_routing,
)
from meshq.broker._event_bus import EventBus
from meshq.broker._queue_numbers import QueueNumbers
from meshq.broker.ingress._auto_create_plan import makeable, resolve_target
from meshq.broker.ingress._distribution_plan import ClusteredQueue
from meshq.broker.ingress._diverts import DivertRule
from meshq.broker.ingress._high_watermarks import HighWatermarks
from meshq.broker.ingress._release_queue import ReleaseQueue
from meshq.broker.ingress._router import Address, Router
from meshq.broker.ingress._settings_table import SettingsTable
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import AUTO_CREATED, PLAIN, SUBSCRIPTIONS, Owner, QueueSpec
from meshq.broker.records import DEFINITION, encode_definition
from meshq.broker.session._subscriptions import check_same
from meshq.errors import DamagedError, FilterError, NotFoundError, SettingsError, UsageError
from meshq.notifications import QueueCreated, QueueDeleted
from meshq.selector import Filter, parse_filter
from meshq.settings import address_settings_of, check_pattern, kept_address_settings_of


class Definitions:
    """What may be made, found or made on first use."""

    def __init__(self, router: Router, release_queue: ReleaseQueue, marks: HighWatermarks, event_bus: EventBus) -> None:
        self._event_bus = event_bus
        self.router = self._router = router
        self._release_queue = release_queue
        self._marks = marks
        #: Asked whether settings that somebody wants fit whoever is there.  Raises: UsageError: they don't.
        self.check_settings: Callable[[SettingsTable], None] = _anything
        self.numbers = QueueNumbers(release_queue)

    def create_address(self, name: str, routing: str) -> Address:
        """The address; made unless it exists.

        Raises:
            UsageError: it exists with the other routing type, or the name is not valid.
        """
        check_made(check_name("address", name))
        if check_routing("routing", routing) != "multicast" and name == NOTIFICATIONS:
            raise UsageError(f"the address {name!r} is multicast, and stays it: {routing} is not possible")
        address = self._router.check_address(name, routing)
        if address is not None and address.on_use:
            # Now somebody relies on it.
            values = {"kind": "address", "name": name, "routing": routing}
            address.position = self._write(values, [address.position] if address.position else None)
            address.on_use = False
        return address or self._add_address(name, routing)

    def _add_address(self, name: str, routing: str, *, on_use: bool = False) -> Address:
        # The journal may refuse: it is asked before anything has changed.
        position = self._write({"kind": "address", "name": name, "routing": routing, "on_use": on_use})
        address = self._router.add_address(name, routing)
        address.position, address.on_use = position, on_use
        return address

    def create_queue(
        self, name: str, *, address: str | None, routing: str, durable: bool, filter: Filter | None = None
    ) -> Queue:
        """The queue; made unless it exists, with its address if need be.

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
            if queue.terms.filter != filter:
                found, wanted = (one.text if one is not None else None for one in (queue.terms.filter, filter))
                raise UsageError(f"the queue {name!r} exists with filter={found!r}, and keeps it: not {wanted!r}")
            if queue.terms.on_use:
                # Now somebody relies on it.
                self._rewrite(queue, on_use=False)
                queue.terms, queue.passing = attrs.evolve(queue.terms, on_use=False), False
            return queue
        terms = PLAIN if filter is None else QueueSpec(filter=filter)
        return self._add_queue(name, self.create_address(bound_to, routing), durable=durable, terms=terms)

    def create_temporary(self, name: str, owner: Owner) -> Queue:
        """A queue that goes with its owner, on an address of its own; nothing of either is written."""
        address = self._router.add_address(name, "anycast")
        return self._add_queue(name, address, durable=False, terms=QueueSpec(owner=owner))

    def subscription(self, address: str, name: str, *, kind: str, durable: bool, filter: Filter | None) -> Queue:
        """The queue ``address::name`` of a subscription; made unless it exists, with its address if need be.

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
        found = self._router.check_address(address, "multicast")
        if found is None:
            if not self._router.settings(address).auto_create_queues:
                raise NotFoundError(f"there is no address {address!r}")
            found = self._add_address(address, "multicast", on_use=True)
        return self._add_queue(full, found, durable=durable, terms=QueueSpec(subscription=kind, filter=filter))

    def _add_queue(self, name: str, address: Address, *, durable: bool, terms: QueueSpec = PLAIN) -> Queue:
        if len(address.queues) >= limits.QUEUES_PER_ADDRESS_MAX:
            raise UsageError(f"the address {address.name!r} has its {limits.QUEUES_PER_ADDRESS_MAX} queues")
        if terms.filter is not None and address.filtered >= limits.FILTERED_QUEUES_PER_ADDRESS_MAX:
            most = limits.FILTERED_QUEUES_PER_ADDRESS_MAX
            raise UsageError(f"the address {address.name!r} has its {most} queues with filters")
        number = self._router.last_number + 1
        # The journal may refuse: it is asked before anything has changed.
        made = Queue(number, name, address.name, durable=durable, terms=terms)
        position = 0
        if durable:
            position = self._write(_definition_of(made))
        else:
            self.numbers.reserve(number)
        queue = self._router.add_queue(made, address)
        self._router.positions[number] = self.numbers.given(number, position)
        self._marks.open(queue)
        self._event_bus.say(
            QueueCreated,
            address=address.name,
            queue=name,
            routing=address.routing,
            durable=durable,
            temporary=terms.owner is not None,
        )
        return queue

    def forward_queue(self, name: str) -> Queue:
        """A store-and-forward queue; made unless it exists."""
        queue = self._router.queues.get(name)
        if queue is not None:
            return queue
        address = self._router.addresses.get(name) or self._add_address(name, "anycast")
        return self._add_queue(name, address, durable=True)

    def pause(self, queue: Queue, paused: bool) -> None:
        """A queue gives nothing to its consumers from now on, or does so again; a durable one also after a restart.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
        """
        if queue.paused is paused:
            return
        self._rewrite(queue, paused=paused)
        queue.paused = paused

    def _rewrite(self, queue: Queue, **changed: Any) -> None:
        """Write the definition of a queue anew; one record ends the old one."""
        position = self._router.positions[queue.number]
        if queue.durable:
            values = {**_definition_of(queue), **changed}
            self._router.positions[queue.number] = self._write(values, [position] if position else None)

    def delete_queue(self, queue: Queue) -> None:
        """Forget an empty queue, and its address if that goes with it.  Its number is never given again."""
        position = self._router.positions.pop(queue.number)
        self._router.remove_queue(queue)
        dead = [*self._marks.close(queue), position]
        address = self._router.addresses.get(queue.address)
        if address is not None and self._router.may_go(address):
            self._router.remove_address(address)
            dead.append(address.position)
        self._forget_at(dead)
        self._event_bus.say(QueueDeleted, address=queue.address, queue=queue.name)

    def _forget_at(self, positions: list[int]) -> None:
        """Have these records die, by the one that keeps the highest queue number that was ever given."""
        self.numbers.write(self._router.last_number, positions)

    def create_divert(
        self, name: str, *, address: str, forwarding_address: str, filter: Filter | None, exclusive: bool
    ) -> DivertRule:
        """The divert; made unless it exists.

        Raises:
            UsageError: it exists in another way, would close a loop, or there is no room; or a name is not valid.
        """
        check_made(check_name("name", name))
        check_made(check_name("address", address), check_name("forwarding_address", forwarding_address))
        check_sendable(forwarding_address)
        diverts = self._router.diverts
        text = filter.text if filter is not None else ""
        wanted = {
            "address": address,
            "forwarding_address": forwarding_address,
            "filter": text,
            "exclusive": exclusive,
        }
        rule = diverts.by_name.get(name)
        if rule is not None:
            for key, value in wanted.items():
                found = rule.filter_text if key == "filter" else getattr(rule, key)
                if found != value:
                    raise UsageError(f"the divert {name!r} exists with {key}={found!r}, not {value!r}")
            return rule
        diverts.check_loop(address, forwarding_address)
        if len(diverts.by_name) >= limits.DIVERTS_MAX:
            raise UsageError(f"the node has its {limits.DIVERTS_MAX} diverts")
        values = {"kind": "divert", "name": name, **wanted}
        rule = _divert_of(values, self._write(values))
        diverts.add(rule)
        return rule

    def delete_divert(self, name: str) -> None:
        """Forget a divert.

        Raises:
            NotFoundError: there is none of this name.
        """
        rule = self._router.diverts.by_name.get(name)
        if rule is None:
            raise NotFoundError(f"there is no divert {name!r}")
        self._forget_at([rule.position])
        self._router.diverts.remove(rule)

    def set_address_settings(self, pattern: str, fields: dict[str, Any]) -> None:
        """What a pattern says from here on, in this life and the next ones, instead of all that it said before.

        Raises:
            SettingsError: the pattern, or a setting, is not valid; nothing changed.
            UsageError: somebody who is there could not go on with it; nothing changed.
        """
        check_own(check_pattern(pattern))
        settings = address_settings_of(fields)
        table = self._router.table
        if pattern not in table.set and len(table.set) >= limits.ADDRESS_SETTINGS_MAX:
            raise UsageError(f"the node has its {limits.ADDRESS_SETTINGS_MAX} patterns that were set while it ran")
        self.check_settings(table.changed(pattern, settings))
        old = table.positions.get(pattern, 0)
        position = self._write({"kind": "settings", "pattern": pattern, **fields}, [old] if old else None)
        table.put(pattern, settings, position)
        self._release_queue.doom(self._router.settings_changed())

    def remove_address_settings(self, pattern: str) -> None:
        """Forget what was set for a pattern while the node ran.

        Raises:
            NotFoundError: nothing was.
            UsageError: somebody who is there could not go on without it; nothing changed.
        """
        table = self._router.table
        if pattern not in table.set:
            raise NotFoundError(f"no address settings were set for {pattern!r} while the node ran")
        self.check_settings(table.changed(pattern, None))
        self._forget_at([table.positions[pattern]])
        table.drop(pattern)
        self._release_queue.doom(self._router.settings_changed())

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Take up a definition from the journal."""
        kind = values["kind"]
        if kind == "address":
            made = self._router.add_address(values["name"], values["routing"])
            made.position, made.on_use = position, values["on_use"]
        elif kind == "settings":
            fields = {name: value for name, value in values.items() if name not in ("kind", "pattern")}
            try:
                settings = kept_address_settings_of(fields)
            except SettingsError as error:
                raise DamagedError("journal", position, "settings that can be", str(error)) from error
            self._router.table.put(values["pattern"], settings, position)
            self._router.settings_changed()
        elif kind == "divert":
            self._router.diverts.add(_divert_of(values, position))
        elif kind == "queue":
            address = self._router.addresses[values["address"]]
            terms = PLAIN
            if values["subscription"] or values["filter"] or values["on_use"]:
                filter = _kept_filter(values["filter"], position)
                terms = QueueSpec(subscription=values["subscription"], filter=filter, on_use=values["on_use"])
            queue = Queue(values["number"], values["name"], address.name, durable=True, terms=terms)
            queue.paused = values["paused"]
            self._router.add_queue(queue, address)
            self._router.positions[queue.number] = position
        else:
            self._router.skip_numbers(values["last"])
            self.numbers.restore(values["last"], position)

    def address_for(self, target: Target) -> tuple[Address, Queue | ClusteredQueue | None]:
        """Where a message to ``target`` goes: an address, and one queue of it or those of one name on several nodes;
        made on first use if that is allowed.

        Raises:
            NotFoundError: it doesn't exist, and isn't made on first use.
            UsageError: it can't be made, as another queue has its name.
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
            address = self._add_address(check_literal("address", target.address), use.routing, on_use=True)
        if use.makes:
            self._add_queue(use.makes, address, durable=True, terms=AUTO_CREATED)
        return address, self._router.only(address, use.only)

    def would_make(self, target: Target) -> bool:
        """Whether sending to ``target`` would bring something into being here."""
        if target.address.startswith(TEMPORARY) or not self._router.settings(target.address).auto_create_queues:
            return False
        try:
            use = resolve_target(self._router, target)
        except (NotFoundError, UsageError):
            # Whoever may not make it need not hear why nobody can.
            return True
        return use.address is None or bool(use.makes)

    def would_make_to_read(self, target: Target) -> bool:
        """Whether consuming from ``target`` would bring something into being here."""
        if target.address.startswith(TEMPORARY) or not self._router.settings(target.address).auto_create_queues:
            return False
        if target.queue is None and self._routing_of(target.address) == "multicast":
            return False
        return self._router.find_queue(target) is None

    def _routing_of(self, name: str) -> str:
        """The routing type of an address: its own, or that which it has on other nodes, or would get here."""
        address = self._router.addresses.get(name)
        if address is not None:
            return address.routing
        return self._router.remote_routing(name) or self._router.settings(name).default_routing

    def address_of_moved(self, target: Target) -> tuple[Address, Queue | None]:
        """Where messages go that settings, or an operator, send to ``target``; made, whatever its settings say.

        Raises:
            UsageError: it is a temporary queue that is gone.
            AddressFullError, JournalBrokenError: it can't be made.
        """
        address, queue = self.known_of_moved(target)
        if address is not None and queue is not None:
            return address, queue
        if address is None and target.address.startswith(TEMPORARY):
            raise UsageError(f"the temporary queue {target.address!r} is gone")
        if address is None:
            address = self._add_address(target.address, "anycast", on_use=True)
        if not address.queues and address.routing == "anycast" and target.address not in self._router.queues:
            self._add_queue(target.address, address, durable=True, terms=AUTO_CREATED)
        return address, None

    def known_of_moved(self, target: Target) -> tuple[Address | None, Queue | None]:
        """What of ``target`` is there already."""
        address = self._router.addresses.get(target.address)
        if address is not None and target.queue is not None:
            queues = self._router.queues
            queue = queues.get(f"{target.address}{SEPARATOR}{target.queue}") or queues.get(target.queue)
            if queue is not None and queue.address == target.address:
                return address, queue
        return address, None

    def queue_for(self, target: Target) -> Queue:
        """The queue that a consumer of ``target`` reads, made on first use if that is allowed.

        Raises:
            NotFoundError: it doesn't exist, and isn't made on first use.
            UsageError: it can't be made, as another queue has its name; or the name is a multicast address, of which
                a consumer needs a queue.
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
            address = self._add_address(target.address, self._routing_of(target.address), on_use=True)
        return self._add_queue(makes, address, durable=True, terms=AUTO_CREATED)

    def _write(self, values: dict[str, Any], deletes: list[int] | None = None) -> int:
        record = [encode_definition(values)]  # A full disk takes a record that deletes another one: it is vital.
        return self._release_queue.write(DEFINITION, record, deletes=deletes or (), vital=bool(deletes))


def _definition_of(queue: Queue) -> dict[str, Any]:
    """What the journal keeps of a durable queue."""
    return {
        "kind": "queue",
        "name": queue.name,
        "address": queue.address,
        "number": queue.number,
        "paused": queue.paused,
        "subscription": queue.terms.subscription,
        "filter": queue.terms.filter_text,
        "on_use": queue.terms.on_use,
    }


def _divert_of(values: dict[str, Any], position: int) -> DivertRule:
    return DivertRule(
        name=values["name"],
        address=values["address"],
        forwarding_address=values["forwarding_address"],
        filter=_kept_filter(values["filter"], position),
        exclusive=values["exclusive"],
        position=position,
    )


def _kept_filter(text: str, position: int) -> Filter | None:
    try:
        return parse_filter(text) if text else None
    except FilterError as error:
        raise DamagedError("journal", position, "a filter that can be read", text) from error


def check_own(*names: str) -> str:
    """Names, and patterns of names, that users may speak of; the first.  Raises: UsageError (the broker's own)."""
    for name in names:
        if name.startswith(TEMPORARY):
            raise UsageError(f"{name!r} can't be made: names that begin with {TEMPORARY!r} are given by the broker")
    return check_open(*names)


def check_made(*names: str) -> str:
    """Names that users may give to what they make; the first.  Raises: UsageError, SettingsError (a pattern)."""
    for name in names:
        check_literal("name", name)
    return check_own(*names)


def check_sendable(address: str) -> str:
    """An address to which others than the broker may send.

    Raises:
        UsageError: it is the broker's own.
    """
    if address == NOTIFICATIONS:
        raise UsageError(f"{address!r} tells what happens in the broker: nobody else sends to it")
    return check_open(address)


def check_request_target(target: Target) -> None:
    """See that a request is for the broker as such.

    Raises:
        UsageError: it is for a queue there, and there is none.
    """
    if target.queue is not None:
        raise UsageError(f"the address {MANAGEMENT!r} has no queues")


def check_open(*names: str | None) -> str:
    """Names that are given by users; the first of them.

    Raises:
        UsageError: one belongs to the broker.
    """
    for name in names:
        if name == MANAGEMENT:
            raise UsageError(f"{name!r} takes requests to the broker, and nothing else is to be done with it")
        if name is not None and name.startswith(INTERNAL):
            raise UsageError(f"{name!r} is the broker's own: names that begin with {INTERNAL!r} can be looked at only")
    return names[0] or ""


def _anything(_: SettingsTable) -> None:
    """Nobody is there yet."""
