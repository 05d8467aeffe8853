"""The news of queues here for other nodes: which queues have changed, and who has linked to this node."""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple, Protocol

from meshq import limits
from meshq.address import tells_events
from meshq.broker.catalog._distribution_plan import filters_of
from meshq.broker.catalog._network_demand_plan import Arrivals
from meshq.broker.log._hop_log import HopLog
from meshq.broker.queue._queue_machine import Queue

#: Bytes that a description of a queue takes beside its names and filters.
_DESCRIPTION_BYTES_MAX: Final = 256


class DemandLink(Protocol):
    """The link of a peer, which describes queues to that peer."""

    def changed(self, number: int) -> None:
        """Describe a queue anew."""

    def remote_changed(self, address: str) -> None:
        """Describe the queues of other nodes on an address anew."""

    def bounds_changed(self, address: str) -> None:
        """Give credit at an address that may have become bounded, or take it back at one that is gone."""

    def supersede(self, link: bytes) -> None:
        """Ignore a link: another session reads it from now on."""

    @property
    def connected(self) -> bool:
        """Whether the session of the link has a connection now."""


class IncomingConnector(NamedTuple):
    """A connector of another broker that is linked here.

    ``settings``: those that are set, and belong on all connectors of a network.
    """

    name: str
    broker: str
    settings: tuple[str, ...] = ()


class KeptQueues:
    """The queues that keep messages for other brokers of the network, in the order of the characters of their names."""

    __slots__ = ("_names", "_queues", "arrivals", "looked_ms")

    def __init__(self) -> None:
        self._names: list[str] = []
        self._queues: dict[str, Queue] = {}
        #: By the name of a queue: when its messages came.
        self.arrivals: dict[str, Arrivals] = {}
        #: When it was looked for messages last, by a clock that nobody can set; minus infinity: not yet.
        self.looked_ms: float = -math.inf

    def add(self, queue: Queue) -> None:
        """Take a queue in that is not there."""
        insort(self._names, queue.name)
        self._queues[queue.name] = queue
        self.arrivals[queue.name] = Arrivals(self.looked_ms)

    def remove(self, queue: Queue) -> None:
        """Take a queue out."""
        del self._names[bisect_left(self._names, queue.name)], self._queues[queue.name], self.arrivals[queue.name]

    def behind(self, name: str) -> Iterator[Queue]:
        """Yield the queues whose names come after a name; meanwhile none may come or go."""
        for at in range(bisect_right(self._names, name), len(self._names)):
            yield self._queues[self._names[at]]


def is_hidden(queue: Queue) -> bool:
    """Whether a queue is hidden from other nodes: store-and-forward queues, and subscriptions to notifications and
    advisories."""
    return queue.forwards or tells_events(queue.address)


def filters_told(queue: Queue) -> tuple[str, ...] | None:
    """Return the filters of a queue's consumers that other nodes are told; None: these are more than a header holds, so
    whatever comes may be wanted."""
    filters = tuple(filter.text for filter in filters_of(queue) or ())
    names = (queue.name, queue.address, queue.spec.filter_text)
    taken = sum(len(text.encode()) for text in names) + _DESCRIPTION_BYTES_MAX
    fits = sum(len(text.encode()) + 3 for text in filters) <= limits.HEADER_BYTES_MAX - taken
    return filters if fits else None


class DemandUpdates:
    """Tells links of peers which queues have changed."""

    __slots__ = ("_links", "connectors", "hops", "incoming", "kept", "mobility_watchers", "on_peer", "watchers")

    def __init__(self) -> None:
        # Whose they are: the id of the node, its life, and its place.
        self._links: dict[DemandLink, tuple[bytes, bytes, str]] = {}
        #: The last runs that went from node to node.
        self.hops: HopLog = HopLog()
        #: The connectors of other brokers of the network that are linked to this one.
        self.incoming: dict[object, IncomingConnector] = {}
        #: The queues here that keep messages for other brokers of the network.
        self.kept: KeptQueues = KeptQueues()
        #: The settings of the network connectors here that belong on all connectors, by name.
        self.connectors: dict[str, Sequence[str]] = {}
        #: Called whenever a queue or its consumers have changed, also when it is paused or goes on.
        self.watchers: list[Callable[[], None]] = []
        #: Called with the name of a queue whenever its messages may be free to go to another node, or no longer.
        self.mobility_watchers: list[Callable[[str], None]] = []
        #: Called whenever another node has linked to this one: its id, and the URL where it says it is.
        self.on_peer: list[Callable[[bytes, str], None]] = []

    def add(self, link: DemandLink, peer: tuple[bytes, bytes, str]) -> None:
        """Tell a link of changes from now on; ``peer``: the id, the life and the place of its node."""
        self._links[link] = peer

    def met(self, node_id: bytes, connector: str) -> None:
        """Tell the watchers that another node has opened a link."""
        for watcher in self.on_peer:
            watcher(node_id, connector)

    def node_of(self, link: DemandLink) -> str:
        """Return the id of the node that has opened a link; empty: the link is not open."""
        return self._links[link][0].hex() if link in self._links else ""

    def drop(self, link: DemandLink) -> None:
        """Tell a link nothing more."""
        self._links.pop(link, None)

    def supersede(self, link: bytes) -> None:
        """Ignore a link in older sessions: it has begun anew."""
        for peering in self._links:
            peering.supersede(link)

    def place_of_twin(self, node_id: bytes, instance: bytes, connector: str) -> str:
        """Return where another node with this id is that is connected now; empty: nowhere.

        A node that has begun anew comes from the same place; one that has moved is refused until its old connection is
        known to be lost.
        """
        for link, (there, life, place) in self._links.items():
            if there == node_id and life != instance and connector and place != connector and link.connected:
                return place
        return ""

    def changed(self, queue: Queue) -> None:
        """Tell all links of a queue that was created, deleted or paused, or whose consumers have changed."""
        if is_hidden(queue):
            return
        for link in self._links:
            link.changed(queue.number)
        for watcher in self.watchers:
            watcher()
        self.mobility_changed(queue.name)

    def remote_changed(self, address: str) -> None:
        """Tell all links that queues of other nodes on an address have changed."""
        for link in self._links:
            link.remote_changed(address)

    def bounds_changed(self, address: str) -> None:
        """Tell all links that an address may have become bounded, or is gone."""
        for link in self._links:
            link.bounds_changed(address)

    def mobility_changed(self, name: str) -> None:
        """Tell the watchers that messages of a queue may be free to go to another node, or no longer."""
        for watcher in self.mobility_watchers:
            watcher(name)
