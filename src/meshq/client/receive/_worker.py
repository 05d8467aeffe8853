"""A worker: calls a handler for each message of a queue, a bounded number at a time."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType

import trio

from meshq.client.receive._consumer import Consumer
from meshq.client.receive._delivery import Delivery
from meshq.client.receive._handlers import HandlerErrors, place_of
from meshq.concurrency import first_error
from meshq.errors import ClosedError, StaleDeliveryError

#: The function that ``serve`` calls with each message.
Handler = Callable[[Delivery], Awaitable[object]]


class Worker:
    """The handlers of one consumer's messages.  A cancellation ends the receiving; handlers that run go on to their
    end."""

    def __init__(self, consumer: Consumer, handler: Handler, concurrency: int, errors: HandlerErrors) -> None:
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._errors = errors
        self._receiving = trio.Lock()
        self._scope = trio.CancelScope()

    def stop(self) -> None:
        """Receive nothing more; returns at once."""
        self._scope.cancel()

    async def run(self) -> None:
        """Handle messages until cancelled or stopped, or until the consumer is closed.

        Checkpoint: always.
        Cancellation: handlers that have begun are waited for, and their messages settled.
        Raises: what ``on_error`` raises, and why the consumer is gone.
        """
        failure: BaseException | None = None
        try:
            with self._scope:
                async with trio.open_nursery() as nursery:
                    for _ in range(self._concurrency):
                        nursery.start_soon(self._work)
        except BaseExceptionGroup as group:
            failure = first_error(group)
        if failure is not None:
            raise failure

    async def _work(self) -> None:
        while True:
            async with self._receiving:
                try:
                    delivery = await self._consumer.receive()
                except ClosedError:
                    return
            assert delivery is not None, "only a browse has an end"
            with trio.CancelScope(shield=True):
                async with Handling(delivery, self._errors):
                    await self._errors.awaitable(self._handler(delivery))


class RunningWorkers:
    """The workers of one client, while they run."""

    __slots__ = ("_running", "_stopped")

    def __init__(self) -> None:
        self._running: dict[Worker, None] = {}
        self._stopped = False

    async def run(self, worker: Worker) -> None:
        """Run a worker until its end, which is at once if the workers were stopped before.

        Checkpoint: always.  Cancellation, Raises: as ``Worker.run``.
        """
        self._running[worker] = None
        if self._stopped:
            worker.stop()
        try:
            await worker.run()
        finally:
            del self._running[worker]

    def stop(self) -> None:
        """Stop every worker, and every later one; returns at once."""
        self._stopped = True
        for worker in list(self._running):
            worker.stop()


class Handling:
    """The block around a handler's message: settles the message at its end, and reports an exception instead of raising
    it."""

    def __init__(self, delivery: Delivery, errors: HandlerErrors) -> None:
        self._delivery = delivery
        self._errors = errors

    async def __aenter__(self) -> None:
        """Begin the handling of the message."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Settle the message, and report the exception of the handler, if any.

        Checkpoint: as ``Delivery.ack``.  Cancellation: the worker shields it.
        Raises: what ``on_error`` raises.
        """
        settled = self._delivery._settled
        if self._errors.misused(error):
            self._delivery.consumer._inbox.hand_back(self._delivery)
            return False
        # A message of a session that is gone comes again.
        with suppress(StaleDeliveryError, ClosedError):
            await self._delivery.__aexit__(kind, error, trace)
        if not isinstance(error, Exception):
            return False
        if not self._errors.passed_on(self._delivery, error):
            self._errors.warn(place_of(error), settled)
        return True
