"""A sample message, made to explain where such a message would go."""

from __future__ import annotations

from typing import Any

from meshq import limits
from meshq.broker.queue._run import StoredRun
from meshq.errors import RemoteProtocolError, UsageError
from meshq.message import check_group, check_priority, check_properties
from meshq.wire import (
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_PROPERTIES,
    PRIORITY_SHIFT,
    Envelope,
    decode_map,
    encode_map,
    encode_one,
)

#: The optional headers that filters can ask for, and their keys.
HEADERS = {"correlation_id": "c", "content_type": "t", "group": "g"}
Given = bytes | dict[str, Any] | None


def imagined(address: str, properties: Given, headers: Given, *, durable: bool, priority: int) -> StoredRun | None:
    """A message as it would be placed; None if nothing is said of it.

    Raises:
        SettingsError, UsageError: it can't be one.
    """
    if properties is None and headers is None:
        return None
    values, named = _map("properties", properties), _map("headers", headers)
    check_properties(values)
    if unknown := [name for name in named if name not in HEADERS]:
        raise UsageError(f"a message has no header {unknown[0][:64]!r} that can be given; known: {', '.join(HEADERS)}")
    encoded = encode_map({HEADERS[name]: value for name, value in named.items()}) if named else b""
    kind = check_priority(priority) << PRIORITY_SHIFT | (KIND_HEADERS if named else 0)
    kind |= KIND_PROPERTIES if values else 0
    if "group" in named:
        check_group(named["group"])
        kind |= KIND_CONTROL
    envelope = Envelope(kind, b"", encoded, encode_map(values) if values else b"")
    content = encode_one(b"", envelope)
    return StoredRun(address, content, durable=durable, producer=bytes(16), number=1, stamp=0)


def _map(name: str, given: Given) -> dict[str, Any]:
    if not isinstance(given, bytes):
        return given or {}
    try:
        return decode_map(given, limits.PROPERTIES_BYTES_MAX, lists=False)
    except RemoteProtocolError as error:
        raise UsageError(f"{name} can't be read: {error}") from error
