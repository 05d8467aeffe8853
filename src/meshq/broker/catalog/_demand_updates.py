"""The news of queues here for other nodes: which queues have changed, and who has linked to this node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from meshq.address import NOTIFICATIONS
from meshq.broker.queue._queue_machine import Queue


class DemandLink(Protocol):
    """The link of a peer, which describes queues to that peer."""

    def changed(self, number: int) -> None:
        """Describe a queue anew."""

    def supersede(self, link: bytes) -> None:
        """Ignore a link: another session reads it from now on."""


def is_hidden(queue: Queue) -> bool:
    """Whether a queue is hidden from other nodes: store-and-forward queues, and subscriptions to notifications."""
    return queue.forwards or queue.address == NOTIFICATIONS


class DemandUpdates:
    """Tells links of peers which queues have changed."""

    __slots__ = ("_links", "mobility_watchers", "on_peer", "watchers")

    def __init__(self) -> None:
        self._links: dict[DemandLink, None] = {}
        #: Called whenever a queue or its consumers have changed.
        self.watchers: list[Callable[[], None]] = []
        #: Called with the name of a queue whenever its messages may be free to go to another node, or no longer.
        self.mobility_watchers: list[Callable[[str], None]] = []
        #: Called whenever another node has linked to this one: its id, and the URL where it says it is.
        self.on_peer: list[Callable[[bytes, str], None]] = []

    def add(self, link: DemandLink) -> None:
        """Tell a link of changes from now on."""
        self._links[link] = None

    def met(self, node_id: bytes, connector: str) -> None:
        """Tell the watchers that another node has opened a link."""
        for watcher in self.on_peer:
            watcher(node_id, connector)

    def drop(self, link: DemandLink) -> None:
        """Tell a link nothing more."""
        self._links.pop(link, None)

    def supersede(self, link: bytes) -> None:
        """Ignore a link in older sessions: it has begun anew."""
        for peering in self._links:
            peering.supersede(link)

    def changed(self, queue: Queue) -> None:
        """Tell all links of a queue that was created or deleted, or whose consumers have changed."""
        if is_hidden(queue):
            return
        for link in self._links:
            link.changed(queue.number)
        for watcher in self.watchers:
            watcher()
        self.mobility_changed(queue.name)

    def mobility_changed(self, name: str) -> None:
        """Tell the watchers that messages of a queue may be free to go to another node, or no longer."""
        for watcher in self.mobility_watchers:
            watcher(name)
