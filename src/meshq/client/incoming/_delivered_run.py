"""Runs as they are delivered, and their messages: views of one row of a run, which decode when asked.

Nothing is decoded per message: a message is a run and an index, made by the hundred by ``map``.
"""

from __future__ import annotations

from typing import Any, Protocol

import attrs

from meshq import limits
from meshq.concurrency import copied_error
from meshq.errors import MeshqError, UsageError
from meshq.ids import MessageId
from meshq.message import Message, MessageOrigin, SendOptions, from_json
from meshq.wire import (
    FLAG_DURABLE,
    FLAG_LARGE,
    HEADER_BRIDGED,
    HEADER_PATH,
    BrokerPath,
    Deliver,
    Frame,
    RunBytes,
    RunView,
    decode_map,
    header_of,
    path_of,
    violation,
)


class RunOwner(Protocol):
    """The consumer of a run, as far as its messages need to know it."""

    @property
    def queue(self) -> str:
        """The queue, as it was asked for."""

    @property
    def settles_itself(self) -> bool:
        """Whether the consumer acknowledges messages at hand-over, or only browses."""


class LargeBody:
    """A large body, which does not come with its message."""

    __slots__ = ("fetched", "size", "trouble")

    def __init__(self, size: int) -> None:
        self.size: int = size
        #: Whether it was fetched, or why it could not be.
        self.fetched: bool = False
        self.trouble: MeshqError | None = None


class DeliveredRun:
    """The messages of one DELIVER frame."""

    __slots__ = ("_frame", "_header", "consumer", "epoch", "first", "large", "rows", "settled", "view")

    def __init__(self, consumer: RunOwner, epoch: int, frame: Frame) -> None:
        self.consumer: RunOwner = consumer
        #: The session's epoch: with another one these deliveries are stale.
        self.epoch: int = epoch
        #: Tag of the first message.
        self.first: int = frame.first
        self.rows: int = frame.count
        #: One bit per message that was acknowledged, returned or rejected.
        self.settled: int = 0
        # A part of a larger run keeps that run's offsets; the last one says where this part begins.
        table, body = bytes(frame.table), frame.body
        base = int.from_bytes(table[-4:], "little") - len(body)
        self.view: RunView = RunView(RunBytes(frame.count, table, base, body))
        self._frame: Frame = frame
        self._header: tuple[Deliver, dict[int, int]] | None = None
        #: The body of its one message, if that does not come with it; None for every other run.
        self.large: LargeBody | None = None
        if frame.flags & FLAG_LARGE:
            self.large = LargeBody(self.header.size)
            if frame.count != 1 or not self.large.size:
                raise violation("bad_table", f"a large body of {self.large.size} bytes for {frame.count} messages")

    @property
    def header(self) -> Deliver:
        """The header of the frame."""
        return (self._header or self._read())[0]

    @property
    def counts(self) -> dict[int, int]:
        """Delivery counts by index, of messages that may have been delivered before."""
        return (self._header or self._read())[1]

    @property
    def stamp_ms(self) -> int:
        """The producer's clock."""
        return self._frame.stamp

    @property
    def durable(self) -> bool:
        """Whether the messages survive a crash of the broker."""
        return bool(self._frame.flags & FLAG_DURABLE)

    def _read(self) -> tuple[Deliver, dict[int, int]]:
        header = header_of(self._frame, Deliver)
        counts = header.counts
        self._header = (header, dict(zip(counts[0::2], counts[1::2], strict=False)))
        return self._header


class ReceivedMessage:
    """A message received, as it is read; by any thread."""

    __slots__ = ("_index", "_run")

    def __init__(self, run: DeliveredRun, index: int) -> None:
        self._run = run
        self._index = index

    def __repr__(self) -> str:
        """Name the queue and the id of the message, never its content."""
        return f"<Delivery {self.message_id} of {self.queue!r} sequence={self.sequence} count={self.delivery_count}>"

    @property
    def body(self) -> bytes:
        """The body of the message.

        Raises:
            UsageError: it is larger than what is fetched unasked: read it by ``open``.
            RefusedError: the broker could not read it from its disk.
        """
        view, index = self._run.view, self._index
        if not view.ends:
            view.read_bodies()
        return view.data[view.starts[index] : view.ends[index]] or self._no_bytes()

    def _no_bytes(self) -> bytes:
        """The body, of which there are no bytes here."""
        large = self._run.large
        if large is None:
            return b""
        if large.trouble is not None:
            raise copied_error(large.trouble)
        raise UsageError(f"a body of {large.size} bytes has to be read by open() or read()")

    def json(self) -> Any:
        """Decode the body from JSON text in UTF-8, for any content type; read as by ``body``.

        Raises:
            BodyFormatError: the body is no JSON text.
        """
        return from_json(self.body)

    @property
    def size(self) -> int:
        """The size of the body in bytes."""
        large = self._run.large
        return self._run.view.size(self._index) if large is None else large.size

    @property
    def properties(self) -> dict[str, Any]:
        """The properties, decoded anew each time."""
        data = self._run.view.properties(self._index)
        return decode_map(data, limits.ENVELOPE_BYTES_MAX, lists=False) if data else {}

    @property
    def message_id(self) -> MessageId:
        """The producer and its number for this message; kept for life."""
        header = self._run.header
        return MessageId(header.producer, header.number + self._index * header.step * header.stride)

    @property
    def address(self) -> str:
        """The address that the message was sent to."""
        return self._run.header.address

    @property
    def queue(self) -> str:
        """The queue that delivered the message."""
        return self._run.consumer.queue

    @property
    def timestamp(self) -> float:
        """The time of sending by the producer's clock: seconds since 1970."""
        return self._run.stamp_ms / 1000

    @property
    def sequence(self) -> int:
        """The number of the message in its queue."""
        header = self._run.header
        return header.sequence + self._index * header.step

    @property
    def delivery_count(self) -> int:
        """The number of deliveries of the message, with the present delivery counted."""
        return self._run.counts.get(self._index, 1)

    @property
    def redelivered(self) -> bool:
        """Whether the message may have been delivered before."""
        return self._run.counts.get(self._index, 1) > 1

    @property
    def durable(self) -> bool:
        """Whether the message survives a crash of the broker."""
        return self._run.durable

    @property
    def priority(self) -> int:
        """The priority, 0 to 9."""
        return self._run.view.priority(self._index)

    @property
    def duplicate_id(self) -> bytes | None:
        """The duplicate id that the sender set, as bytes; None: no duplicate id."""
        own = self._header(HEADER_BRIDGED)
        if type(own) is bytes:
            # It came over a bridge, and what stands in its place is the bridge's.
            return own or None
        return self._run.view.duplicate_id(self._index) or None

    @property
    def correlation_id(self) -> str | None:
        """The correlation id, as the sender set it: the id of the request that the message answers."""
        return self._optional("c")

    @property
    def reply_to(self) -> str | None:
        """The address to which an answer is to be sent."""
        return self._optional("r")

    @property
    def content_type(self) -> str | None:
        """The content type of the body, as the sender set it."""
        return self._optional("t")

    @property
    def group(self) -> str | None:
        """The group of the message; None: no group."""
        return self._optional("g")

    @property
    def expiration(self) -> float | None:
        """The time at which the message expires, by the clock of the first broker: seconds since 1970; None: never."""
        ttl_ms, arrival_ms = self._header("x"), self._run.header.arrival
        if type(ttl_ms) is not int or not arrival_ms:
            return None
        return (arrival_ms + ttl_ms) / 1000

    @property
    def path(self) -> tuple[str, ...]:
        """The names of the brokers of a network that have forwarded the message, the first one first; without those
        from which it has gone back."""
        return tuple(step.name for step in self._broker_path.steps)

    @property
    def _broker_path(self) -> BrokerPath:
        return path_of({name: self._header(name) for name in (HEADER_BRIDGED, HEADER_PATH)})

    @property
    def origin(self) -> MessageOrigin | None:
        """The place of the message before it was moved to this queue, and the reason; None: not moved."""
        parts = self._run.header.origin
        return MessageOrigin(*parts) if len(parts) == len(MessageOrigin._fields) else None

    def _optional(self, key: str) -> str | None:
        value = self._header(key)
        return value if type(value) is str else None

    def _header(self, key: str) -> Any:
        data = self._run.view.headers(self._index)
        return decode_map(data, limits.ENVELOPE_BYTES_MAX, lists=False).get(key) if data else None

    @property
    def _settled(self) -> bool:
        """Whether the message was acknowledged, given back or rejected."""
        return bool(self._run.settled >> self._index & 1)

    def _check_block(self) -> None:
        """See that the end of a block can settle the message.

        Raises:
            UsageError: its consumer acknowledges what it hands over, or only browses.
        """
        if self._run.consumer.settles_itself:
            raise UsageError(
                "there is nothing to settle: the consumer acknowledges what it hands over, or only browses"
            )

    def _answer(self, body: bytes | Message, keywords: SendOptions) -> tuple[str, bytes | Message]:
        """Return the address and the message of an answer, with its correlation id."""
        address = self.reply_to
        if address is None:
            raise UsageError(f"message {self.message_id} has no reply_to")
        answered = self.correlation_id or str(self.message_id)
        if isinstance(body, Message):
            return address, body if body.correlation_id is not None else attrs.evolve(body, correlation_id=answered)
        keywords.setdefault("correlation_id", answered)
        return address, body
