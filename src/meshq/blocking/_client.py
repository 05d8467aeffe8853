"""The client for threads: the same client, in a trio loop of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from meshq import client as trio_client
from meshq import limits
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._consumer import Consumer
from meshq.blocking._delivery import Delivery
from meshq.blocking._events import EventStream
from meshq.blocking._loop_thread import ThreadLoop
from meshq.blocking._producer import Producer
from meshq.blocking._transaction import Transaction
from meshq.blocking._two_phase import TwoPhaseCalls
from meshq.blocking._worker import Handler, Worker
from meshq.client import (
    AckMode,
    BodySource,
    ClientStatistics,
    ConnectionEvent,
    HandlerErrors,
    ReceivedMessage,
    check_serving,
    watch,
)
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.message import Message, PropertyValue

T = TypeVar("T")


class Client(TwoPhaseCalls):
    """A client: one session at a broker, for any thread.  Made by ``connect``, ``ClientFactory.connect`` or
    ``broker.client``.

    ``with`` connects at its begin and closes at its end.  When the connection is lost, the client comes back by
    itself; when it can't, calls raise ``ConnectionBrokenError``, and so does the block when its body has ended.

    Several threads may use it at once.  An interrupted call (``KeyboardInterrupt``) is cancelled: its documentation
    says what it may have done.
    """

    def __init__(self, inner: trio_client.Client, loop: ThreadLoop | None = None) -> None:
        self._inner = inner
        # A client of a blocking broker lives in that one's loop, any other has a loop of its own.
        self._shared = loop
        self._loop = loop if loop is not None else ThreadLoop("the client", inner._env.clock)
        self._block = ThreadBlockRunner(self._loop, inner, "the client", owner=loop is None)
        # Open producers, whose messages a flush is about.
        self._producers: dict[Producer, None] = {}
        self._workers: dict[Worker, None] = {}
        self._stopped_serving = False

    def __repr__(self) -> str:
        return repr(self._inner)

    def _call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        self._block.check()
        return self._loop.call(function, *arguments, **keywords)

    def statistics(self) -> ClientStatistics:
        """Return the state and counters of the client."""
        return self._loop.run_sync_if_open(self._inner.statistics)

    # -- life

    def __enter__(self) -> Self:
        """Connect.  Interrupted: nothing is left.

        Raises:
            UsageError: it was used before; or a trio task is calling.
            ConnectionBrokenError: no connection could be made with the attempts that the settings allow; or the broker
                whose client it is has stopped.
            ClosedError: it was closed meanwhile, or before.
            SecurityError, RemoteProtocolError: the node and this client don't fit.
        """
        try:
            self._block.enter()
        except ClosedError as error:
            if self._shared is None or self._shared.state != "closed":
                raise
            raise ConnectionBrokenError("the client's broker has stopped", outcome="not_done") from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close; see ``close``.  Interrupted: it is closed all the same."""
        return self._block.leave(error)

    def close(self) -> None:
        """Close the client: queued messages are sent, unsettled deliveries go back, waiting calls raise
        ``ClosedError``.

        Twice is silent.

        Interrupted: it is closed all the same; what was in line may be lost.
        """
        if self._block.shut():
            return
        # A loop that has ended has no client that is open; one that is still being entered is closed, too.
        with suppress(ClosedError):
            self._loop.call(self._inner.close)

    def session(self) -> Client:
        """Create another session, on a connection of its own, with the same settings."""
        return Client(self._inner.session(), self._shared)

    def events(self) -> EventStream[ConnectionEvent]:
        """Return an iterator of the connection's events from now on."""
        stream: EventStream[ConnectionEvent] = EventStream(self._loop)
        self._loop.run_sync_if_open(lambda: watch(self._inner, stream))
        return stream

    # -- sending

    def send(
        self,
        address: str,
        body: BodySource | Message,
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
        """Send one message; on return the broker has stored the message, on disk if durable.

        A duplicate id that the broker knows is success: the message is stored once.

        ``body``: bytes; or a binary file, or an iterable or async iterable of bytes, which are streamed: no more than
        a few chunks are in memory, however large the body is.  Files and plain iterators are read in a worker thread.
        Bytes above ``min_large_message_size`` are streamed, too; whoever receives them sees no difference.
        Or a ``Message``, which says all of it: no keyword goes beside it.

        Interrupted: the message may have been sent or not.  Send again with the same duplicate id.
        Raises:
            SettingsError: a part of the message is not allowed; nothing was sent.
            AddressFullError, UsageError: the broker refused it.
            UnblockedError, CallTimeoutError: unknown, or not done; see ``outcome``.
            ConnectionBrokenError, ClosedError: the client is of no further use; see ``outcome``.
        """
        self._call(
            self._inner.send,
            address,
            body,
            properties=properties,
            durable=durable,
            priority=priority,
            ttl=ttl,
            delay=delay,
            duplicate_id=duplicate_id,
            correlation_id=correlation_id,
            reply_to=reply_to,
            group=group,
            content_type=content_type,
        )

    def send_many(self, address: str, messages: Iterable[bytes | Message], *, durable: bool = True) -> None:
        """Send bodies or ``Message`` objects together; on return the broker has stored all of them.

        ``durable`` is for what is given as a mere body; a ``Message`` says it itself.

        They travel in one frame if they fit (256 messages of one durability), else in several, each stored whole
        or not at all.

        Interrupted: each frame may have been sent or not.
        Raises:
            SettingsError: a message is not allowed; nothing was sent.
            MeshqError: as ``send``; ``results`` lists what became of each message.
        """
        if not isinstance(messages, (bytes, str, Message)):
            # A generator of the caller's runs in the caller's thread.
            messages = list(messages)
        self._call(self._inner.send_many, address, messages, durable=durable)

    def producer(self, address: str, *, window: int = limits.PRODUCER_WINDOW_MESSAGES) -> Producer:
        """Create a pipelined producer to an address, with at most ``window`` unconfirmed messages.

        Raises:
            SettingsError: a setting is not allowed.
        """
        return Producer(self, self._inner.producer(address, window=window), window=window)

    async def _flush(self) -> None:
        for producer in list(self._producers):
            await producer._feed()
        await self._inner.flush()

    def transaction(self, xid: bytes | None = None) -> Transaction:
        """Sends and acknowledgements that count together, or not at all: for a ``with``.

        ``xid``: 1 to 128 bytes by which it is known once it is prepared.

        Raises:
            SettingsError: the xid is none.
        """
        return Transaction(self, self._inner.transaction(xid))

    # -- receiving

    def consumer(
        self,
        queue: str,
        *,
        filter: str | None = None,
        window: int = 1000,
        window_bytes: int = 16 * limits.MIB,
        ack: AckMode = "explicit",
        browse: bool = False,
        priority: int = 0,
        exclusive: bool = False,
    ) -> Consumer:
        """A consumer of a queue: an iterator of ``Delivery``, in a ``with``.

        Raises:
            SettingsError: a setting is not allowed.
            FilterError: the filter is no condition; says where.
        """
        inner = self._inner.consumer(
            queue,
            filter=filter,
            window=window,
            window_bytes=window_bytes,
            ack=ack,
            browse=browse,
            priority=priority,
            exclusive=exclusive,
        )
        return Consumer(self, inner)

    def serve(
        self,
        queue: str,
        handler: Handler,
        *,
        concurrency: int = 1,
        on_error: Callable[[Delivery, Exception], object] | None = None,
        filter: str | None = None,
        window: int | None = None,
        window_bytes: int = 16 * limits.MIB,
        priority: int = 0,
        exclusive: bool = False,
    ) -> None:
        """Run a worker: call ``handler`` with each message of a queue, at most ``concurrency`` at a time.

        A message is settled when its handler ends, unless the handler has settled it: acknowledged; or given back,
        when the handler raises, to be delivered again as the settings of its address say.  The worker goes on after
        an exception: it calls ``on_error(delivery, error)``, and what that raises ends the worker; without
        ``on_error`` it logs a warning with the exception's type and place.  Neither function may be async.

        ``window``: messages that are here at a time; None: twice the concurrency.  ``filter``, ``window_bytes``,
        ``priority`` and ``exclusive``: as for ``consumer``.

        Returns when the client is closed by another thread, or after ``stop_serving``; raises what a consumer raises
        that could not be opened or has failed.

        Handlers run in threads of the worker, which end with it.

        Interrupted: no further message is received; handlers that have begun go on to their end, and their messages
        are settled, before the interrupt goes on.  A second one does not wait for them.
        Raises:
            SettingsError: a setting is not allowed, or a function is async or not where the other is needed.
            FilterError: the filter is no condition; says where.
            NotFoundError: the queue was deleted, or there is none and none is made.
        """
        size = check_serving(handler, concurrency, on_error, window, threads=True)
        with self.consumer(
            queue, filter=filter, window=size, window_bytes=window_bytes, priority=priority, exclusive=exclusive
        ) as consumer:
            worker = Worker(consumer, handler, concurrency, HandlerErrors(queue, on_error))
            self._workers[worker] = None
            if self._stopped_serving:
                worker.stop()
            try:
                worker.run()
            finally:
                del self._workers[worker]

    def stop_serving(self) -> None:
        """End every ``serve`` of this client, and every later one.

        Each returns when the handlers that have begun have ended.

        Returns at once; any thread may call it.
        """
        self._stopped_serving = True
        for worker in list(self._workers):
            worker.stop()

    # -- publish and subscribe, request and reply

    def subscribe(
        self,
        address: str,
        *,
        name: str | None = None,
        durable: bool = False,
        shared: bool = False,
        filter: str | None = None,
        window: int = 1000,
        window_bytes: int = 16 * limits.MIB,
        ack: AckMode = "explicit",
    ) -> Consumer:
        """A consumer of a multicast address, with a queue of its own; used as any other, in a ``with``.

        Without a ``name`` the queue comes and goes with the consumer.  With one it is ``address::name``: a second
        consumer is refused unless both are ``shared``, when they share the messages.  It goes with its last consumer,
        or, if ``durable``, stays and gathers until ``unsubscribe``.

        ``address`` is one address: wildcards (``*`` and ``#``) are refused.

        ``filter``: a condition on properties and headers; the queue takes only messages of which it is true.

        What is sent before the block is entered is not for it, unless the queue was there.  When the session is lost,
        a queue that is not durable is made anew: it gets what is sent from then on.

        Raises:
            SettingsError: a setting is not allowed, or two of them don't go together.
            FilterError: the filter is no condition; says where.
        """
        inner = self._inner.subscribe(
            address,
            name=name,
            durable=durable,
            shared=shared,
            filter=filter,
            window=window,
            window_bytes=window_bytes,
            ack=ack,
        )
        return Consumer(self, inner)

    def request(
        self,
        address: str,
        body: bytes | Message,
        *,
        timeout: float,
        properties: Mapping[str, PropertyValue] | None = None,
        durable: bool = True,
        priority: int = limits.PRIORITY_DEFAULT,
        ttl: float | None = None,
        delay: float | None = None,
        duplicate_id: str | bytes | None = None,
        group: str | None = None,
        content_type: str | None = None,
    ) -> ReceivedMessage:
        """Send one message and return the answer that its receiver sends with ``delivery.reply``.

        Answers come over one temporary queue of this client, made with the first request; any number of threads may
        ask at a time.  An answer that comes when nobody waits for it any more is dropped, and counted in
        ``statistics().late_answers``.

        ``body``: bytes; or a ``Message`` without ``correlation_id`` and ``reply_to``, which are the request's own.

        Interrupted: the message may have been sent or not; its answer is dropped.
        Raises:
            SettingsError: a part of the message is not allowed; nothing was sent.
            CallTimeoutError: no answer came in time; whether the message was received is unknown.
            UnblockedError: the session was lost, and with it the answer; unknown, or not done if nothing was sent.
            AddressFullError, NotFoundError, UsageError: the broker refused the message.
            ConnectionBrokenError, ClosedError: the client is of no further use; see ``outcome``.
        """
        return self._call(
            self._inner.request,
            address,
            body,
            timeout=timeout,
            properties=properties,
            durable=durable,
            priority=priority,
            ttl=ttl,
            delay=delay,
            duplicate_id=duplicate_id,
            group=group,
            content_type=content_type,
        )
