"""What a bridge sends for what it has received."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import groupby
from typing import Any, Final, Protocol

from meshq.message import Message

#: What a time to live is at least: a millisecond, in which it is counted.
TTL_S_MIN: Final = 0.001
Transformer = Callable[[Message], Message | None]


class Received(Protocol):
    """A delivery, as far as a bridge looks at it."""

    @property
    def address(self) -> str:
        """Where it was sent."""

    @property
    def sequence(self) -> int:
        """Its number in the queue."""

    @property
    def body(self) -> bytes:
        """What was sent."""

    @property
    def properties(self) -> dict[str, Any]:
        """With it."""

    @property
    def durable(self) -> bool:
        """Whether it survives a crash."""

    @property
    def duplicate_id(self) -> bytes | None:
        """Its own."""

    @property
    def correlation_id(self) -> str | None:
        """What it answers."""

    @property
    def reply_to(self) -> str | None:
        """Where an answer is wanted."""

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


def time_left(expiration: float | None, now: float) -> float | None:
    """The time to live with which a message goes on that has used a part of its own; None: it has no end.

    What ran out on the way still goes, for a moment: only where it arrives is it known where such a message belongs.
    """
    return None if expiration is None else max(expiration - now, TTL_S_MIN)


def bridged_id(node_id: bytes, queue: int, sequence: int) -> bytes:
    """The duplicate id of a message that has none: it is the same however often the message is sent again, and another
    one for each time that the message stands in a queue."""
    return node_id + queue.to_bytes(8, "big") + sequence.to_bytes(8, "big")


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


def carried(
    deliveries: Iterable[Received],
    *,
    address: str | None,
    transformer: Transformer | None,
    identify: Callable[[int], bytes] | None,
    now: float,
) -> tuple[list[tuple[str, list[Message]]], dict[int, str]]:
    """Messages with the addresses that they go to, in order, neighbours for one address together; and the places of
    deliveries with which the transformer has failed, with what it did.

    ``identify`` makes a duplicate id of a message's number in its queue; None: messages without one get none.
    ``now``: seconds since 1970.
    """
    made: list[tuple[str, Message]] = []
    failed: dict[int, str] = {}
    for place, delivery in enumerate(deliveries):
        duplicate_id: bytes | None = delivery.duplicate_id
        if duplicate_id is None and identify is not None:
            duplicate_id = identify(delivery.sequence)
        message: Message | None = Message(
            delivery.body,
            properties=delivery.properties or None,
            durable=delivery.durable,
            priority=delivery.priority,
            ttl=time_left(delivery.expiration, now),
            group=delivery.group,
            duplicate_id=duplicate_id,
            correlation_id=delivery.correlation_id,
            reply_to=delivery.reply_to,
            content_type=delivery.content_type,
        )
        if transformer is not None and message is not None:
            try:
                message = _transformed(transformer, message)
            except _TransformerFailed as error:
                failed[place] = str(error)
                continue
        if message is not None:
            made.append((address or delivery.address, message))
    return [(to, [message for _, message in group]) for to, group in groupby(made, key=lambda item: item[0])], failed
