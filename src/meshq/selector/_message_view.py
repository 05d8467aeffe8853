"""The view of a message that a filter evaluates."""

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
        ``path`` and ``hops`` in a network of brokers, ``been``, the whole path there, and in milliseconds since 1970
        ``timestamp`` and ``expiration``; None if the message has none."""

    def shadow(self, name: str, encoded: bytes) -> Any:
        """The property that has the name of a header, ``encoded`` as UTF-8; ``ABSENT`` if the message has none.

        It is there whether or not ``properties`` are.
        """


#: The value of a property that does not exist; a property may also be None.
ABSENT: Final = object()


class HeaderName(NamedTuple):
    """The header behind a name in a filter: which header, the kind of its value, and the conversion of that value."""

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
HEADERS: Final[dict[str, HeaderName]] = {
    "priority": HeaderName("priority", "number"),
    "durable": HeaderName("durable", "condition"),
    "expiration": HeaderName("expiration", "number", _seconds),
    "timestamp": HeaderName("timestamp", "number", _seconds),
    "size": HeaderName("size", "number"),
    "correlation_id": HeaderName("correlation_id", "text"),
    "group": HeaderName("group", "text"),
    "content_type": HeaderName("content_type", "text"),
    "address": HeaderName("address", "text"),
    "AMQPriority": HeaderName("priority", "number"),
    "AMQDurable": HeaderName("durable", "text", _durability),
    "AMQExpiration": HeaderName("expiration", "number", _or_zero),
    "AMQTimestamp": HeaderName("timestamp", "number"),
    "AMQSize": HeaderName("size", "number"),
    "AMQCorrelationID": HeaderName("correlation_id", "text"),
    "AMQGroupID": HeaderName("group", "text"),
    "AMQContentType": HeaderName("content_type", "text"),
    "AMQAddress": HeaderName("address", "text"),
    "AMQBrokerPath": HeaderName("path", "text"),
    "AMQBrokerHops": HeaderName("hops", "number"),
}
#: Names of what a message's path says; no property stands before these headers.
PATH_NAMES: Final = ("AMQBrokerPath", "AMQBrokerHops")
#: A name with this prefix is a header or a mistake; a property of such a name is written in double quotes.
RESERVED_PREFIX: Final = "AMQ"


def reader(name: str, header: bool) -> Callable[[MessageView], Any]:
    """Return the function that reads a property, or the header behind ``name``, from a message."""
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
