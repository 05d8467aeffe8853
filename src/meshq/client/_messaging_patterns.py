"""Messaging patterns of a client: publish and subscribe, request and reply, workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import attrs
import trio

from meshq import limits
from meshq.address import check_name, check_place
from meshq.client.receive._consumer import AckMode, Consumer, Subscription, check_consumer
from meshq.client.receive._delivery import Delivery, ReceivedMessage
from meshq.client.receive._handlers import HandlerErrors, check_serving
from meshq.client.receive._reply_queue import ReplyQueue
from meshq.client.receive._worker import Handler, Worker
from meshq.client.transactions._two_phase import TwoPhaseCalls
from meshq.errors import CallTimeoutError, SettingsError
from meshq.message import Message, PropertyValue

if TYPE_CHECKING:
    from meshq.client._client import Client


class MessagingPatterns(TwoPhaseCalls):
    """The calls of a client that create queues of their own."""

    _replies: ReplyQueue
    # The workers of ``serve``, while they run.
    _workers: dict[Worker, None]
    _stopped_serving: bool

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
        client: Client = self  # type: ignore[assignment]
        return Consumer(
            client,
            address,
            window=window,
            window_bytes=window_bytes,
            auto=ack == "auto",
            filter=text,
            subscription=subscription,
        )

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
        client: Client = self  # type: ignore[assignment]
        async with client.consumer(
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

    async def request(
        self,
        address: str,
        body: bytes | Message,
        *,
        timeout: float,  # noqa: ASYNC109
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

        Answers come over one temporary queue of this client, made with the first request; any number of tasks may ask
        at a time.  An answer that comes when nobody waits for it any more is dropped, and counted in
        ``statistics().late_answers``.

        ``body``: bytes; or a ``Message`` without ``correlation_id`` and ``reply_to``, which are the request's own.

        Checkpoint: always.
        Cancellation: the message may have been sent or not; its answer is dropped.
        Raises:
            SettingsError: a part of the message is not allowed; nothing was sent.
            CallTimeoutError: no answer came in time; whether the message was received is unknown.
            UnblockedError: the session was lost, and with it the answer; unknown, or not done if nothing was sent.
            AddressFullError, NotFoundError, UsageError: the broker refused the message.
            ConnectionBrokenError, ClosedError: the client is of no further use; see ``outcome``.
        """
        if type(timeout) not in (int, float) or not timeout > 0 or math.isnan(timeout):
            raise SettingsError("timeout", timeout, "seconds above 0")
        if isinstance(body, Message):
            check_request(body)
        self._check()
        client: Client = self  # type: ignore[assignment]
        replies = self._replies
        sent = False
        with trio.move_on_after(timeout):
            reply_to = await replies.address()
            correlation_id, answer = replies.expect()
            sent = True
            # What a message says, nothing beside it may say, so that a copy of it says these two.
            routing: dict[str, Any] = {"correlation_id": correlation_id, "reply_to": reply_to}
            if isinstance(body, Message):
                body, routing = attrs.evolve(body, **routing), {}
            try:
                await client.send(
                    address,
                    body,
                    properties=properties,
                    durable=durable,
                    priority=priority,
                    ttl=ttl,
                    delay=delay,
                    duplicate_id=duplicate_id,
                    group=group,
                    content_type=content_type,
                    **routing,
                )
                received: ReceivedMessage = await answer.wait()
                return received
            finally:
                replies.forget(correlation_id)
        raise CallTimeoutError(
            f"the request to {address!r} was not answered in {timeout} s", outcome="unknown" if sent else "not_done"
        ) from client._session.link_failures.late(timeout, attached=client._session.link is not None)


def check_request(message: Message) -> None:
    """Check that a message leaves its reply address and correlation id to the request.

    Raises:
        SettingsError: it says where answers go, or which answer is its own.
    """
    for name in ("correlation_id", "reply_to"):
        value = getattr(message, name)
        if value is not None:
            raise SettingsError(name, value, "left out of the Message of a request, which sets it itself")


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
