"""The receiving calls of a client: consumers, subscriptions, workers."""

from __future__ import annotations

from collections.abc import Callable

import attrs

from meshq import limits
from meshq.address import check_name, check_place, parse_target
from meshq.client.receive._consumer import AckMode, Consumer, Subscription, check_consumer
from meshq.client.receive._cursor import Cursor
from meshq.client.receive._cursor_records import CursorStart, CursorStatistics, check_cursor
from meshq.client.receive._delivery import Delivery
from meshq.client.receive._handlers import HandlerErrors, check_serving
from meshq.client.receive._lease_keeper import LeaseKeeper
from meshq.client.receive._worker import Handler, RunningWorkers, Worker
from meshq.client.session._client_context import ClientContext
from meshq.errors import SettingsError


class ReceivingCalls:
    """The calls of a client that receive messages."""

    _context: ClientContext
    _workers: RunningWorkers
    _leases: LeaseKeeper

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
        text = check_consumer(
            queue,
            window,
            window_bytes,
            ack,
            filter=filter,
            priority=priority,
            exclusive=exclusive,
            browse=browse,
        )
        return Consumer(
            self._context,
            queue,
            window=window,
            window_bytes=window_bytes,
            auto=ack == "auto",
            filter=text,
            priority=priority,
            exclusive=exclusive,
            browse=browse,
        )

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
        subscription = check_subscription(address, name, durable=durable, shared=shared)
        text = check_consumer(address, window, window_bytes, ack, filter=filter)
        return Consumer(
            self._context,
            address,
            window=window,
            window_bytes=window_bytes,
            auto=ack == "auto",
            filter=text,
            subscription=subscription,
        )

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
        settings = check_cursor(queue, name, start, lease=lease, max_lag=max_lag, window=window)
        return Cursor(self._context, self._leases, queue, name, settings)

    async def cursors(self, queue: str | None = None) -> list[CursorStatistics]:
        """Return the statistics of the cursors of a queue, or of all queues.

        These are the cursors that the user has registered, and those at addresses that the user may manage.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            NotFoundError: there is no such queue.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        names = tuple(field.name for field in attrs.fields(CursorStatistics))
        if queue is not None:
            parse_target(queue, "queue")
        rows = (await self._context.pages("cursors", names, queue=queue or ""))[1]
        return [CursorStatistics(**row) for row in rows]

    async def delete_cursor(self, queue: str, name: str) -> None:
        """Delete a cursor; the messages that it has not acknowledged are for consumers again.

        That of another user takes the permission to manage.

        Checkpoint: always.  Cancellation: it may exist afterwards or not.
        Raises:
            NotFoundError: there is no such queue, or no such cursor of it.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        parse_target(queue, "queue")
        await self._context.ask("delete_cursor", queue=queue, name=check_name("name", name))

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
        worker.

        ``window``: messages that are here at a time; None: twice the concurrency.  ``filter``, ``window_bytes``,
        ``priority`` and ``exclusive``: as for ``consumer``.

        Returns when the client is closed by another task, or after ``stop_serving``; raises what a consumer raises that
        could not be opened or has failed.

        Checkpoint: always.
        Cancellation: no further message is received; handlers that have begun go on to their end, and their messages
        are settled, before the cancellation goes on.
        Raises:
            SettingsError: a setting is not allowed, or a function is async or not where the other is needed.
            FilterError: the filter is no condition; says where.
            NotFoundError: the queue was deleted, or there is none and none is made.
        """
        size = check_serving(handler, concurrency, on_error, window)
        async with self.consumer(
            queue, filter=filter, window=size, window_bytes=window_bytes, priority=priority, exclusive=exclusive
        ) as consumer:
            await self._workers.run(Worker(consumer, handler, concurrency, HandlerErrors(queue, on_error)))

    def stop_serving(self) -> None:
        """End every ``serve`` of this client, and every later one.

        Each returns when the handlers that have begun have ended.

        Returns at once.
        """
        self._workers.stop()


def check_subscription(address: object, name: object, *, durable: object, shared: object) -> Subscription:
    """Check the arguments of ``subscribe``.

    Raises:
        SettingsError: it is not allowed, or contradicts itself.
    """
    check_place("address", address)
    for setting, value in (("durable", durable), ("shared", shared)):
        if type(value) is not bool:
            raise SettingsError(setting, value, "True or False")
        if value and name is None:
            raise SettingsError(setting, value, "False for a subscription without a name")
    if name is None:
        return Subscription("own", "", False)
    return Subscription("shared" if shared else "single", check_name("name", name), bool(durable))
