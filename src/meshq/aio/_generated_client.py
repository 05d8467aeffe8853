"""The calls of a client that send and receive.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Client``: change that.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from typing import Any, Final

from meshq import client as trio_client
from meshq import limits
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._body_pieces import with_body
from meshq.aio._consumer import Consumer
from meshq.aio._cursor import Cursor
from meshq.aio._delivery import Delivery, Handler
from meshq.aio._loop_thread import TaskCall, TaskLoop, forwarded
from meshq.aio._producer import Producer
from meshq.client import AckMode, ClientStatistics, CursorStart, TopologyNode
from meshq.message import Message
from meshq.portal import OpenProducers, in_full


class ClientCalls(ABC):
    """The calls of a client that send and receive."""

    _inner: trio_client.Client
    _call: TaskCall
    _block: TaskBlockRunner
    _loop: TaskLoop
    _producers: OpenProducers

    @abstractmethod
    async def _flush(self) -> None:
        """Flush as the trio client does, including messages gathered outside the loop."""

    @abstractmethod
    async def _serve(
        self, queue: str, handler: Handler, *, concurrency: int, on_error: Any, window: int | None, **consumer: Any
    ) -> None:
        """Run a worker; as ``serve``."""

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

        ``filter``: a condition on properties and headers; messages of which it is not true stay for others.
        ``priority``: from -128 to 127; who has a higher one is served first, until its window is full.
        ``exclusive``: while this consumer is there, the queue's others get nothing; of several exclusive ones the
        first of the highest priority is served, and the next when that one is gone.
        ``browse``: look only.  All that is in the queue now, handed out or not, comes in the order of delivery, and
        then the iteration ends; nothing is taken, counted or to be settled.

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

    def cursor(
        self,
        queue: str,
        name: str,
        *,
        start: CursorStart = "earliest",
        lease: float = 10.0,
        max_lag: float | None = None,
        window: int = 1000,
    ) -> Cursor:
        """Create a cursor, a durable and replayable reader of a queue, to be used as ``async with``.

        While a queue has a cursor no consumer takes from it, and nothing is purged or moved out of it: its messages
        stay until the cursor acknowledges them.

        ``start``: where it begins if it is registered now: with what waits, or with what comes from now on; what waits
        stays in the queue then.  The other settings are those of its last owner.

        ``lease``: seconds for which it is this owner's unless that is renewed, which the client does.  ``max_lag``:
        with more messages before it, and no owner, the cursor is given up; None: as ``cursor_max_lag`` of the address
        settings says; ``math.inf``: never.  ``window``: messages that are here and not received.

        Raises:
            SettingsError: a setting is not allowed.
        """
        inner = self._inner.cursor(queue, name, start=start, lease=lease, max_lag=max_lag, window=window)
        return Cursor(self, inner)

    cursors: Final = forwarded(trio_client.Client.cursors)
    delete_cursor: Final = forwarded(trio_client.Client.delete_cursor)

    async def flush(self) -> None:
        """Return when everything that this session has sent and acknowledged is stored.

        What a producer still gathers goes out first, and its confirms are waited for.

        Checkpoint: always.  Cancellation: it goes on its way.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: unknown.
        """
        await self._call(self._flush)

    def producer(self, address: str, *, window: int = limits.PRODUCER_WINDOW_MESSAGES) -> Producer:
        """Create a pipelined producer to an address, with at most ``window`` unconfirmed messages.

        Raises:
            SettingsError: a setting is not allowed.
        """
        inner = self._inner.producer(address, window=window)
        return Producer(self._block, self._producers, inner)

    request: Final = with_body(trio_client.Client.request)
    send: Final = with_body(trio_client.Client.send)

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
        await self._call(self._inner.send_many, address, in_full(messages), durable=durable)

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

        A message is settled when its handler ends, unless the handler has settled it: acknowledged; or given back, when
        the handler raises, to be delivered again as the settings of its address say.  The worker goes on after an
        exception: it calls ``on_error(delivery, error)``, and what that raises ends the worker; without ``on_error`` it
        logs a warning with the exception's type and place.  A handler that is not async ends the worker.  A
        ``CancelledError`` of a handler's own is an exception, too, and told as a ``RuntimeError``.

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
        await self._serve(
            queue,
            handler,
            concurrency=concurrency,
            on_error=on_error,
            filter=filter,
            window=window,
            window_bytes=window_bytes,
            priority=priority,
            exclusive=exclusive,
        )

    def statistics(self) -> ClientStatistics:
        """Return the state and counters of the client."""
        return self._loop.run_sync_if_open(self._inner.statistics)

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

    def topology(self) -> tuple[TopologyNode, ...]:
        """Return the nodes of the broker's cluster as the client was told last, in the order of their names.

        The broker that the client is connected to is at distance 0; without a cluster it is the only one.  Empty as
        long as no broker has told anything, which one of an older version does not.
        """
        return self._loop.run_sync_if_open(self._inner.topology)
