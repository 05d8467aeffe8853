"""What a bridge sends for what it has received."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final, NamedTuple, Protocol

from meshq import limits
from meshq.errors import MeshqError
from meshq.message import Message

#: What a time to live is at least: a millisecond, in which it is counted.
TTL_S_MIN: Final = 0.001
Transformer = Callable[[Message], Message | None]


class ForwardedDelivery(Protocol):
    """A delivery, as far as a bridge looks at it."""

    @property
    def address(self) -> str:
        """Where it was sent."""

    @property
    def sequence(self) -> int:
        """Its number in the queue."""

    @property
    def size(self) -> int:
        """Bytes of its body."""

    @property
    def body(self) -> bytes:
        """The body of the message."""

    @property
    def properties(self) -> dict[str, Any]:
        """With it."""

    @property
    def durable(self) -> bool:
        """Whether it survives a crash."""

    @property
    def duplicate_id(self) -> bytes | None:
        """Its sender's."""

    @property
    def correlation_id(self) -> str | None:
        """What it answers."""

    @property
    def reply_to(self) -> str | None:
        """The address to which an answer is to be sent."""

    @property
    def content_type(self) -> str | None:
        """What its body is."""

    @property
    def priority(self) -> int:
        """How urgent it is."""

    @property
    def group(self) -> str | None:
        """The group that it belongs to."""

    @property
    def expiration(self) -> float | None:
        """When it is of no use any more: seconds since 1970."""


class ForwardBatch(NamedTuple):
    """Messages that go to one address together, each with the bridge's id of it; ``places``: of their deliveries.

    ``streams``: it is one message, whose body is read while it is sent.
    """

    address: str
    places: list[int]
    messages: list[tuple[Message, bytes]]
    streams: bool = False

    def pieces(self, most: int) -> list[ForwardBatch]:
        """The same in order, in parts of at most so many messages."""
        starts = range(0, len(self.places), most)
        return [
            self._replace(places=self.places[at : at + most], messages=self.messages[at : at + most]) for at in starts
        ]


class ForwardPlan(NamedTuple):
    """What becomes of some deliveries, by their places; with what was wrong of them."""

    parts: list[ForwardBatch]
    #: The transformer says that they end here.
    ended: list[int]
    #: The transformer has failed with them.
    failed: dict[int, str]
    #: They can't be carried.
    rejected: dict[int, str]


def time_left(expiration: float | None, now: float) -> float | None:
    """The time to live with which a message goes on that has used a part of its own; None: it has no end.

    What ran out on the way still goes, for a moment: only where it arrives is it known where such a message belongs.
    """
    return None if expiration is None else max(expiration - now, TTL_S_MIN)


def bridged_id(store: bytes, queue: int, sequence: int) -> bytes:
    """By what a target knows a message again: it is the same however often the message is sent again, and another one
    for each time that the message stands in a queue.

    ``store``: what no other store has, and in memory no other life; it never gives a queue's or a message's number
    twice.
    """
    return store + queue.to_bytes(8, "big") + sequence.to_bytes(8, "big")


class _TransformerFailed(Exception):
    """A program's own transformer has done what it may not; with what that was."""


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
    """Whether a message is larger than what an ordinary one may be."""
    return delivery.size > limits.MESSAGE_BYTES_MAX


def _message(delivery: ForwardedDelivery, now: float, *, large: bool) -> Message:
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
    deliveries: Iterable[ForwardedDelivery],
    *,
    address: str | None,
    transformer: Transformer | None,
    identify: Callable[[int], bytes] | None,
    now: float,
) -> ForwardPlan:
    """What goes where, in order; neighbours for one address go together.

    ``identify`` makes the bridge's id of a message's number in its queue; None: it gives none.
    ``now``: seconds since 1970.
    """
    made = ForwardPlan([], [], {}, {})
    for place, delivery in enumerate(deliveries):
        large = is_large(delivery)
        if large and transformer is not None:
            made.rejected[place] = f"a message of {delivery.size} bytes, which its transformer can't be given"
            continue
        try:
            given = _message(delivery, now, large=large)
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
        last.messages.append((message, identify(delivery.sequence) if identify is not None else b""))
    return made
