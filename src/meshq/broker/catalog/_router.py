"""Addresses and their queues: who gets a message that is sent to a name."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from meshq import limits
from meshq.address import INTERNAL, SEPARATOR, TEMPORARY, Target
from meshq.broker.catalog._address_quota import AddressQuota
from meshq.broker.catalog._demand_updates import DemandUpdates
from meshq.broker.catalog._distribution_plan import ClusteredQueue, RemoteBinding, nearest
from meshq.broker.catalog._diverts import Diverts
from meshq.broker.catalog._network_demand_plan import NetworkPlaces
from meshq.broker.catalog._pins_machine import PinsMachine
from meshq.broker.catalog._relay_table import RelayTable
from meshq.broker.catalog._settings_table import SettingsTable
from meshq.broker.events._event_bus import EventBus
from meshq.broker.log._duplicates import DuplicateIds
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind, QueueSpec
from meshq.errors import NotFoundError, UsageError
from meshq.settings import AddressSettings

#: Works out the clustered queues of an address, given the former ones.
Former = Callable[["Address", dict[str, ClusteredQueue]], dict[str, ClusteredQueue]]


class Address:
    """An address: its routing type, its queues, its window of duplicate ids."""

    __slots__ = (
        "_changed",
        "_clustered_queues",
        "_form",
        "auto_created",
        "duplicates",
        "filtered",
        "had",
        "hops",
        "name",
        "network",
        "next_index",
        "position",
        "queues",
        "quota",
        "routing",
    )

    def __init__(self, name: str, routing: str, settings: AddressSettings, form: Former) -> None:
        """``form`` works out the clustered queues; the turns of the former ones go on."""
        self.name: str = name
        # It came into being on first use.
        self.auto_created: bool = False
        self.routing: str = routing
        self.queues: list[Queue] = []
        # How many of them take only some messages.
        self.filtered: int = 0
        # Those of these that are for network consumers: all of those have filters.
        self.network: NetworkPlaces = NetworkPlaces()
        # Which of several anycast queues is next.
        self.next_index: int = 0
        self.duplicates: DuplicateIds = DuplicateIds(settings.duplicate_id_cache_size)
        # Over how many brokers a topic's messages have come at least, by id: of those that came over more than one.
        self.hops: dict[bytes, int] = {}
        # The numbers of the queues that have had a message of a topic, by its id in a network of brokers.
        self.had: dict[bytes, tuple[int, ...]] = {}
        # Where its definition stands in the journal.
        self.position: int = 0
        self._form = form
        self._clustered_queues: dict[str, ClusteredQueue] = {}
        # Whether a queue has come, gone or changed since they were worked out.
        self._changed: bool = True
        # What it may hold; None: as much as there is memory.
        self.quota: AddressQuota | None = None

    def count(self, spec: QueueSpec, change: int) -> None:
        """Count a queue that has come (1) or gone (-1)."""
        if spec.network:
            self.network.count(spec.holder, change)
        self.filtered += change if spec.filter is not None else 0

    def check_room(self, spec: QueueSpec) -> None:
        """Check the room for one more queue; queues of network consumers take no room from queues of users.

        Raises:
            UsageError: there is none.
        """
        most, filtered_most = limits.QUEUES_PER_ADDRESS_MAX, limits.FILTERED_QUEUES_PER_ADDRESS_MAX
        network = self.network.taken
        if spec.network:
            if lack := self.network.lack(self.name, spec.holder):
                raise UsageError(lack)
        elif len(self.queues) - network >= most:
            raise UsageError(f"the address {self.name!r} has its {most} queues")
        elif spec.filter is not None and self.filtered - network >= filtered_most:
            raise UsageError(f"the address {self.name!r} has its {filtered_most} queues with filters")

    @property
    def clustered_queues(self) -> dict[str, ClusteredQueue]:
        """Its queues by name, where other nodes have some, too; empty where only this node has.

        They are worked out when they are asked for: a node may describe thousands of queues of one address at once.
        """
        if self._changed:
            self._changed = False
            self._clustered_queues = self._form(self, self._clustered_queues)
        return self._clustered_queues

    def changed(self) -> None:
        """Note that a queue here or elsewhere has come, gone or changed."""
        self._changed = True


class Router:
    """All names of one node."""

    def __init__(
        self,
        patterns: dict[str, AddressSettings],
        *,
        event_bus: EventBus,
        press: Callable[[], None],
        pages: bool = False,
    ) -> None:
        """``press`` has messages paged soon: an address holds more than it may in memory."""
        self._event_bus = event_bus
        self._press = press
        self.table: SettingsTable = SettingsTable(patterns)
        #: Whatever sorts messages when they are placed, or may: queues and diverts with filters, queues of other nodes.
        self.sieves: dict[object, None] = {}
        self.diverts: Diverts = Diverts(self.sieves)
        self.addresses: dict[str, Address] = {}
        self.queues: dict[str, Queue] = {}
        self.by_number: dict[int, Queue] = {}
        #: Journal positions of queue definitions, by queue number; 0: nowhere.
        self.positions: dict[int, int] = {}
        #: The highest queue number ever given.
        self.last_number: int = 0
        #: By address: what it may hold, if that is bounded or was.
        self.quotas: dict[str, AddressQuota] = {}
        #: Whether there is a disk for what has no room.
        self.pages = pages
        #: Tells other nodes about the queues here.
        self.demand: DemandUpdates = DemandUpdates()
        #: The pins of message groups, and who holds them.
        self.pins: PinsMachine = PinsMachine()
        #: Queues of other nodes: by address, then by link and by their number there.
        self._remote: dict[str, dict[tuple[bytes, int], RemoteBinding]] = {}
        #: Queues of other nodes that further nodes know.
        self.relays: RelayTable = RelayTable()
        #: What of them each link has described.
        self._by_link: dict[bytes, dict[int, RemoteBinding]] = {}
        #: By link the features of its node, as it has named these last.
        self.features: dict[bytes, tuple[str, ...]] = {}

    def settings(self, address: str) -> AddressSettings:
        """The settings of an address."""
        return self.table.of(address)

    def add_address(self, name: str, routing: str) -> Address:
        """Make an address that does not exist yet."""
        address = self.addresses[name] = Address(name, routing, self.settings(name), self._form)
        self._bound(address)
        return address

    def add_queue(self, queue: Queue, address: Address) -> Queue:
        """Enter a queue in all tables."""
        self.skip_numbers(queue.number)
        self.rule(queue)
        address.queues.append(queue)
        if queue.spec.filter is not None:
            self.sieves[queue] = None
        if queue.spec.routes:
            self.demand.kept.add(queue)
        address.count(queue.spec, 1)
        self.queues[queue.name] = self.by_number[queue.number] = queue
        if address.routing == "anycast" and queue.kind not in (QueueKind.TEMPORARY, QueueKind.STORE_AND_FORWARD):
            queue.roster.may_offer = partial(self.pins.may_offer, queue.address, queue.name)
            queue.roster.claim = partial(self.pins.claim, queue.address, queue.name)
        self._queues_changed(address.name)
        self.demand.changed(queue)
        return queue

    def rule(self, queue: Queue) -> None:
        """Have a queue do as the settings of its address say now."""
        settings = queue.settings = self.settings(queue.address)
        queue.keep_last_values(None if queue.forwards or queue.roster.cursor else settings.default_last_value_key)
        if queue.spec.auto_created:
            queue.auto_delete = queue.settings.auto_delete_queues

    def _bound(self, address: Address) -> None:
        """Have an address hold as much as its settings say now."""
        settings = self.settings(address.name)
        quota = self.quotas.get(address.name)
        if quota is None:
            if not bounded(settings) or address.name.startswith(INTERNAL):
                return
            quota = self.quotas[address.name] = AddressQuota(
                address.name, address.routing, address.queues, event_bus=self._event_bus, press=self._press
            )
            quota.recount(view.run.origin or view.run for queue in address.queues for view in queue.all_runs())
        # The address may have gone and come again, and its producers have stayed.
        quota.queues = address.queues
        address.quota = quota
        quota.rule(settings, pages=self.pages)
        self.demand.bounds_changed(address.name)

    def settings_changed(self) -> list[int]:
        """Apply changed address settings; return positions of id records that are no longer needed."""
        gone: list[int] = []
        for address in self.addresses.values():
            gone += address.duplicates.resize(self.settings(address.name).duplicate_id_cache_size)
            self._bound(address)
            for queue in address.queues:
                self.rule(queue)
                self.demand.mobility_changed(queue.name)
        return gone

    def skip_numbers(self, last: int) -> None:
        """Queue numbers up to ``last`` were given to queues that are gone."""
        self.last_number = max(self.last_number, last)

    def remove_queue(self, queue: Queue) -> None:
        """Take a queue out of all tables."""
        del self.queues[queue.name], self.by_number[queue.number]
        self.addresses[queue.address].queues.remove(queue)
        if queue.spec.filter is not None:
            del self.sieves[queue]
        if queue.spec.routes:
            self.demand.kept.remove(queue)
        self.addresses[queue.address].count(queue.spec, -1)
        self._queues_changed(queue.address)
        self._forget_temporary(queue.address)
        self.demand.changed(queue)

    # -- queues of other nodes

    def bind(self, link: bytes, binding: RemoteBinding) -> None:
        """A link has described a queue of its peer, for the first time or anew."""
        self._bind(link, binding)
        self.demand.mobility_changed(binding.name)

    def unbind(self, link: bytes, number: int) -> None:
        """A queue of a peer is gone."""
        binding = self._unbind(link, number)
        if binding is not None:
            self._forget_temporary(binding.address)
            self.demand.mobility_changed(binding.name)

    def replace(self, link: bytes, bindings: Iterable[RemoteBinding], features: Sequence[str] = ()) -> None:
        """Replace all bindings of a link; ``features``: of its node."""
        self.features[link] = tuple(features)
        fresh = {binding.number: binding for binding in bindings}
        names: dict[str, None] = {}
        for number in list(self._by_link.get(link, ())):
            if number not in fresh and (gone := self._unbind(link, number)) is not None:
                names[gone.name] = None
                self._forget_temporary(gone.address)
        for binding in fresh.values():
            self._bind(link, binding)
            names[binding.name] = None
        for name in names:
            self.demand.mobility_changed(name)

    def mark_gone(self, link: bytes, gone: str) -> None:
        """The node behind a link is gone, and how; or it is there again."""
        addresses: dict[str, None] = {}
        for number, binding in self._by_link.get(link, {}).items():
            if binding.gone != (gone or binding.told):
                marked = self._by_link[link][number] = binding._replace(gone=gone or binding.told)
                self._remote[binding.address][link, number] = marked
                addresses[binding.address] = None
        for address in addresses:
            self._remote_changed(address)
        self.mobility_changed(link)

    def mobility_changed(self, link: bytes) -> None:
        """Tell the watchers that messages may be free to go to the node of a link, or no longer."""
        if self.demand.mobility_watchers:
            for binding in self.remote(link):
                self.demand.mobility_changed(binding.name)

    def remote(self, link: bytes) -> list[RemoteBinding]:
        """Return the bindings of a link."""
        return list(self._by_link.get(link, {}).values())

    def remote_routing(self, address: str) -> str | None:
        """The routing type of an address on other nodes; None if no messages may go there."""
        found = self._sharing(address)
        return found[0].routing if found else None

    def routing_anywhere(self, address: str) -> str | None:
        """The routing type of an address here, or else on other nodes; None if no node has the address."""
        found = self.addresses.get(address)
        return found.routing if found is not None else self.remote_routing(address)

    def _sharing(self, address: str) -> list[RemoteBinding]:
        """The queues of other nodes that messages may be sent to, in the order of their links."""
        return nearest([binding for binding in self.bindings(address) if binding.mode != "off"])

    def relayed(self, address: str, cluster: str) -> list[RemoteBinding]:
        """The queues of other nodes that the nodes of a cluster may send messages to, through this node."""
        # Names of clusters may have dots, ids of nodes have none.
        of_cluster = f"{INTERNAL}cluster.{cluster}"
        return [one for one in self._sharing(address) if one.forward.name.rpartition(".")[0] == of_cluster]

    @property
    def remote_addresses(self) -> list[str]:
        """The addresses of all queues of other nodes."""
        return list(self._remote)

    def _remote_changed(self, address: str) -> None:
        self._queues_changed(address)
        self.demand.remote_changed(address)

    def _bind(self, link: bytes, binding: RemoteBinding) -> None:
        self._unbind(link, binding.number)
        self._by_link.setdefault(link, {})[binding.number] = binding
        self.sieves[link, binding.number] = None
        self._remote.setdefault(binding.address, {})[link, binding.number] = binding
        self._remote_changed(binding.address)

    def _unbind(self, link: bytes, number: int) -> RemoteBinding | None:
        binding = self._by_link.get(link, {}).pop(number, None)
        if binding is not None:
            known = self._remote[binding.address]
            del known[link, number], self.sieves[link, number]
            if not known:
                del self._remote[binding.address]
            self._remote_changed(binding.address)
        return binding

    def remote_names(self, address: str) -> dict[str, str]:
        """The names of the queues of other nodes on an address that messages may be sent to, and its routing there."""
        return {binding.name: binding.routing for binding in self._sharing(address)}

    def bindings(self, address: str) -> list[RemoteBinding]:
        """All queues of other nodes on an address, in the order of their links."""
        return [binding for _, binding in sorted(self._remote.get(address, {}).items(), key=_by_link_and_number)]

    def only(self, address: Address, name: str) -> Queue | ClusteredQueue | None:
        """The queues of one name, or the only one there is; None if none is named."""
        clustered = address.clustered_queues.get(name)
        return clustered if clustered is not None and clustered.remotes else self.queues.get(name)

    def clustered_queues_of(
        self, name: str, routing: str, queues: Iterable[Queue], old: dict[str, ClusteredQueue]
    ) -> dict[str, ClusteredQueue]:
        """The queues of an address by name if other nodes have some, too; the turns of old rings go on."""
        clustered_queues: dict[str, ClusteredQueue] = {}
        remotes = self._sharing(name)
        if remotes:
            for queue in queues:
                _clustered_queue(clustered_queues, old, queue.name).local = queue
            for binding in remotes:
                if binding.routing == routing:
                    _clustered_queue(clustered_queues, old, binding.name).remotes.append(binding)
        return clustered_queues

    def _form(self, address: Address, former: dict[str, ClusteredQueue]) -> dict[str, ClusteredQueue]:
        return self.clustered_queues_of(address.name, address.routing, address.queues, former)

    def _queues_changed(self, name: str) -> None:
        address = self.addresses.get(name)
        if address is not None:
            address.changed()

    def _forget_temporary(self, name: str) -> None:
        """The address of a temporary queue is there as long as the queue, here or elsewhere."""
        address = self.addresses.get(name)
        if address is not None and name.startswith(TEMPORARY) and not address.queues and not address.clustered_queues:
            self.remove_address(address)

    def remove_address(self, address: Address) -> None:
        """Forget an address that has no queues."""
        del self.addresses[address.name]
        if address.name in self.quotas:
            self.demand.bounds_changed(address.name)
        self.forget_quota(address.name)

    def forget_quota(self, name: str) -> None:
        """A room is of no use any more if neither its address is there nor a producer that would send to it."""
        quota = self.quotas.get(name)
        if quota is not None and quota.idle and name not in self.addresses:
            del self.quotas[name]

    def may_go(self, address: Address) -> bool:
        """Whether an address without queues goes by itself."""
        settings = self.settings(address.name)
        return (
            address.auto_created
            and settings.auto_delete_queues
            # On its next use it would be another one.
            and address.routing == settings.default_routing
            and not (
                address.queues or address.clustered_queues or len(address.duplicates) or self.diverts.uses(address.name)
            )
        )

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
            raise UsageError(f"{name!r} can't be a queue of {address!r}: another address has one of that name")
        if durable is not None and queue.durable != durable:
            raise UsageError(f"the queue {name!r} exists with durable={queue.durable}")
        return queue

    def find_queue(self, target: Target) -> Queue | None:
        """The queue that a consumer means by ``queue`` or ``address::queue``; None if it doesn't exist.

        Raises:
            NotFoundError: the queue exists on another address.
        """
        if target.queue is not None:
            subscription = self.queues.get(f"{target.address}{SEPARATOR}{target.queue}")
            if subscription is not None:
                return subscription
        queue = self.queues.get(target.queue or target.address)
        if queue is not None and target.queue is not None and queue.address != target.address:
            raise NotFoundError(f"{target.address!r} has no queue {target.queue!r}: another address has it")
        return queue

    def statistics(self, queue: Queue) -> dict[str, Any]:
        """Return the statistics of a queue, by name."""
        paged = queue.paged
        return {
            "name": queue.name,
            "address": queue.address,
            "routing": self.addresses[queue.address].routing,
            "durable": queue.durable,
            "paused": queue.paused,
            "temporary": queue.kind is QueueKind.TEMPORARY,
            "subscription": queue.spec.subscription,
            "filter": queue.spec.filter_text,
            "ready": queue.counts.ready,
            "delivering": queue.counts.unacked,
            "delayed": queue.counts.delayed,
            "scheduled": queue.scheduled.messages,
            "paged": paged[0],
            "paged_bytes": paged[1],
            "dropped": quota.dropped if (quota := self.quotas.get(queue.address)) is not None else 0,
            "added": queue.counts.added,
            "acknowledged": queue.counts.acknowledged,
            **queue.counts.removed,
            "redelivered": queue.counts.redelivered,
            "consumers": len(queue.roster.consumers),
            "groups": len(queue.grouped.table) if queue.grouped is not None else 0,
            "last_sequence": queue.last,
            "number": queue.number,
        }


def bounded(settings: AddressSettings) -> bool:
    """Whether the settings bound an address."""
    limited = settings.max_size_bytes < math.inf or settings.max_size_messages < math.inf
    return limited or settings.full_policy in ("drop", "fail")


def _clustered_queue(
    clustered_queues: dict[str, ClusteredQueue], old: dict[str, ClusteredQueue], name: str
) -> ClusteredQueue:
    clustered = clustered_queues.get(name)
    if clustered is None:
        clustered = clustered_queues[name] = ClusteredQueue(name)
        clustered.next_index = old[name].next_index if name in old else 0
    return clustered


def _by_link_and_number(item: tuple[tuple[bytes, int], RemoteBinding]) -> tuple[bytes, int]:
    return item[0]
