"""Notifications of a node: for listeners in this process at once, for subscriptions at the end of the pass.

Without listeners and subscriptions a notification costs nothing.  The node never waits for a listener: notifications
that find no place are dropped, the oldest first, and counted.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from meshq import limits
from meshq.address import INTERNAL, NOTIFICATIONS, Target
from meshq.errors import AddressFullError, ClosedError, JournalBrokenError
from meshq.notifications import BrokerStateChanged, Notification
from meshq.wire import KIND_PLAIN, KIND_PROPERTIES, Envelope, encode_map

if TYPE_CHECKING:
    from meshq.broker.core._core import Core

Listener = Callable[[Notification], None]


class Watcher(Protocol):
    """A program's own buffer of notifications."""

    def put(self, event: Notification) -> None:
        """Take in a notification."""

    def close(self) -> None:
        """Nothing more will happen."""


class EventBus:
    """Hands notifications to listeners, watchers and the publisher."""

    __slots__ = ("_listeners", "_publisher", "_watchers", "now_ms")

    def __init__(self) -> None:
        #: The broker's clock; a core sets it.
        self.now_ms: Callable[[], int] = _never
        self._listeners: list[Listener] = []
        # Weak: a watcher lives as long as its program refers to it, and may come and go in another thread.
        self._watchers: list[weakref.ref[Watcher]] = []
        self._publisher: NotificationPublisher | None = None

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

    def open(self, publisher: NotificationPublisher) -> None:
        """Publish notifications to subscriptions from now on."""
        self._publisher = publisher

    def emit(self, kind: type[Notification], **about: Any) -> None:
        """Emit a notification of this class, with these fields."""
        publisher = self._publisher
        # There are no subscriptions before a node is active, and no more deliveries when it stops.
        announced = publisher is not None and publisher.wanted and kind is not BrokerStateChanged
        if not announced and not self._listeners and not self._watchers:
            return
        if str(about.get("queue", "")).startswith(INTERNAL):
            # Store-and-forward queues are the cluster's own.
            return
        notification = kind(timestamp=self.now_ms() / 1000, **about)
        for listener in self._listeners:
            listener(notification)
        for one in tuple(self._watchers):
            watcher = one()
            if watcher is not None:
                watcher.put(notification)
            else:
                self._watchers.remove(one)
        # A notification about notifications is not published: it would cause further ones.
        if announced and publisher is not None and about.get("address") != NOTIFICATIONS:
            publisher.add(notification)


class NotificationPublisher:
    """Puts notifications in the queues that are subscribed to them, as messages that are not durable."""

    __slots__ = ("_core", "_waiting", "dropped")

    def __init__(self, core: Core) -> None:
        self._core = core
        self._waiting: deque[Notification] = deque()
        #: Notifications that a subscription did not get, because it had too many.
        self.dropped: int = 0

    @property
    def wanted(self) -> bool:
        """Whether the address of notifications has a subscription."""
        address = self._core.router.addresses.get(NOTIFICATIONS)
        return address is not None and bool(address.queues)

    def add(self, notification: Notification) -> None:
        """Publish a notification at the end of the pass."""
        if len(self._waiting) == limits.NOTIFICATIONS_WAITING_MAX:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append(notification)
        self._core.schedule_flush(self)

    def flush(self) -> None:
        """Publish all waiting notifications."""
        while self._waiting:
            count = min(len(self._waiting), limits.RUN_MESSAGES_MAX)
            self._announce([self._waiting.popleft() for _ in range(count)])

    def _announce(self, notifications: list[Notification]) -> None:
        core, count = self._core, len(notifications)
        address = core.router.addresses.get(NOTIFICATIONS)
        if address is None or core.closing is not None:
            return
        kind = KIND_PLAIN | KIND_PROPERTIES
        envelopes = [Envelope(kind, b"", b"", encode_map(one.properties())) for one in notifications]
        # A notification that no subscription takes does not count as lost.
        target, stamp_ms = Target(NOTIFICATIONS, None), round(notifications[0].timestamp * 1000)
        try:
            core.internal_producer.send(
                target, [b""] * count, envelopes, stamp_ms, counted=False, ahead=self._drop_oldest, lost=self._drop
            )
        except (AddressFullError, ClosedError, JournalBrokenError):
            # A durable subscription has no room, or the node ends, and says why.
            self._drop(count)

    def _drop_oldest(self, count: int) -> None:
        """Drop old notifications so that ``count`` new ones fit."""
        address = self._core.router.addresses.get(NOTIFICATIONS)
        for queue in address.queues if address is not None else ():
            over = queue.ready + queue.delayed + count - limits.NOTIFICATIONS_QUEUED_MAX
            if over > 0:
                self._drop(self._core.acknowledger.drop_oldest(queue, over))

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._core.on_warning("notifications_dropped", "somebody who has subscribed to notifications misses some")


def _never() -> int:
    """The time before there is a clock."""
    return 0
