"""A pipelined producer for threads: messages gather in the caller's thread, and the loop takes them in batches."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

from meshq import client as trio_client
from meshq import limits
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._loop_thread import ThreadLoop
from meshq.errors import ClosedError
from meshq.message import Message, PropertyValue, check_body, check_durable, keywords_of
from meshq.portal import BufferedProducer, OpenProducers

# Looked up in every send: a name of this module is found sooner than one of another.
_RUN_BYTES: Final = limits.RUN_BYTES_TARGET
_PRIORITY: Final = limits.PRIORITY_DEFAULT


class Producer(BufferedProducer):
    """A producer: pipelined sends to one address, by any thread.  Made by ``client.producer``; used as ``with``.

    ``send`` returns when the message is taken; confirms are collected in the background.  Leaving the block means
    that every message is confirmed, or raises the error that says what became of them.

    An error is raised by the next ``send`` or ``flush`` after it has become known, once nothing is under way any
    more.  Its ``results`` say what became of each message from the first that failed to the last one taken, in
    order: counted from the end they are the last messages that were given to ``send``.  A ``send`` that raises has
    not taken its own message.
    """

    _loop: ThreadLoop

    def __init__(self, client: ThreadBlockRunner, opened: OpenProducers, inner: trio_client.Producer) -> None:
        super().__init__(client.loop, inner)
        self._opened = opened
        self._block = ThreadBlockRunner(self._loop, inner, self._name, within=client, before_leaving=self._last)
        self._changed = threading.Condition(self._lock)

    # -- life

    def __enter__(self) -> Self:
        """Open it at the broker.

        Interrupted: it is closed again.
        Raises:
            UsageError: it was used before; or the address remembers fewer duplicate ids than its window has messages.
            ConnectionBrokenError, CallTimeoutError, ClosedError: it could not be opened.
        """
        try:
            self._block.enter()
        except BaseException:
            if self._block.was_left:
                self._end()
            raise
        self._loop.at_end(self._end)
        self._opened.add(self)
        self._begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close it; see ``close``.  The body's own error goes before one about messages.

        Interrupted: it is closed all the same; what the trio loop has taken goes on its way, the rest is not sent.
        Raises:
            MeshqError: messages failed that no ``send`` or ``flush`` has reported.
        """
        try:
            return self._block.leave(error)
        finally:
            self._opened.remove(self)
            self._loop.cancel_at_end(self._end)

    def close(self) -> None:
        """Send the gathered messages, wait until all of them are confirmed, and close the producer.  Twice is silent.

        Interrupted: it is closed all the same; what the trio loop has taken goes on its way, the rest is not sent.
        Raises:
            MeshqError: messages failed that no ``send`` or ``flush`` has reported.
        """
        if self._block.shut():
            self._end()
        elif self._life.state != "closed":
            self._block.call(self._close)

    # -- sending

    def send(
        self,
        body: bytes | Message,
        *,
        properties: Mapping[str, PropertyValue] | None = None,
        durable: bool = True,
        priority: int = limits.PRIORITY_DEFAULT,
        ttl: float | None = None,
        delay: float | None = None,
        duplicate_id: str | bytes | None = None,
        correlation_id: str | None = None,
        reply_to: str | None = None,
        group: str | None = None,
        content_type: str | None = None,
    ) -> None:
        """Send a message; the producer sends it together with others, and the confirm comes later.

        ``body``: bytes, or a ``Message``, which says all of it: no keyword goes beside it.

        Waits while ``window`` messages are unconfirmed.

        Interrupted: the message was not taken.
        Raises:
            SettingsError: a part of the message is not allowed; it was not taken.
            MeshqError: earlier messages failed (see ``results``); this one was not taken.
            ClosedError, UsageError: the producer is not open.
        """
        if type(body) is not bytes or len(body) > _RUN_BYTES:
            if isinstance(body, Message):
                extras = (duplicate_id, correlation_id, reply_to, group, content_type)
                keywords = keywords_of(body, properties, durable, priority, ttl, delay, *extras)
                self.send(body.body, **keywords)
                return
            body = check_body(body)
        if durable is not True and durable is not False:
            check_durable(durable)
        plain = (
            properties is None
            and duplicate_id is None
            and correlation_id is None
            and reply_to is None
            and content_type is None
            and ttl is None
            and delay is None
            and group is None
            and priority == _PRIORITY
        )
        if self._loop.forked:
            self._loop.check_thread()
        with self._changed:
            row = None
            if not plain:
                row = self._feeder.row(
                    properties, duplicate_id, correlation_id, reply_to, content_type, priority, ttl, delay, group
                )
            if self._unconfirmed >= self._window or self._failing:
                self._make_room()
            if not self._armed:
                self._arm()
            self._unconfirmed += 1
            self._sent += 1
            self._items.append(body if plain and durable else (body, row, durable))

    def _make_room(self) -> None:
        """With the lock: wait until a message may be taken, or raise the errors of earlier messages."""
        while True:
            if self._life.state != "open":
                self._block.check()
                raise ClosedError(f"{self._name} is closed")
            self._loop.check_thread()
            if self._failing:
                self._changed.release()
                try:
                    self._loop.call(self._report)
                finally:
                    self._changed.acquire()
            elif self._unconfirmed < self._window:
                return
            else:
                self._changed.wait()

    def flush(self) -> None:
        """Send the gathered messages, and return when every message taken so far is confirmed.

        Interrupted: what was taken goes on its way.
        Raises:
            MeshqError: messages failed; ``results`` says which.
        """
        self._block.call(self._feeder.flush)

    def _wake_waiters(self) -> None:
        self._changed.notify_all()
