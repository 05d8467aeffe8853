"""The tap of a consumer: another thread takes its runs, hands the messages over, and reports that afterwards.

What is lent is not yet delivered: only what the other thread reports as handed over is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from meshq.client.incoming._delivered_run import DeliveredRun, ReceivedMessage
from meshq.client.incoming._inbox import returning
from meshq.client.incoming._spans import DeliverySpan
from meshq.client.receive._consumer import Consumer
from meshq.concurrency import copied_error
from meshq.errors import MeshqError, StaleDeliveryError
from meshq.wire import FLAG_REJECT


class ConsumerTap:
    """The calls of another thread to one consumer.

    ``on_change`` is called, in the client's own thread, when messages have arrived or the consumer has failed.
    ``mark`` and ``settle`` are for one thread at a time: whoever borrows has a lock for them.
    """

    #: The fates of a message.
    ACK: Final = 0
    returning: Final = staticmethod(returning)
    REJECT: Final = FLAG_REJECT

    def __init__(self, consumer: Consumer, on_change: Callable[[], None]) -> None:
        self._consumer = consumer
        self._on_change = on_change
        self._inbox = consumer._lend(self)

    @property
    def has_waiter(self) -> bool:
        """True: the other thread is told of every arrival."""
        return True

    def wake(self) -> None:
        """Tell the other thread that messages have arrived, or that the consumer has failed."""
        self._on_change()

    # -- for any thread

    @property
    def failure(self) -> MeshqError | None:
        """The error of the failed consumer; None while messages may come."""
        failed = self._inbox.failed
        return copied_error(failed) if failed is not None else None

    @property
    def auto(self) -> bool:
        """Whether messages are acknowledged when they are received."""
        return self._inbox.auto

    @property
    def ended(self) -> bool:
        """Whether a browse has brought everything."""
        return self._inbox.ended

    def check_settling(self) -> None:
        """Check that the messages may be settled.

        Raises:
            UsageError: they were only looked at.
        """
        self._inbox.check_settling()

    def current(self, run: DeliveredRun) -> bool:
        """Whether messages of this run may be handed over: if its session is gone they come again."""
        return run.epoch == self._inbox.epoch

    def mark(self, deliveries: Sequence[ReceivedMessage]) -> tuple[list[DeliverySpan], StaleDeliveryError | None]:
        """Mark deliveries as settled; return the spans for ``report``, and the error for stale deliveries.

        Raises:
            UsageError: one is settled already, or not of this consumer; nothing changed.
        """
        return self._inbox.mark(deliveries)

    def hand_back(self, delivery: ReceivedMessage) -> None:
        """Hand back a message that the application could not use; see ``Inbox.hand_back``."""
        self._inbox.hand_back(delivery)

    # -- for the client's thread

    def take(self) -> list[DeliveredRun]:
        """Take the runs that have arrived."""
        return self._inbox.lend()

    def report(self, handed: Sequence[DeliverySpan], settled: Sequence[tuple[int, DeliverySpan]]) -> None:
        """Report the messages that the other thread has received and settled since the last report."""
        self._inbox.handed_over(handed)
        if not self._inbox.ended and self._inbox.gather(settled):
            self._consumer._session.stream.gathered(self._inbox)

    def settle(self, deliveries: Sequence[ReceivedMessage]) -> StaleDeliveryError | None:
        """Acknowledge deliveries; return the error for stale deliveries, if any.

        Raises:
            UsageError: one is settled already, or not of this consumer; nothing changed.
        """
        return self._inbox.settle(deliveries, 0) if deliveries else None

    async def confirm(self) -> None:
        """Return when all that was acknowledged is stored.

        Checkpoint: always.  Cancellation: it is unknown.
        Raises:
            UnblockedError, CallTimeoutError, ConnectionBrokenError, StaleDeliveryError: see ``Consumer.ack``.
        """
        await self._consumer._confirm()
