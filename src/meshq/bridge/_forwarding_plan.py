"""The plan of a bridge: received messages become batches for the target."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol, TypeVar

import attrs

from meshq import limits
from meshq.errors import MeshqError
from meshq.message import Message

#: The least time to live: a millisecond, its unit.
TTL_S_MIN: Final = 0.001
Transformer = Callable[[Message], Message | None]


class ForwardedDelivery(Protocol):
    """The part of a delivery that a bridge reads."""

    @property
    def address(self) -> str:
        """The address that the message was sent to."""

    @property
    def sequence(self) -> int:
        """The number of the message in its queue."""

    @property
    def size(self) -> int:
        """The size of the body in bytes."""

    @property
    def body(self) -> bytes:
        """The body of the message."""

    @property
    def properties(self) -> dict[str, Any]:
        """The properties of the message."""

    @property
    def durable(self) -> bool:
        """Whether the message is durable."""

    @property
    def duplicate_id(self) -> bytes | None:
        """The duplicate id that the sender set."""

    @property
    def correlation_id(self) -> str | None:
        """The correlation id."""

    @property
    def reply_to(self) -> str | None:
        """The address to which an answer is to be sent."""

    @property
    def content_type(self) -> str | None:
        """The content type."""

    @property
    def priority(self) -> int:
        """The priority, 0 to 9."""

    @property
    def group(self) -> str | None:
        """The group that it belongs to."""

    @property
    def expiration(self) -> float | None:
        """The time at which the message expires: seconds since 1970."""


DeliveryT = TypeVar("DeliveryT", bound=ForwardedDelivery)


class ForwardBatch(NamedTuple):
    """Messages that go to one address together, each with its bridge id; ``places``: those of their deliveries.

    ``streams``: it is one message, whose body is read while it is sent.
    """

    address: str
    places: list[int]
    messages: list[tuple[Message, bytes]]
    streams: bool = False

    def pieces(self, most: int) -> list[ForwardBatch]:
        """Split the batch in order, into batches of at most ``most`` messages."""
        starts = range(0, len(self.places), most)
        return [
            self._replace(places=self.places[at : at + most], messages=self.messages[at : at + most]) for at in starts
        ]


class ForwardPlan(NamedTuple):
    """The fates of some deliveries, by their places, with the reasons of failures."""

    parts: list[ForwardBatch]
    #: The transformer says that they end here.
    ended: list[int]
    #: The transformer has failed with them.
    failed: dict[int, str]
    #: Messages that can't be forwarded, with the reasons.
    rejected: dict[int, str]


def time_left(expiration: float | None, now: float) -> float | None:
    """The remaining time to live of a message; None: it never expires.

    What ran out on the way still goes, for a moment: only where it arrives is it known where such a message belongs.
    """
    return None if expiration is None else max(expiration - now, TTL_S_MIN)


def bridged_id(store: bytes, queue: int, sequence: int) -> bytes:
    """Make the id by which a target recognizes a message that is sent again; each stay of a message in a queue has an
    id of its own.

    ``store``: what no other store has, and in memory no other life; it never gives a queue's or a message's number
    twice.
    """
    return store + queue.to_bytes(8, "big") + sequence.to_bytes(8, "big")


class Numbered(Protocol):
    """A run whose messages have numbers in their queue."""

    @property
    def sequence(self) -> int:
        """The number of the first message."""

    @property
    def step(self) -> int:
        """The distance between the numbers of two messages that follow one another."""


@attrs.frozen
class DeliveryIds:
    """The bridge's ids of the deliveries from one queue; as ``bridged_id``."""

    store: bytes
    queue: int

    def __call__(self, delivery: ForwardedDelivery) -> bytes:
        """Make the id of a delivery."""
        return bridged_id(self.store, self.queue, delivery.sequence)

    def among(self, run: Numbered, start: int, rows: int) -> list[bytes]:
        """Make the ids of some deliveries of one run."""
        common, first = bridged_id(self.store, self.queue, 0)[:-8], run.sequence + start * run.step
        return [common + number.to_bytes(8, "big") for number in range(first, first + rows * run.step, run.step)]


class _TransformerFailed(Exception):
    """The program's transformer has raised or returned something that is not allowed."""


def _transformed(transformer: Transformer, message: Message) -> Message | None:
    try:
        made = transformer(message)
    except Exception as error:
        # What the error says may be of the message, and is not told.
        raise _TransformerFailed(f"has raised {type(error).__name__}") from error
    if made is not None and not isinstance(made, Message):
        raise _TransformerFailed(f"has returned {type(made).__name__}, neither a Message nor None")
    return made


def is_large(delivery: ForwardedDelivery) -> bool:
    """Whether the body of a message has to be streamed."""
    return delivery.size > limits.MESSAGE_BYTES_MAX


def message_of(delivery: ForwardedDelivery, now: float, *, large: bool = False) -> Message:
    """Return the message that goes on; the body of a ``large`` one is sent apart.

    Raises:
        MeshqError: it can't be read.
    """
    return Message(
        b"" if large else delivery.body,
        properties=delivery.properties or None,
        durable=delivery.durable,
        priority=delivery.priority,
        ttl=time_left(delivery.expiration, now),
        group=delivery.group,
        duplicate_id=delivery.duplicate_id,
        correlation_id=delivery.correlation_id,
        reply_to=delivery.reply_to,
        content_type=delivery.content_type,
    )


def plan(
    deliveries: Iterable[DeliveryT],
    *,
    address: str | None,
    transformer: Transformer | None,
    identify: Callable[[DeliveryT], bytes] | None,
    now: float,
    first: int = 0,
) -> ForwardPlan:
    """Plan the batches for some deliveries, in order; neighbours for one address go together.

    ``identify`` makes the bridge's id of a message; None: it gives none.
    ``now``: seconds since 1970.  ``first``: the place of the first one.
    """
    made = ForwardPlan([], [], {}, {})
    for place, delivery in enumerate(deliveries, first):
        large = is_large(delivery)
        if large and transformer is not None:
            made.rejected[place] = f"a message of {delivery.size} bytes, which its transformer can't be given"
            continue
        try:
            given = message_of(delivery, now, large=large)
            message = given if transformer is None else _transformed(transformer, given)
        except _TransformerFailed as error:
            made.failed[place] = str(error)
            continue
        except MeshqError as error:
            # Its body can't be read from the disk, or no sender of ours has written it: that is left to a human.
            made.rejected[place] = f"a message that can't be read: {error}"
            continue
        if message is None:
            made.ended.append(place)
            continue
        to = address or delivery.address
        last = made.parts[-1] if made.parts else None
        if last is None or large or last.streams or last.address != to:
            last = ForwardBatch(to, [], [], large)
            made.parts.append(last)
        last.places.append(place)
        last.messages.append((message, identify(delivery) if identify is not None else b""))
    return made
