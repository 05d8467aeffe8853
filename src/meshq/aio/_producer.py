"""A pipelined producer for asyncio: messages gather in the caller's loop, and the trio loop takes them in batches."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Final, Self

from meshq import client as trio_client
from meshq import limits
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._loop_thread import TaskLoop
from meshq.aio._wakeup import CrossThreadWakeup
from meshq.aio._yielding import YieldCounter
from meshq.errors import ClosedError, MeshqError
from meshq.message import Message, PropertyValue, check_body, check_durable, keywords_of
from meshq.portal import BufferedProducer, OpenProducers

# Looked up in every send: a name of this module is found sooner than one of another.
_RUN_BYTES: Final = limits.RUN_BYTES_TARGET
_PRIORITY: Final = limits.PRIORITY_DEFAULT


class Producer(BufferedProducer):
    """A producer: pipelined sends to one address.  Made by ``client.producer``; used as ``async with``.

    ``send`` returns when the message is taken; confirms are collected in the background.  Leaving the block means
    that every message is confirmed, or raises the error that says what became of them.

    An error is raised by the next ``send`` or ``flush`` after it has become known, once nothing is under way any
    more.  Its ``results`` say what became of each message from the first that failed to the last one taken, in
    order: counted from the end they are the last messages that were given to ``send``.  A ``send`` that raises has
    not taken its own message.
    """

    _loop: TaskLoop

    def __init__(self, client: TaskBlockRunner, opened: OpenProducers, inner: trio_client.Producer) -> None:
        super().__init__(client.loop, inner)
        self._opened = opened
        self._block = TaskBlockRunner(self._loop, inner, self._name, within=client, before_leaving=self._last)
        self._wakeup = CrossThreadWakeup()
        # The error of a call whose caller was cancelled before the error was raised.
        self._unraised: MeshqError | None = None
        self._yields = YieldCounter()

    # -- life

    async def __aenter__(self) -> Self:
        """Open it at the broker.

        Checkpoint: always.  Cancellation: it is closed again.
        Raises:
            UsageError: it was used before; or the address remembers fewer duplicate ids than its window has messages.
            ConnectionBrokenError, CallTimeoutError, ClosedError: it could not be opened.
        """
        try:
            await self._block.enter()
        except BaseException:
            if self._block.was_left:
                self._end()
            raise
        self._loop.at_end(self._end)
        self._opened.add(self)
        self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close it; see ``close``.  The body's own error goes before one about messages.

        Checkpoint: always.
        Cancellation: it is closed all the same; what the trio loop has taken goes on its way, the rest is not sent.
        Raises:
            MeshqError: messages failed that no ``send`` or ``flush`` has reported.
        """
        try:
            return await self._block.leave(error, self._unraised)
        finally:
            self._opened.remove(self)
            self._loop.cancel_at_end(self._end)

    async def close(self) -> None:
        """Send the gathered messages, wait until all of them are confirmed, and close the producer.  Twice is silent.

        Checkpoint: always, the first time.
        Cancellation: it is closed all the same; what the trio loop has taken goes on its way, the rest is not sent.
        Raises:
            MeshqError: messages failed that no ``send`` or ``flush`` has reported.
        """
        if self._block.shut():
            self._end()
        elif self._life.state != "closed":
            self._block.check()
            unraised, self._unraised = self._unraised, None
            try:
                await self._call_reporting(self._close)
            finally:
                if unraised is not None:
                    raise unraised

    # -- sending

    async def send(
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

        Checkpoint: at least every 64th call.
        Cancellation: the message was not taken.
        Raises:
            SettingsError: a part of the message is not allowed; it was not taken.
            MeshqError: earlier messages failed (see ``results``); this one was not taken.
            ClosedError, UsageError: the producer is not open.
        """
        if type(body) is not bytes or len(body) > _RUN_BYTES:
            if isinstance(body, Message):
                extras = (duplicate_id, correlation_id, reply_to, group, content_type)
                keywords = keywords_of(body, properties, durable, priority, ttl, delay, *extras)
                await self.send(body.body, **keywords)
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
        if self._yields.due():
            await self._yields.let_others_run()
        while True:
            with self._lock:
                if self._unconfirmed < self._window and not self._failing:
                    row = None
                    if not plain:
                        row = self._feeder.row(
                            properties,
                            duplicate_id,
                            correlation_id,
                            reply_to,
                            content_type,
                            priority,
                            ttl,
                            delay,
                            group,
                        )
                    if not self._armed:
                        self._arm()
                    self._unconfirmed += 1
                    self._sent += 1
                    self._items.append(body if plain and durable else (body, row, durable))
                    return
            await self._make_room()

    async def _make_room(self) -> None:
        """Wait until a message may be taken, or raise the errors of earlier messages."""
        with self._lock:
            if self._life.state != "open":
                self._block.check()
                raise ClosedError(f"{self._name} is closed")
            self._loop.check_thread()
            failing = self._failing
            if not failing and self._unconfirmed < self._window:
                return
            future = None if failing else self._wakeup.expect()
        if future is None:
            await self._call_reporting(self._report)
        else:
            await self._wakeup.wait(future)

    async def flush(self) -> None:
        """Send the gathered messages, and return when every message taken so far is confirmed.

        Checkpoint: always.
        Cancellation: what was taken goes on its way.
        Raises:
            MeshqError: messages failed; ``results`` says which.
        """
        self._block.check()
        await self._call_reporting(self._feeder.flush)

    async def _call_reporting(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call a function that raises the errors of failed messages, and keep an error that a cancellation hides."""
        if self._unraised is None:
            await self._loop.call(self._keep, function)
        error, self._unraised = self._unraised, None
        if error is not None:
            raise error

    async def _keep(self, function: Callable[[], Awaitable[None]]) -> None:
        try:
            await function()
        except MeshqError as error:
            self._unraised = error

    def _wake_waiters(self) -> None:
        self._wakeup.wake()
