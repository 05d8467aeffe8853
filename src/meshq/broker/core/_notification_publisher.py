"""Notifications as messages: for the queues that are subscribed to these, at the end of the pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from meshq import limits
from meshq.address import NOTIFICATIONS, Target, tells_events
from meshq.broker.catalog._router import Router
from meshq.broker.core._internal_producer import InternalProducer
from meshq.broker.events._advisories_plan import ADVISORY_ONLY, advisories
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.work._closing import Closing
from meshq.errors import AddressFullError, ClosedError, JournalBrokenError
from meshq.notifications import Notification
from meshq.wire import KIND_PLAIN, KIND_PROPERTIES, Envelope, encode_map


class NotificationPublisher:
    """Puts notifications in the queues that are subscribed to them, as messages that are not durable."""

    __slots__ = (
        "_acknowledger",
        "_advised",
        "_closing",
        "_producer",
        "_router",
        "_schedule_flush",
        "_waiting",
        "_warn",
        "dropped",
    )

    def __init__(
        self,
        router: Router,
        producer: InternalProducer,
        acknowledger: Acknowledger,
        *,
        schedule_flush: Callable[[NotificationPublisher], None],
        warn: Callable[[str, str], None],
        closing: Closing,
        advisory_support: bool,
    ) -> None:
        """``advisory_support``: whether the topics of advisories are told anything."""
        self._router = router
        self._producer = producer
        self._acknowledger = acknowledger
        self._schedule_flush = schedule_flush
        self._warn = warn
        self._closing = closing
        self._advised = advisory_support
        self._waiting: deque[tuple[Notification, Sequence[str]]] = deque()
        #: Notifications that a subscription did not get, because it had too many.
        self.dropped: int = 0

    def places(self, kind: type[Notification], about: Mapping[str, Any]) -> Sequence[str]:
        """Return the addresses with subscriptions at which a notification of this class is told."""
        addresses, subject = self._router.addresses, str(about.get("address", ""))
        if tells_events(subject):
            # A notification about notifications would cause further ones.
            return ()
        known = addresses.get(subject)
        routing = known.routing if known is not None else str(about.get("routing", ""))
        named = advisories(kind, about, routing) if self._advised else ()
        wanted = named if kind in ADVISORY_ONLY else (NOTIFICATIONS, *named)
        return [name for name in wanted if name in addresses and addresses[name].queues]

    def add(self, notification: Notification, places: Sequence[str]) -> None:
        """Publish a notification at these addresses, at the end of the pass."""
        if len(self._waiting) == limits.NOTIFICATIONS_WAITING_MAX:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append((notification, places))
        self._schedule_flush(self)

    def flush(self) -> None:
        """Publish all waiting notifications."""
        while self._waiting:
            told: dict[str, list[Notification]] = {}
            for _ in range(min(len(self._waiting), limits.RUN_MESSAGES_MAX)):
                notification, places = self._waiting.popleft()
                for place in places:
                    told.setdefault(place, []).append(notification)
            for place, notifications in told.items():
                self._announce(place, notifications)

    def _announce(self, place: str, notifications: list[Notification]) -> None:
        count = len(notifications)
        if place not in self._router.addresses or self._closing.why is not None:
            return
        kind = KIND_PLAIN | KIND_PROPERTIES
        envelopes = [Envelope(kind, b"", b"", encode_map(one.properties())) for one in notifications]
        # A notification that no subscription takes does not count as lost.
        target, ahead = Target(place, None), partial(self._drop_oldest, place)
        stamp_ms = round(notifications[0].timestamp * 1000)
        try:
            self._producer.send(target, [b""] * count, envelopes, stamp_ms, counted=False, ahead=ahead, lost=self._drop)
        except (AddressFullError, ClosedError, JournalBrokenError):
            # A durable subscription has no room, or the node ends, and says why.
            self._drop(count)

    def _drop_oldest(self, place: str, count: int) -> None:
        """Drop old notifications at an address so that ``count`` new ones fit."""
        address = self._router.addresses.get(place)
        for queue in address.queues if address is not None else ():
            over = queue.counts.ready + queue.counts.delayed + count - limits.NOTIFICATIONS_QUEUED_MAX
            if over > 0:
                self._drop(self._acknowledger.drop_oldest(queue, over))

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._warn("notifications_dropped", "somebody who has subscribed to notifications misses some")
