"""A worker with threads: calls a handler for each message of a queue, a bounded number at a time."""

from __future__ import annotations

import threading
from contextlib import suppress
from types import TracebackType

import outcome

from meshq.blocking._consumer import Consumer
from meshq.blocking._delivery import Delivery, Handler
from meshq.blocking._loop_thread import ThreadLoop
from meshq.client import HandlerErrors, place_of
from meshq.errors import ClosedError, StaleDeliveryError


class Worker:
    """The handlers of one consumer's messages, each in a thread of the worker.  When it is stopped, handlers that run
    go on to their end."""

    def __init__(self, consumer: Consumer, handler: Handler, concurrency: int, errors: HandlerErrors) -> None:
        self._consumer = consumer
        self._handler = handler
        self._concurrency = concurrency
        self._errors = errors
        self._receiving = threading.Lock()
        # Threads that have not ended, and what the first that failed has raised.
        self._ended = threading.Event()
        self._failure: BaseException | None = None

    def stop(self) -> None:
        """Receive nothing more; returns at once."""
        # Received messages can still be settled.
        self._consumer._end()
        self._ended.set()

    def run(self) -> None:
        """Handle messages until stopped, or until the consumer is closed.

        Interrupted: handlers that have begun are waited for, and their messages settled.  A second interrupt doesn't
        wait for them.
        Raises: what ``on_error`` raises, and why the consumer is gone.
        """
        name = f"meshq: a handler of {self._consumer.queue!r}"
        threads = [threading.Thread(target=self._live, name=name) for _ in range(self._concurrency)]
        try:
            for thread in threads:
                thread.start()
            self._ended.wait()
        finally:
            self.stop()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
        if self._failure is not None:
            raise self._failure

    def _live(self) -> None:
        result = outcome.capture(self._work)
        if isinstance(result, outcome.Error):
            self._failure = self._failure or result.error
        self._ended.set()

    def _work(self) -> None:
        while True:
            with self._receiving:
                try:
                    delivery = self._consumer.receive()
                except ClosedError:
                    return
            assert delivery is not None, "only a browse has an end"
            with Handling(delivery, self._errors, self._consumer._loop):
                self._errors.finished(self._handler(delivery))


class Handling:
    """The block around a handler's message: settles the message at its end, and reports an exception instead of raising
    it."""

    def __init__(self, delivery: Delivery, errors: HandlerErrors, loop: ThreadLoop) -> None:
        self._delivery = delivery
        self._errors = errors
        self._loop = loop

    def __enter__(self) -> None:
        """Begin the handling of the message."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Settle the message, and report the exception of the handler, if any.

        Raises: what ``on_error`` raises.
        """
        settled = self._delivery._settled
        if self._errors.misused(error):
            self._delivery.consumer._hand_back(self._delivery)
            return False
        # A message of a lost session comes again; a closed client can't settle.
        with suppress(StaleDeliveryError, ClosedError):
            self._delivery.__exit__(kind, error, trace)
        if not isinstance(error, Exception):
            return False
        if not self._errors.passed_on(self._delivery, error):
            with suppress(ClosedError):
                self._loop.call_soon(self._errors.warn, place_of(error), settled)
        return True
