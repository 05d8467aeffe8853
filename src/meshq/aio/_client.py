"""The client for asyncio: the same client, in a trio loop of its own."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Final, Self, TypeVar

from meshq import client as trio_client
from meshq import limits
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._body_pieces import with_body
from meshq.aio._consumer import Consumer
from meshq.aio._delivery import Delivery
from meshq.aio._events import EventStream
from meshq.aio._loop_thread import TaskLoop, forwarded
from meshq.aio._producer import Producer
from meshq.aio._transaction import Transaction
from meshq.aio._worker import Handler, Worker
from meshq.client import AckMode, ClientStatistics, ConnectionEvent, HandlerErrors, check_serving, watch
from meshq.errors import ClosedError, ConnectionBrokenError
from meshq.message import Message

T = TypeVar("T")


class Client:
    """A client: one session at a broker, for tasks of asyncio.  Made by ``connect``, ``ClientFactory.connect`` or
    ``broker.client``.

    ``async with`` connects at its begin and closes at its end.  When the connection is lost, the client comes back
    by itself; when it can't, the body is cancelled and the block raises ``ConnectionBrokenError``.

    A cancelled call is cancelled where it runs, and the cancellation goes on when it has ended there: its
    documentation says what it may have done.  What is documented as a checkpoint lets other tasks run.
    """

    def __init__(self, inner: trio_client.Client, loop: TaskLoop | None = None) -> None:
        self._inner = inner
        # A client of a broker for asyncio lives in that one's loop, any other has a loop of its own.
        self._shared = loop
        self._loop = loop if loop is not None else TaskLoop("the client", inner._env.clock)
        self._block = TaskBlockRunner(self._loop, inner, "the client", owner=loop is None)
        # Open producers, whose messages a flush is about.
        self._producers: dict[Producer, None] = {}
        self._workers: dict[Worker, None] = {}
        self._stopped_serving = False

    def __repr__(self) -> str:
        return repr(self._inner)

    async def _call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        self._block.check()
        return await self._loop.call(function, *arguments, **keywords)

    def statistics(self) -> ClientStatistics:
        """Return the state and counters of the client."""
        return self._loop.run_sync_if_open(self._inner.statistics)

    # -- life

    async def __aenter__(self) -> Self:
        """Connect.

        Checkpoint: always.  Cancellation: nothing is left.
        Raises:
            UsageError: it was used before; or a trio task is calling.
            ConnectionBrokenError: no connection could be made with the attempts that the settings allow; or the broker
                whose client it is has stopped.
            ClosedError: it was closed meanwhile, or before.
            SecurityError, RemoteProtocolError: the node and this client don't fit.
        """
        try:
            await self._block.enter()
        except ClosedError as error:
            if self._shared is None or self._shared.state != "closed":
                raise
            raise ConnectionBrokenError("the client's broker has stopped", outcome="not_done") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close; see ``close``.

        Checkpoint: always.  Cancellation: it is closed all the same.
        """
        return await self._block.leave(error)

    async def close(self) -> None:
        """Close the client: queued messages are sent, unsettled deliveries go back, waiting calls raise
        ``ClosedError``.

        Twice is silent.

        Checkpoint: always.  Cancellation: it is closed all the same; what was in line may be lost.
        """
        if self._block.shut():
            return
        # A loop that has ended has no client that is open; one that is still being entered is closed, too.
        with suppress(ClosedError):
            await self._loop.call(self._inner.close)

    def transaction(self, xid: bytes | None = None) -> Transaction:
        """Create a transaction, to be used as ``async with``: sends and acknowledgements are applied together or not at
        all.

        ``xid``: 1 to 128 bytes by which it is known once it is prepared.

        Raises:
            SettingsError: the xid is none.
        """
        return Transaction(self, self._inner.transaction(xid))

    def session(self) -> Client:
        """Create another session, on a connection of its own, with the same settings."""
        return Client(self._inner.session(), self._shared)

    def events(self) -> EventStream[ConnectionEvent]:
        """Return an async iterator of the connection's events from now on."""
        stream: EventStream[ConnectionEvent] = EventStream(self._loop)
        self._loop.run_sync_if_open(lambda: watch(self._inner, stream))
        return stream

    # -- calls that are the trio client's own

    send: Final = with_body(trio_client.Client.send)
    request: Final = with_body(trio_client.Client.request)
    create_address: Final = forwarded(trio_client.Client.create_address)
    create_queue: Final = forwarded(trio_client.Client.create_queue)
    create_temporary_queue: Final = forwarded(trio_client.Client.create_temporary_queue)
    unsubscribe: Final = forwarded(trio_client.Client.unsubscribe)
    delete_queue: Final = forwarded(trio_client.Client.delete_queue)
    purge_queue: Final = forwarded(trio_client.Client.purge_queue)
    set_address_settings: Final = forwarded(trio_client.Client.set_address_settings)
    remove_address_settings: Final = forwarded(trio_client.Client.remove_address_settings)
    address_settings: Final = forwarded(trio_client.Client.address_settings)
    move_messages: Final = forwarded(trio_client.Client.move_messages)
    redrive: Final = forwarded(trio_client.Client.redrive)
    give_back: Final = forwarded(trio_client.Client.give_back)
    pause_queue: Final = forwarded(trio_client.Client.pause_queue)
    resume_queue: Final = forwarded(trio_client.Client.resume_queue)
    queue: Final = forwarded(trio_client.Client.queue)
    queues: Final = forwarded(trio_client.Client.queues)
    create_divert: Final = forwarded(trio_client.Client.create_divert)
    delete_divert: Final = forwarded(trio_client.Client.delete_divert)
    bridges: Final = forwarded(trio_client.Client.bridges)
    pause_bridge: Final = forwarded(trio_client.Client.pause_bridge)
    resume_bridge: Final = forwarded(trio_client.Client.resume_bridge)
    broker: Final = forwarded(trio_client.Client.broker)
    diverts: Final = forwarded(trio_client.Client.diverts)
    explain_route: Final = forwarded(trio_client.Client.explain_route)
    trace: Final = forwarded(trio_client.Client.trace)
    commit: Final = forwarded(trio_client.Client.commit)
    rollback: Final = forwarded(trio_client.Client.rollback)
    recover: Final = forwarded(trio_client.Client.recover)
    prepared: Final = forwarded(trio_client.Client.prepared)

    # -- sending

    async def send_many(self, address: str, messages: Iterable[bytes | Message], *, durable: bool = True) -> None:
        """Send bodies or ``Message`` objects together; on return the broker has stored all of them.

        ``durable`` is for what is given as a mere body; a ``Message`` says it itself.

        They travel in one frame if they fit (256 messages of one durability), else in several, each stored whole
        or not at all.

        Checkpoint: always.
        Cancellation: each frame may have been sent or not.
        Raises:
            SettingsError: a message is not allowed; nothing was sent.
            MeshqError: as ``send``; ``results`` lists what became of each message.
        """
        if not isinstance(messages, (bytes, str, Message)):
            # A generator of the caller's runs in the caller's thread.
            messages = list(messages)
        await self._call(self._inner.send_many, address, messages, durable=durable)

    def producer(self, address: str, *, window: int = limits.PRODUCER_WINDOW_MESSAGES) -> Producer:
        """Create a pipelined producer to an address, with at most ``window`` unconfirmed messages.

        Raises:
            SettingsError: a setting is not allowed.
        """
        return Producer(self, self._inner.producer(address, window=window), window=window)

    async def flush(self) -> None:
        """Return when everything that this session has sent and acknowledged is stored.

        What a producer still gathers goes out first, and its confirms are waited for.

        Checkpoint: always.  Cancellation: it goes on its way.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: unknown.
        """
        await self._call(self._flush)

    async def _flush(self) -> None:
        for producer in list(self._producers):
            await producer._feed()
        await self._inner.flush()

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
        """Create a consumer of a queue, an async iterator of ``Delivery``, to be used as ``async with``.

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
        """Create a consumer of a multicast address with a queue of its own, to be used as ``async with``.

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

    async def serve(
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
        ``on_error`` it logs a warning with the exception's type and place.  A handler that is not async ends the
        worker.  A ``CancelledError`` of a handler's own is an exception, too, and told as a ``RuntimeError``.

        ``window``: messages that are here at a time; None: twice the concurrency.  ``filter``, ``window_bytes``,
        ``priority`` and ``exclusive``: as for ``consumer``.

        Returns when the client is closed by another task, or after ``stop_serving``; raises what a consumer raises that
        could not be opened or has failed.

        Checkpoint: always.
        Cancellation: no further message is received; handlers that have begun go on to their end, and their messages
        are settled, before the cancellation goes on.  A second one cancels the handlers.
        Raises:
            SettingsError: a setting is not allowed, or a function is async or not where the other is needed.
            FilterError: the filter is no condition; says where.
            NotFoundError: the queue was deleted, or there is none and none is made.
        """
        size = check_serving(handler, concurrency, on_error, window)
        async with self.consumer(
            queue, filter=filter, window=size, window_bytes=window_bytes, priority=priority, exclusive=exclusive
        ) as consumer:
            worker = Worker(consumer, handler, concurrency, HandlerErrors(queue, on_error))
            self._workers[worker] = None
            if self._stopped_serving:
                worker.stop()
            try:
                await worker.run()
            finally:
                del self._workers[worker]

    def stop_serving(self) -> None:
        """End every ``serve`` of this client, and every later one.

        Each returns when the handlers that have begun have ended.

        Returns at once.
        """
        self._stopped_serving = True
        for worker in list(self._workers):
            worker.stop()
