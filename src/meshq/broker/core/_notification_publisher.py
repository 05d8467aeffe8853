"""Notifications as messages: for the queues that are subscribed to these, at the end of the pass."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from meshq import limits
from meshq.address import NOTIFICATIONS, Target
from meshq.broker.catalog._router import Router
from meshq.broker.core._internal_producer import InternalProducer
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.work._closing import Closing
from meshq.errors import AddressFullError, ClosedError, JournalBrokenError
from meshq.notifications import Notification
from meshq.wire import KIND_PLAIN, KIND_PROPERTIES, Envelope, encode_map


class NotificationPublisher:
    """Puts notifications in the queues that are subscribed to them, as messages that are not durable."""

    __slots__ = ("_acknowledger", "_closing", "_producer", "_router", "_schedule_flush", "_waiting", "_warn", "dropped")

    def __init__(
        self,
        router: Router,
        producer: InternalProducer,
        acknowledger: Acknowledger,
        *,
        schedule_flush: Callable[[NotificationPublisher], None],
        warn: Callable[[str, str], None],
        closing: Closing,
    ) -> None:
        self._router = router
        self._producer = producer
        self._acknowledger = acknowledger
        self._schedule_flush = schedule_flush
        self._warn = warn
        self._closing = closing
        self._waiting: deque[Notification] = deque()
        #: Notifications that a subscription did not get, because it had too many.
        self.dropped: int = 0

    @property
    def wanted(self) -> bool:
        """Whether the address of notifications has a subscription."""
        address = self._router.addresses.get(NOTIFICATIONS)
        return address is not None and bool(address.queues)

    def add(self, notification: Notification) -> None:
        """Publish a notification at the end of the pass."""
        if len(self._waiting) == limits.NOTIFICATIONS_WAITING_MAX:
            self._waiting.popleft()
            self._drop(1)
        self._waiting.append(notification)
        self._schedule_flush(self)

    def flush(self) -> None:
        """Publish all waiting notifications."""
        while self._waiting:
            count = min(len(self._waiting), limits.RUN_MESSAGES_MAX)
            self._announce([self._waiting.popleft() for _ in range(count)])

    def _announce(self, notifications: list[Notification]) -> None:
        count = len(notifications)
        address = self._router.addresses.get(NOTIFICATIONS)
        if address is None or self._closing.why is not None:
            return
        kind = KIND_PLAIN | KIND_PROPERTIES
        envelopes = [Envelope(kind, b"", b"", encode_map(one.properties())) for one in notifications]
        # A notification that no subscription takes does not count as lost.
        target, stamp_ms = Target(NOTIFICATIONS, None), round(notifications[0].timestamp * 1000)
        try:
            self._producer.send(
                target, [b""] * count, envelopes, stamp_ms, counted=False, ahead=self._drop_oldest, lost=self._drop
            )
        except (AddressFullError, ClosedError, JournalBrokenError):
            # A durable subscription has no room, or the node ends, and says why.
            self._drop(count)

    def _drop_oldest(self, count: int) -> None:
        """Drop old notifications so that ``count`` new ones fit."""
        address = self._router.addresses.get(NOTIFICATIONS)
        for queue in address.queues if address is not None else ():
            over = queue.counts.ready + queue.counts.delayed + count - limits.NOTIFICATIONS_QUEUED_MAX
            if over > 0:
                self._drop(self._acknowledger.drop_oldest(queue, over))

    def _drop(self, count: int) -> None:
        self.dropped += count
        self._warn("notifications_dropped", "somebody who has subscribed to notifications misses some")
