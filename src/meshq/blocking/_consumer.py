"""The consumer for threads: receives messages that have arrived, and reports them to the loop in batches."""

from __future__ import annotations

import math
import threading
from itertools import repeat
from types import TracebackType
from typing import TYPE_CHECKING, Self

from meshq import client as trio_client
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._delivery import Delivery
from meshq.blocking._loop_thread import ThreadLoop
from meshq.client import ConsumerTap
from meshq.errors import ClosedError, SettingsError
from meshq.portal import BufferedConsumer

if TYPE_CHECKING:
    from meshq.blocking._generated_client import ClientCalls


class Consumer(BufferedConsumer):
    """A consumer: receives deliveries from one queue.  Made by ``client.consumer``; used as ``with``, by one receiving
    thread at a time.

    ``window`` and ``window_bytes`` bound what is here, handed over or not, and not settled.  *Delivered* means
    handed to the application: what is only waiting here goes back uncounted when the consumer is closed.  Any
    thread may settle what any thread has received.
    """

    _loop: ThreadLoop
    _block: ThreadBlockRunner

    def __init__(self, client: ClientCalls, inner: trio_client.Consumer) -> None:
        super().__init__(client._loop, inner)
        self.client: ClientCalls = client
        self._block = ThreadBlockRunner(
            self._loop, inner, self._name, within=client._block, before_leaving=self._finish
        )
        self._arrived = threading.Condition(self._lock)

    # -- life

    def __enter__(self) -> Self:
        """Open it at the broker.

        Interrupted: it is closed again.
        Raises:
            UsageError: it was used before, or the address of the queue is of the other routing type.
            NotFoundError: there is no such queue, and none is made.
            RefusedError: somebody else has the queue for himself.
            FilterError: the broker takes the filter for none.
            ConnectionBrokenError, CallTimeoutError, ClosedError: it could not be opened.
        """
        self._block.claim()
        self._loop.at_end(self._end)
        try:
            self._block.enter()
        except BaseException:
            self._loop.cancel_at_end(self._end)
            if self._block.was_left:
                self._end()
            raise
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close it; see ``close``.

        Interrupted: it is closed all the same.
        """
        try:
            return self._block.leave(error)
        finally:
            self._loop.cancel_at_end(self._end)

    def close(self) -> None:
        """Close the consumer: received messages that are not settled go back marked as redelivered, prefetched ones
        unmarked.  Twice is silent.

        Interrupted: it is closed all the same; when messages are back is not waited for.
        """
        if self._block.shut():
            self._end()
        elif self._life.state != "closed":
            self._block.call(self._close)

    # -- receiving

    def receive(self, timeout: float | None = None) -> Delivery | None:
        """Receive the next message; None at the timeout, or at the end of a browse.

        Interrupted: no message is lost.
        Raises:
            BusyError: another thread is receiving.
            ClosedError, NotFoundError, ConnectionBrokenError: the consumer is gone, and why.
        """
        if self._loop.forked:
            self._loop.check_thread()
        with self._arrived:
            if (self._busy or not self._ready()) and not self._wait(timeout):
                return None
            run, index = self._run, self._position
            assert run is not None
            self._hand_over(run, index + 1)
        return Delivery(run, index, self)

    def receive_many(self, n: int, timeout: float | None = None) -> list[Delivery]:
        """Receive up to ``n`` messages, as soon as one is here; ``[]`` at the timeout, or at the end of a browse.

        Interrupted: no message is lost.
        Raises:
            SettingsError: ``n`` is not a whole number above 0.
            BusyError: another thread is receiving.
            ClosedError, NotFoundError, ConnectionBrokenError: the consumer is gone, and why.
        """
        if type(n) is not int or n < 1:
            raise SettingsError("n", n, "a whole number from 1")
        if self._loop.forked:
            self._loop.check_thread()
        taken: list[Delivery] = []
        with self._arrived:
            if (self._busy or not self._ready()) and not self._wait(timeout):
                return taken
            while n and self._ready():
                run, index = self._run, self._position
                assert run is not None
                end = min(run.rows, index + n)
                taken += map(Delivery, repeat(run), range(index, end), repeat(self))
                n -= end - index
                self._hand_over(run, end)
        return taken

    def _wait(self, timeout: float | None) -> bool:
        """Wait until something is here; False when the time is up."""
        self._check_waiting(timeout, "threads")
        longest = None if timeout is None or math.isinf(timeout) else min(timeout, threading.TIMEOUT_MAX)
        self._busy = True
        try:
            self._arrived.wait_for(self._waited, longest)
        finally:
            self._busy = False
        if self._ready():
            return True
        self._check()
        return False

    def _wake_waiters(self) -> None:
        self._arrived.notify_all()

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Delivery:
        """The next message; the iteration ends when the consumer is closed, or a browse at its end.

        Interrupted: no message is lost.
        Raises:
            StopIteration: the consumer was closed, or has shown everything.
        """
        try:
            delivery = self.receive()
        except ClosedError:
            raise StopIteration from None
        if delivery is None:
            # It was a browse.
            raise StopIteration
        return delivery

    # -- settling

    def ack(self, *deliveries: Delivery, confirm: bool = False) -> None:
        """Acknowledge messages: the broker removes them from the queue.

        Returns when it is in the session's ordered stream; with ``confirm`` when it is stored.

        Interrupted: without ``confirm`` it is in line or not touched; with it, unknown.
        Raises:
            UsageError: a delivery was settled before, or is another consumer's, or was only looked at; nothing changed.
            StaleDeliveryError: deliveries belong to a session or consumer that is gone and come again; the others
                are acknowledged; ``results`` says which is which.
            UnblockedError, CallTimeoutError, ConnectionBrokenError, ClosedError: with ``confirm``: unknown.
        """
        if confirm:
            self._tap.check_settling()
            self._block.call(self._ack_and_confirm, deliveries)
        else:
            self._settle(deliveries, ConsumerTap.ACK)

    def nack(self, *deliveries: Delivery, delay: float | None = None) -> None:
        """Give messages back: the queue delivers them again in their old place, to this or another consumer.

        ``delay``: seconds after which that may be; None: as the settings of the address have it.  A message that was
        delivered as often as these allow goes to their dead-letter address.

        Interrupted: it is in line or not touched.
        Raises:
            SettingsError: the delay is no number of seconds; nothing changed.
            UsageError, StaleDeliveryError: as ``ack``.
        """
        self._settle(deliveries, ConsumerTap.returning(delay))

    def reject(self, *deliveries: Delivery) -> None:
        """Reject messages for good: the broker moves them to the dead-letter address, or drops them if none is set.

        Interrupted: it is in line or not touched.
        Raises:
            UsageError, StaleDeliveryError: as ``ack``.
        """
        self._settle(deliveries, ConsumerTap.REJECT)
