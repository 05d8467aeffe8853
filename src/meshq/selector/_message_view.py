"""What a filter sees of a message."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, Protocol

Value = str | bytes | bool | int | float | None


class MessageView(Protocol):
    """A message as a filter sees it."""

    @property
    def properties(self) -> Mapping[str, Any]:
        """The message's properties; may be empty if no filter that looks has ``uses_properties``."""

    def header(self, name: str) -> Any:
        """A header: ``priority``, ``durable``, ``size``, ``address``, ``correlation_id``, ``group``, ``content_type``,
        and in milliseconds since 1970 ``timestamp`` and ``expiration``; None if the message has none."""

    def shadow(self, name: str, encoded: bytes) -> Any:
        """The property that has the name of a header, ``encoded`` as UTF-8; ``ABSENT`` if the message has none.

        It is there whether or not ``properties`` are.
        """


#: There is no such property; one that is None is there.
ABSENT: Final = object()


class Header(NamedTuple):
    """A name that means a header: which one, what its value is, and how it is made from the message's."""

    source: str
    kind: str
    convert: Callable[[Any], Any] | None = None


def _seconds(milliseconds: int | None) -> float | None:
    return None if milliseconds is None else milliseconds / 1000


def _or_zero(milliseconds: int | None) -> int:
    return milliseconds or 0


def _durability(durable: bool) -> str:
    return "DURABLE" if durable else "NON_DURABLE"


#: Names without quotes that mean headers, with the ActiveMQ documentation's spellings, types and units.
HEADERS: Final[dict[str, Header]] = {
    "priority": Header("priority", "number"),
    "durable": Header("durable", "condition"),
    "expiration": Header("expiration", "number", _seconds),
    "timestamp": Header("timestamp", "number", _seconds),
    "size": Header("size", "number"),
    "correlation_id": Header("correlation_id", "text"),
    "group": Header("group", "text"),
    "content_type": Header("content_type", "text"),
    "address": Header("address", "text"),
    "AMQPriority": Header("priority", "number"),
    "AMQDurable": Header("durable", "text", _durability),
    "AMQExpiration": Header("expiration", "number", _or_zero),
    "AMQTimestamp": Header("timestamp", "number"),
    "AMQSize": Header("size", "number"),
    "AMQCorrelationID": Header("correlation_id", "text"),
    "AMQGroupID": Header("group", "text"),
    "AMQContentType": Header("content_type", "text"),
    "AMQAddress": Header("address", "text"),
}
#: A name that begins so is one of those, or a mistake; a property of such a name is written in double quotes.
RESERVED_PREFIX: Final = "AMQ"


def reader(name: str, header: bool) -> Callable[[MessageView], Any]:
    """What reads a property, or the header that ``name`` means, from a message."""
    if not header:
        return lambda view: view.properties.get(name)
    source, _, convert = HEADERS[name]

    def read(view: MessageView) -> Any:
        value = view.header(source)
        return value if convert is None else convert(value)

    if name.startswith(RESERVED_PREFIX):
        return read
    encoded = name.encode()

    def read_own(view: MessageView) -> Any:
        found = view.shadow(name, encoded)
        return read(view) if found is ABSENT else found

    return read_own
