"""The clock and the messages: delayed messages become visible, and expired ones leave their queues."""

from __future__ import annotations

from collections.abc import Callable

from meshq.broker.catalog._router import Router
from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun
from meshq.broker.queue._timers import TimerService
from meshq.broker.settlement._delayed_delivery import DelayedDelivery
from meshq.broker.settlement._expiry import Expiry
from meshq.broker.settlement._message_mover import MessageMover
from meshq.broker.settlement._paged_runs import ContentLoader


class MessageTimes:
    """Sets the timers of messages.  A run in a queue is either held back until it is due, or watched for its expiry."""

    def __init__(
        self,
        mover: MessageMover,
        timers: TimerService,
        router: Router,
        release_queue: ReleaseQueue,
        watermarks: HighWatermarks,
        *,
        loader: ContentLoader,
        schedule_dispatch: Callable[[Queue], None],
    ) -> None:
        #: The timers of messages.
        self.timers: TimerService = timers
        self._delayed_delivery = DelayedDelivery(release_queue, watermarks, timers)
        #: Removes expired messages from their queues.
        self.expiry: Expiry = Expiry(mover, timers, router, loader=loader, schedule_dispatch=schedule_dispatch)

    def hold_back(self, queue: Queue, view: QueueRun) -> None:
        """Keep a stored run out of sight until it is due."""
        self._delayed_delivery.schedule(queue, view)

    def watch(self, queue: Queue, view: QueueRun) -> None:
        """Set a timer for the messages of a visible run that expire."""
        self.expiry.watch(queue, view)
