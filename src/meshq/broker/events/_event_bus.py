"""Notifications of a node: for listeners in this process at once, for subscriptions at the end of the pass.

Without listeners and subscriptions a notification costs nothing.  The node never waits for a listener: notifications
that find no place are dropped, the oldest first, and counted.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from meshq.address import INTERNAL
from meshq.broker.events._advisories_plan import ADVISORY_ONLY
from meshq.notifications import BrokerStateChanged, MessagesStuck, Notification

Listener = Callable[[Notification], None]


class Watcher(Protocol):
    """A program's own buffer of notifications."""

    def put(self, event: Notification) -> None:
        """Take in a notification."""

    def close(self) -> None:
        """Nothing more will happen."""


class Publisher(Protocol):
    """Puts notifications into the queues of subscriptions."""

    #: Notifications that a subscription did not get, because it had too many.
    dropped: int

    def places(self, kind: type[Notification], about: Mapping[str, Any]) -> Sequence[str]:
        """Return the addresses with subscriptions at which a notification of this class is told."""

    def add(self, notification: Notification, places: Sequence[str]) -> None:
        """Publish a notification at these addresses, at the end of the pass."""


class EventBus:
    """Hands notifications to listeners, watchers and the publisher."""

    __slots__ = ("_listeners", "_now_ms", "_publisher", "_watchers", "advisory_support")

    def __init__(self, *, advisory_support: bool = True) -> None:
        #: Whether the topics of advisories are told anything.
        self.advisory_support: bool = advisory_support
        # The clock of the core that runs.
        self._now_ms: Callable[[], int] = _never
        self._listeners: list[Listener] = []
        # Weak: a watcher lives as long as its program refers to it, and may come and go in another thread.
        self._watchers: list[weakref.ref[Watcher]] = []
        self._publisher: Publisher | None = None

    @property
    def dropped(self) -> int:
        """Notifications that subscriptions of the present life of the node did not get."""
        return self._publisher.dropped if self._publisher is not None else 0

    def listen(self, listener: Listener) -> None:
        """Call ``listener`` with each notification from now on."""
        self._listeners.append(listener)

    def watch(self, watcher: Watcher) -> None:
        """Give each notification to a watcher, as long as the program refers to the watcher."""
        self._watchers.append(weakref.ref(watcher))

    def close(self) -> None:
        """Close all watchers: there are no more notifications."""
        watchers, self._watchers = self._watchers, []
        for one in watchers:
            if (watcher := one()) is not None:
                watcher.close()

    def open(self, publisher: Publisher, now_ms: Callable[[], int]) -> None:
        """Publish notifications to subscriptions from now on, with times of this clock."""
        self._publisher = publisher
        self.set_clock(now_ms)

    def set_clock(self, now_ms: Callable[[], int]) -> None:
        """Give notifications the time of this clock."""
        self._now_ms = now_ms

    def emit(self, kind: type[Notification], **about: Any) -> None:
        """Emit a notification of this class, with these fields."""
        publisher = self._publisher
        # There are no subscriptions before a node is active, and no more deliveries when it stops.
        places = publisher.places(kind, about) if publisher is not None and kind is not BrokerStateChanged else ()
        heard = (self._listeners or self._watchers) and kind not in ADVISORY_ONLY
        if not places and not heard:
            return
        if str(about.get("queue", "")).startswith(INTERNAL) and kind is not MessagesStuck:
            # Store-and-forward queues are the cluster's own; what is stuck in one is somebody's messages.
            return
        notification = kind(timestamp=self._now_ms() / 1000, **about)
        if heard:
            self._tell(notification)
        if places and publisher is not None:
            publisher.add(notification, places)

    def _tell(self, notification: Notification) -> None:
        """Tell the programs of this process."""
        for listener in self._listeners:
            listener(notification)
        for one in tuple(self._watchers):
            watcher = one()
            if watcher is not None:
                watcher.put(notification)
            else:
                self._watchers.remove(one)


def _never() -> int:
    """The time before there is a clock."""
    return 0
