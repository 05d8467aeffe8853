"""A worker for asyncio: calls a handler for each message of a queue, a bounded number at a time."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from types import TracebackType

from meshq.aio._consumer import Consumer
from meshq.aio._delivery import Delivery, Handler
from meshq.aio._loop_thread import TaskLoop
from meshq.client import HandlerErrors, place_of
from meshq.errors import ClosedError, StaleDeliveryError


class Worker:
    """The handlers of one consumer's messages.  A cancellation ends the receiving; handlers that run go on to their
    end, unless it is repeated."""

    def __init__(self, consumer: Consumer, handler: Handler, concurrency: int, errors: HandlerErrors) -> None:
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._errors = errors
        self._receiving = asyncio.Lock()
        # All tasks; those in which a handler runs; and none of them is to receive any more.
        self._tasks: list[asyncio.Task[None]] = []
        self._handling: set[asyncio.Task[None]] = set()
        self._ending = False

    def stop(self) -> None:
        """Receive nothing more; returns at once."""
        self._ending = True
        for task in self._tasks:
            if task not in self._handling:
                task.cancel()

    async def run(self) -> None:
        """Handle messages until cancelled or stopped, or until the consumer is closed.

        Checkpoint: always.
        Cancellation: handlers that have begun are waited for, and their messages settled.  A second one cancels them.
        Raises: what ``on_error`` raises, and why the consumer is gone.
        """
        tasks = self._tasks = [asyncio.create_task(self._work()) for _ in range(self._concurrency)]
        cancelled: asyncio.CancelledError | None = None
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError as error:
            cancelled = error
        self.stop()
        while not all(task.done() for task in tasks):
            try:
                await asyncio.wait(tasks)
            except asyncio.CancelledError as error:
                cancelled = error
                for task in tasks:
                    task.cancel()
        failures = [task.exception() for task in tasks if not task.cancelled()]
        failure = next((error for error in failures if error is not None), None)
        if cancelled is not None:
            raise cancelled
        if failure is not None:
            raise failure

    async def _work(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        while not self._ending:
            async with self._receiving:
                try:
                    delivery = await self._consumer.receive()
                except ClosedError:
                    return
            assert delivery is not None, "only a browse has an end"
            self._handling.add(task)
            try:
                async with Handling(delivery, self._errors, self._consumer._loop):
                    await self._errors.awaitable(self._handler(delivery))
            finally:
                self._handling.discard(task)


class Handling:
    """The block around a handler's message: settles the message at its end, and reports an exception instead of raising
    it."""

    def __init__(self, delivery: Delivery, errors: HandlerErrors, loop: TaskLoop) -> None:
        self._delivery = delivery
        self._errors = errors
        self._loop = loop

    async def __aenter__(self) -> None:
        """Begin the handling of the message."""

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Settle the message, and report the exception of the handler, if any.

        Checkpoint: as ``Delivery.ack``.  Cancellation: the message is settled.
        Raises: what ``on_error`` raises.
        """
        settled = self._delivery._settled
        if self._errors.misused(error):
            self._delivery.consumer._hand_back(self._delivery)
            return False
        # A message of a lost session comes again; a closed client can't settle.
        cause = error
        if isinstance(error, asyncio.CancelledError) and not self._cancelled():
            error = RuntimeError("a handler has ended with a CancelledError of its own")
            error.__cause__ = cause
        with suppress(StaleDeliveryError, ClosedError):
            await self._delivery.__aexit__(kind, error, trace)
        if not isinstance(error, Exception):
            return False
        if not self._errors.passed_on(self._delivery, error):
            with suppress(ClosedError):
                self._loop.call_soon(self._errors.warn, place_of(cause or error), settled)
        return True

    def _cancelled(self) -> bool:
        """Whether the worker's task is cancelled, and not only something for which its handler has waited."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
