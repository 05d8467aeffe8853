"""A message received, as a thread settles it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack

from meshq import client as trio_client
from meshq.blocking._body_stream import BodyStream
from meshq.client import DeliveredRun, ReceivedMessage
from meshq.errors import ClosedError, StaleDeliveryError
from meshq.message import Message, SendOptions

if TYPE_CHECKING:
    from meshq.blocking._consumer import Consumer


class Delivery(ReceivedMessage):
    """A message received by a consumer, to be acknowledged, returned or rejected there, by any thread.

    ``with delivery:`` settles the message at the end of its body, unless the body has settled it: it is acknowledged;
    given back by ``nack`` when the body raises; and given back without any delay when the body is interrupted.
    """

    __slots__ = ("_consumer",)

    def __init__(self, run: DeliveredRun, index: int, consumer: Consumer) -> None:
        self._run = run
        self._index = index
        self._consumer = consumer

    @property
    def consumer(self) -> Consumer:
        """The consumer that received the message."""
        return self._consumer

    def __enter__(self) -> Self:
        """Begin the work on the message.

        Raises:
            UsageError: its consumer acknowledges what it hands over, or only browses.
        """
        self._check_block()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Acknowledge the message, or give it back if the body raised an exception, which is raised again.

        Interrupted: the message is given back.
        Raises:
            StaleDeliveryError: the work is done, and the message comes again: its session or consumer is gone.
        """
        if self._settled:
            return
        if error is None:
            self.ack()
            return
        # What belongs to a session that is gone comes again by itself.
        with suppress(StaleDeliveryError, ClosedError):
            self.nack(None if isinstance(error, Exception) else 0.0)

    def ack(self, *, confirm: bool = False) -> None:
        """Acknowledge the message; as ``consumer.ack``.

        Interrupted: without ``confirm`` it is in line or not touched; with it, unknown.
        """
        self._consumer.ack(self, confirm=confirm)

    def nack(self, delay: float | None = None) -> None:
        """Give the message back: the queue delivers it again, to this or another consumer; as ``consumer.nack``.

        Interrupted: it is in line or not touched.
        """
        self._consumer.nack(self, delay=delay)

    def reject(self) -> None:
        """Reject the message for good; as ``consumer.reject``.

        Interrupted: it is in line or not touched.
        """
        self._consumer.reject(self)

    def open(self) -> BodyStream:
        """Open the body as a stream of chunks, for ``with message.open() as stream: for chunk in stream``.

        It can be read as long as the message is held: until it is settled.
        """
        return BodyStream(trio_client.Delivery(self._run, self._index).open(), self._consumer._loop)

    def read(self) -> bytes:
        """Return the whole body; the body of a large message is fetched now.

        Interrupted: nothing changed.
        Raises:
            StaleDeliveryError: the message is settled, or its session or consumer is gone.
            RefusedError: the broker can't read it.
            CallTimeoutError, ConnectionBrokenError, ClosedError: it was not read.
        """
        return self._consumer._loop.call(trio_client.Delivery(self._run, self._index).read)

    def reply(self, body: bytes | Message, **keywords: Unpack[SendOptions]) -> None:
        """Send an answer to ``reply_to``, with this message's correlation id, or else its message id.

        ``body`` and ``keywords``: as for ``client.send``.  A ``correlation_id`` that is given there is kept.

        Interrupted: whether the answer was sent is unknown.
        Raises:
            UsageError: no answer is wanted.
        """
        address, answer = self._answer(body, keywords)
        self._consumer.client.send(address, answer, **keywords)


#: The function that ``serve`` calls with each message.
Handler = Callable[[Delivery], object]
