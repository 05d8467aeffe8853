"""Deliveries: received messages that are settled by their consumer."""

from __future__ import annotations

from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

import trio

from meshq.client.incoming._delivered_run import ReceivedMessage
from meshq.client.receive._body_stream import BodyStream
from meshq.errors import ClosedError, StaleDeliveryError
from meshq.loops import check_in_trio
from meshq.message import Message, SendOptions

if TYPE_CHECKING:
    from meshq.client.receive._consumer import Consumer


class Delivery(ReceivedMessage):
    """A message received by a consumer, to be acknowledged, returned or rejected there.

    ``async with delivery:`` settles the message at the end of its body, unless the body has settled it: it is
    acknowledged; given back by ``nack`` when the body raises; and given back without any delay when the body is
    cancelled.
    """

    __slots__ = ()

    @property
    def consumer(self) -> Consumer:
        """The consumer that received the message."""
        return cast("Consumer", self._run.consumer)

    async def __aenter__(self) -> Self:
        """Begin the work on the message.

        Checkpoint: never.
        Raises:
            UsageError: its consumer acknowledges what it hands over, or only browses.
        """
        if not self.consumer._inbox.channel:
            check_in_trio("connect")
        self._check_block()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Acknowledge the message, or give it back if the body raised an exception, which is raised again.

        Checkpoint: at least every 64th call.  Cancellation: the message is given back.
        Raises:
            StaleDeliveryError: the work is done, and the message comes again: its session or consumer is gone.
        """
        if self._settled:
            return
        if error is None:
            await self.ack()
            return
        # What belongs to a session that is gone comes again by itself.
        with trio.CancelScope(shield=True), suppress(StaleDeliveryError, ClosedError):
            await self.nack(None if isinstance(error, Exception) else 0.0)

    async def ack(self, *, confirm: bool = False) -> None:
        """Acknowledge the message; as ``consumer.ack``.

        Checkpoint: with ``confirm`` always, else at least every 64th call.
        Cancellation: without ``confirm`` it is in line or not touched; with it, unknown.
        """
        await self.consumer.ack(self, confirm=confirm)

    async def nack(self, delay: float | None = None) -> None:
        """Give the message back: the queue delivers it again, to this or another consumer; as ``consumer.nack``.

        Checkpoint: at least every 64th call.  Cancellation: it is in line or not touched.
        """
        await self.consumer.nack(self, delay=delay)

    async def reject(self) -> None:
        """Reject the message for good; as ``consumer.reject``.

        Checkpoint: at least every 64th call.  Cancellation: it is in line or not touched.
        """
        await self.consumer.reject(self)

    def open(self) -> BodyStream:
        """Open the body as a stream of chunks, for ``async with message.open() as stream: async for chunk in stream``.

        It can be read as long as the message is held: until it is settled.
        """
        consumer = self.consumer
        return BodyStream(self, consumer._inbox, consumer._context.session)

    async def read(self) -> bytes:
        """Return the whole body; the body of a large message is fetched now.

        Checkpoint: always.  Cancellation: nothing changed.
        Raises:
            StaleDeliveryError: the message is settled, or its session or consumer is gone.
            RefusedError: the broker can't read it.
            CallTimeoutError, ConnectionBrokenError, ClosedError: it was not read.
        """
        async with self.open() as stream:
            return b"".join([chunk async for chunk in stream])

    async def reply(self, body: bytes | Message, **keywords: Unpack[SendOptions]) -> None:
        """Send an answer to ``reply_to``, with this message's correlation id, or else its message id.

        ``body`` and ``keywords``: as for ``client.send``.  A ``correlation_id`` that is given there is kept.

        Checkpoint: as ``client.send``.
        Cancellation: whether the answer was sent is unknown.
        Raises:
            UsageError: no answer is wanted.
        """
        address, answer = self._answer(body, keywords)
        await self.consumer._context.sender.send(address, answer, **keywords)
