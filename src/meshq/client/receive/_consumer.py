"""The consumer: an async iterator over the deliveries of a queue, with the calls that settle them."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType
from typing import Final, Literal, NamedTuple, Protocol, Self, get_args

import attrs
import trio

from meshq import limits
from meshq.address import SEPARATOR, parse_target
from meshq.client.calls._calls import OpenCompletion
from meshq.client.incoming._inbox import ConsumeRequest, Inbox, returning
from meshq.client.receive._delivery import Delivery
from meshq.client.session._client_context import ClientContext
from meshq.concurrency import Block, Wakeup, copied_error
from meshq.errors import (
    BrokenError,
    BusyError,
    ClosedError,
    MeshqError,
    SettingsError,
    StaleDeliveryError,
    UsageError,
    invariant,
)
from meshq.loops import check_in_trio
from meshq.selector import parse_filter
from meshq.wire import FLAG_REJECT, Consume

#: How messages are acknowledged: by the program, or by the client at hand-over.
AckMode = Literal["explicit", "auto"]
ACKS: Final = get_args(AckMode)


@attrs.frozen(kw_only=True)
class ConsumerStatistics:
    """The state and counters of a consumer at one moment."""

    queue: str
    state: str
    #: Messages that wait here to be received.
    ready: int
    #: Messages received since the consumer was opened.
    received: int


class Subscription(NamedTuple):
    """The subscription of a consumer of a multicast address: the properties of its queue."""

    subscription: str
    name: str
    durable: bool


class Numbers(NamedTuple):
    """The sequences that a consumer browses: from ``lo`` up to, and without, ``hi``, which is 0 for no end.

    ``cursor``, ``fence``: for the owner of this cursor.
    """

    lo: int
    hi: int
    cursor: str
    fence: int


def check_consumer(
    queue: object,
    window: object,
    window_bytes: object,
    ack: object,
    *,
    filter: object,
    priority: object = 0,
    exclusive: object = False,
    browse: object = False,
) -> str:
    """Check the arguments of a consumer; return the text of its filter, empty for none.

    Raises:
        SettingsError: one of it is not allowed.
        FilterError: the filter is no condition.
    """
    # A queue of such a name may be there, of an earlier version: the node refuses to make one.
    parse_target(queue, "queue")  # type: ignore[arg-type]
    for name, value in (("window", window), ("window_bytes", window_bytes)):
        if type(value) is not int or not 1 <= value < 2**31:
            raise SettingsError(name, value, "a whole number from 1 to 2147483647")
    if ack not in ACKS:
        raise SettingsError("ack", ack, " or ".join(map(repr, ACKS)))
    half = limits.CONSUMER_PRIORITIES // 2
    if type(priority) is not int or not -half <= priority < half:
        raise SettingsError("priority", priority, f"a whole number from {-half} to {half - 1}")
    if type(exclusive) is not bool:
        raise SettingsError("exclusive", exclusive, "True or False")
    if type(browse) is not bool:
        raise SettingsError("browse", browse, "True or False")
    if browse and (priority or exclusive):
        raise SettingsError("browse", browse, "False where there is a priority, or exclusive=True")
    return "" if filter is None else parse_filter(filter).text


class Receiver(Protocol):
    """The receiver of a consumer's messages, which is woken when there is something to receive."""

    @property
    def has_waiter(self) -> bool:
        """Whether the receiver wants to be woken."""

    def wake(self) -> None:
        """Wake the receiver: messages have arrived, or the consumer has failed."""


class Consumer:
    """A consumer: receives deliveries from one queue.  Made by ``client.consumer``; used as ``async with``, by one task
    at a time.

    ``window`` and ``window_bytes`` bound what is here, handed over or not, and not settled.  *Delivered* means
    handed to the application: what is only waiting here goes back uncounted when the consumer is closed.
    """

    def __init__(
        self,
        context: ClientContext,
        queue: str,
        *,
        window: int,
        window_bytes: int,
        auto: bool,
        filter: str = "",
        subscription: Subscription | None = None,
        priority: int = 0,
        exclusive: bool = False,
        browse: bool = False,
        numbers: Numbers | None = None,
        routes: tuple[str, ...] = (),
        hops: int = 0,
        replay: str = "",
    ) -> None:
        #: The queue, as it was asked for.
        self.queue: str = queue
        self._context = context
        # Browsed messages are acknowledged at hand-over, which frees the window.
        auto = auto or browse
        about = {} if subscription is None else subscription._asdict()
        if numbers is not None:
            about = numbers._asdict()
        header = Consume(
            queue=queue,
            window=window,
            window_bytes=window_bytes,
            filter=filter,
            rank=limits.CONSUMER_PRIORITIES // 2 + priority,
            exclusive=exclusive,
            browse=browse,
            routes=routes,
            hops=hops,
            replay=replay,
            **about,
        )
        #: The ways on which messages of a network consumer go; empty: it is another one.
        self.routes: tuple[str, ...] = routes
        if subscription is not None and subscription.name:
            self.queue = queue = f"{queue}{SEPARATOR}{subscription.name}"
        self._session = session = context.session
        self._inbox = Inbox(
            self,
            Delivery,
            ConsumeRequest(header.encode(), browse=browse),
            session.stream,
            session.body_reads,
            auto=auto,
        )
        self._block = Block(f"the consumer of {queue!r}")
        self._wakeup = Wakeup()
        # Woken when messages have arrived: the task that receives, or another thread that borrows the messages.
        self._receiver: Receiver = self._wakeup
        self._opened = OpenCompletion(f"opening a consumer of {queue!r}")
        # Calls since the last one that passed through the scheduler.
        self._calls = 0
        self._busy = False
        self._received = 0

    def __repr__(self) -> str:
        return f"<Consumer {self.queue!r} {self._state} ready={self._inbox.waiting}>"

    @property
    def _state(self) -> str:
        if self._inbox.failed is not None:
            return "closed" if isinstance(self._inbox.failed, ClosedError) else "failed"
        return "open" if self._block.open else "closed"

    def statistics(self) -> ConsumerStatistics:
        """Return the state of the consumer and its message counts."""
        return ConsumerStatistics(
            queue=self.queue, state=self._state, ready=self._inbox.waiting, received=self._received
        )

    # -- life

    async def __aenter__(self) -> Self:
        """Open it at the broker.

        Checkpoint: always.  Cancellation: it is closed again.
        Raises:
            UsageError: it was used before, or the address of the queue is of the other routing type.
            NotFoundError: there is no such queue, and none is made.
            RefusedError: somebody else has the queue for himself.
            FilterError: the broker takes the filter for none.
            ConnectionBrokenError, CallTimeoutError, ClosedError: it could not be opened.
        """
        await self._begin()
        self._block.enter()
        return self

    async def _begin(self) -> None:
        """Open the consumer at the broker, for the block of another object.

        Checkpoint: always.  Cancellation: it is closed again.
        Raises:
            MeshqError: as ``__aenter__``.
        """
        check_in_trio("connect")
        self._block.check_unused()
        self._context.check()
        self._block.claim()
        self._opened.since = trio.current_time()
        self._session.consumers.open(self._inbox)
        self._session.stream.flush()
        try:
            await self._session.deadlines.wait(self._opened)
        except BaseException:
            self._block.abandon()
            self._session.consumers.close(self._inbox)
            self._session.stream.wake()
            raise

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Close it; see ``close``.

        Checkpoint: when the broker has to be told.  Cancellation: it is closed all the same.
        """
        left = self._block.leave(error)
        await self._block.close_after(left, self.close)
        return self._block.conclude(error, left)

    async def close(self) -> None:
        """Close the consumer: received messages that are not settled go back marked as redelivered, prefetched ones
        unmarked.  Twice is silent.

        Checkpoint: when the broker has to be told.
        Cancellation: it is closed all the same; when messages are back is not waited for.
        """
        check_in_trio("connect")
        self._block.close()
        call = self._session.consumers.close(self._inbox)
        if self._inbox.failed is None:
            closed = ClosedError(f"the consumer of {self.queue!r} is closed")
            self._inbox.failed = closed
            # Another task may wait for the opening, of which the broker says nothing more in a new session.
            self._opened.fail(copied_error(closed))
            self._wakeup.fail(copied_error(closed))
        if call is None:
            return
        self._session.stream.flush()
        # Whatever cuts the call off has also ended the consumer at the broker.
        with suppress(BrokenError, ClosedError, StaleDeliveryError):
            await self._session.deadlines.wait(call)

    @property
    def settles_itself(self) -> bool:
        """Whether the consumer acknowledges messages at hand-over, or only browses."""
        return self._inbox.auto

    def opened(self) -> None:
        """Note that the broker has opened the consumer."""
        self._opened.succeed()

    def failed(self, error: MeshqError) -> None:
        """Fail the consumer for good."""
        self._opened.fail(copied_error(error))
        if not isinstance(error, ClosedError):
            self._block.fail(error)
        self._wakeup.fail(copied_error(error))
        self.changed()

    def changed(self) -> None:
        """Tell the receiver that messages have arrived or the consumer has failed."""
        if self._receiver.has_waiter:
            self._receiver.wake()

    def _lend(self, receiver: Receiver) -> Inbox[Delivery]:
        """Lend the inbox to a receiver in another thread."""
        invariant(self._receiver is self._wakeup, "one thread borrows the messages of a consumer")
        self._receiver = receiver
        return self._inbox

    # -- receiving

    async def receive(self, timeout: float | None = None) -> Delivery | None:  # noqa: ASYNC109
        """Receive the next message; None at the timeout, or at the end of a browse.

        Checkpoint: when nothing is waiting here, else at least every 64th call.
        Cancellation: no message is lost.
        Raises:
            BusyError: another task is receiving.
            ClosedError, NotFoundError, ConnectionBrokenError: the consumer is gone, and why.
        """
        inbox = self._inbox
        look = inbox.empty or self._calls >= limits.CHECKPOINT_MESSAGES or self._busy
        if look and not await self._arrival(timeout):
            return None
        self._calls += 1
        self._received += 1
        delivery = inbox.take()
        if inbox.auto:
            self._session.stream.gathered(inbox)
        return delivery

    async def receive_many(self, n: int, timeout: float | None = None) -> list[Delivery]:  # noqa: ASYNC109
        """Receive up to ``n`` messages, as soon as one is here; ``[]`` at the timeout, or at the end of a browse.

        Checkpoint: when nothing is waiting here, else at least once for every 64 messages handed over.
        Cancellation: no message is lost.
        Raises:
            SettingsError: ``n`` is not a whole number above 0.
            BusyError: another task is receiving.
            ClosedError, NotFoundError, ConnectionBrokenError: the consumer is gone, and why.
        """
        if type(n) is not int or n < 1:
            raise SettingsError("n", n, "a whole number from 1")
        inbox = self._inbox
        look = inbox.empty or self._calls >= limits.CHECKPOINT_MESSAGES or self._busy
        if look and not await self._arrival(timeout):
            return []
        taken = inbox.take_many(n)
        self._calls += len(taken)
        self._received += len(taken)
        if inbox.auto and taken:
            self._session.stream.gathered(inbox)
        return taken

    async def _arrival(self, timeout: float | None) -> bool:  # noqa: ASYNC109
        """Wait until something is here; False when the time is up."""
        if timeout is not None and (type(timeout) not in (int, float) or not timeout >= 0):
            raise SettingsError("timeout", timeout, "seconds from 0, or None")
        if self._busy:
            raise BusyError(f"two tasks receive from {self._block.name}")
        inbox = self._inbox
        if not self._inbox.channel:
            check_in_trio("connect")
        self._busy = True
        self._calls = 0
        try:
            if not inbox.empty or timeout == 0 or inbox.ended:
                await trio.lowlevel.checkpoint()
            if inbox.empty and timeout != 0:
                if timeout is None:
                    while inbox.empty and not inbox.ended:
                        self._check()
                        await self._wakeup.wait()
                        self._wakeup.clear()
                else:
                    await self._arrival_until(trio.current_time() + timeout)
            if inbox.empty:
                self._check()
            return not inbox.empty
        finally:
            self._busy = False

    async def _arrival_until(self, deadline: float) -> None:
        """Wait until something is here or the time is up; one timer of the client watches for all of them."""
        inbox, wakeup = self._inbox, self._wakeup
        deadlines = self._session.deadlines
        deadlines.wakeups[wakeup] = deadline
        deadlines.look_at(deadline)
        try:
            while inbox.empty and not inbox.ended:
                self._check()
                await wakeup.wait()
                wakeup.clear()
                if inbox.empty and trio.current_time() >= deadline:
                    return
        finally:
            del deadlines.wakeups[wakeup]

    def _check(self) -> None:
        if self._inbox.failed is not None:
            raise copied_error(self._inbox.failed)
        if not self._block.open:
            check_in_trio("connect")
            raise UsageError(f"{self._block.name} is not open: use it in 'async with'")

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Delivery:
        """The next message; the iteration ends when the consumer is closed, or a browse at its end.

        Checkpoint: when nothing is waiting here, else at least every 64th call.  Cancellation: no message is lost.
        Raises:
            StopAsyncIteration: the consumer was closed, or has shown everything.
        """
        try:
            delivery = await self.receive()
        except ClosedError:
            raise StopAsyncIteration from None
        if delivery is None:
            # It was a browse.
            raise StopAsyncIteration
        return delivery

    # -- settling

    async def ack(self, *deliveries: Delivery, confirm: bool = False) -> None:
        """Acknowledge messages: the broker removes them from the queue.

        Returns when it is in the session's ordered stream; with ``confirm`` when it is stored.

        Checkpoint: with ``confirm`` always, else at least every 64th call.
        Cancellation: without ``confirm`` it is in line or not touched; with it, unknown.
        Raises:
            UsageError: a delivery was settled before, or is another consumer's, or was only looked at; nothing changed.
            StaleDeliveryError: deliveries belong to a session or consumer that is gone and come again; the others
                are acknowledged; ``results`` says which is which.
            UnblockedError, CallTimeoutError, ConnectionBrokenError, ClosedError: with ``confirm``: unknown.
        """
        if not self._inbox.channel:
            check_in_trio("connect")
        self._inbox.check_settling()
        stale = self._inbox.settle(deliveries, 0) if deliveries else None
        some = stale is None or None in stale.results
        if confirm and some:
            await self._confirm()
        else:
            if some and deliveries:
                self._session.stream.gathered(self._inbox)
            if self._tick(len(deliveries)):
                await trio.lowlevel.checkpoint()
        if stale is not None:
            raise stale

    async def _confirm(self) -> None:
        self._check()
        await self._session.ask(self._session.settle_call(self._inbox))

    async def nack(self, *deliveries: Delivery, delay: float | None = None) -> None:
        """Give messages back: the queue delivers them again in their old place, to this or another consumer.

        ``delay``: seconds after which that may be; None: as the settings of the address have it.  A message that was
        delivered as often as these allow goes to their dead-letter address.

        Checkpoint: at least every 64th call.  Cancellation: it is in line or not touched.
        Raises:
            SettingsError: the delay is no number of seconds; nothing changed.
            UsageError, StaleDeliveryError: as ``ack``.
        """
        await self._settle(deliveries, returning(delay))

    async def reject(self, *deliveries: Delivery) -> None:
        """Reject messages for good: the broker moves them to the dead-letter address, or drops them if none is set.

        Checkpoint: at least every 64th call.  Cancellation: it is in line or not touched.
        Raises:
            UsageError, StaleDeliveryError: as ``ack``.
        """
        await self._settle(deliveries, FLAG_REJECT)

    async def _settle(self, deliveries: Sequence[Delivery], fate: int) -> None:
        if not self._inbox.channel:
            check_in_trio("connect")
        self._inbox.check_settling()
        stale = self._inbox.settle(deliveries, fate) if deliveries else None
        if deliveries and (stale is None or None in stale.results):
            self._session.stream.gathered(self._inbox)
        if self._tick(len(deliveries)):
            await trio.lowlevel.checkpoint()
        if stale is not None:
            raise stale

    def _tick(self, count: int) -> bool:
        """Whether it is time to pass through the scheduler."""
        self._calls += count
        if self._calls < limits.CHECKPOINT_MESSAGES:
            return False
        self._calls = 0
        return True
