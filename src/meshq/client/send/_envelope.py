"""Encoding of envelopes: the headers and properties of messages, without the body."""

from __future__ import annotations

import math
from typing import Any, Final

import msgpack

from meshq import limits
from meshq.address import parse_target
from meshq.errors import SettingsError
from meshq.message import (
    PROPERTY_TYPES,
    check_duplicate_id,
    check_group,
    check_priority,
    check_properties,
    check_span,
    check_text,
)
from meshq.wire import (
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_ID,
    KIND_PLAIN,
    KIND_PROPERTIES,
    PRIORITY_SHIFT,
    encode_map,
)

#: Property names that were checked are remembered, about this many: programs use a handful.
NAMES_MAX: Final = limits.PROPERTIES_MAX
#: Types whose values are all allowed, apart from what the encoding itself refuses; a float may be no number.
_SIMPLE: Final = PROPERTY_TYPES - {float}

_BYTES_MAX: Final = limits.PROPERTIES_BYTES_MAX

Row = tuple[int, bytes, bytes, bytes]
"""The fields of an ``Envelope``; a plain tuple is made in a third of the time."""

PLAIN_ROW: Final[Row] = (KIND_PLAIN, b"", b"", b"")
#: By priority: the envelope of a message that says nothing else.
PRIORITY_ROWS: Final[tuple[Row, ...]] = tuple(
    (priority << PRIORITY_SHIFT, b"", b"", b"") for priority in range(limits.PRIORITY_MAX + 1)
)


class EnvelopeEncoder:
    """Makes envelopes; one for each client, because it remembers names."""

    __slots__ = ("_names", "_pack")

    def __init__(self) -> None:
        self._pack = msgpack.Packer(use_bin_type=True, strict_types=True).pack
        self._names: set[str] = set()

    def row(
        self,
        properties: Any,
        duplicate_id: Any,
        correlation_id: Any,
        reply_to: Any,
        content_type: Any,
        priority: Any = limits.PRIORITY_DEFAULT,
        ttl: Any = None,
        delay: Any = None,
        group: Any = None,
    ) -> Row:
        """The envelope of one message.

        Raises:
            SettingsError: a part is not allowed.
        """
        kind = KIND_PLAIN if priority == limits.PRIORITY_DEFAULT else check_priority(priority) << PRIORITY_SHIFT
        encoded_id = encoded_headers = encoded_properties = b""
        if properties is not None:
            # The usual case at a glance: known names, and values whose type alone says that they are allowed.
            if (
                type(properties) is dict
                and _SIMPLE.issuperset(map(type, properties.values()))
                and self._names.issuperset(properties)
            ):
                try:
                    encoded_properties = self._pack(properties)
                except (OverflowError, ValueError):
                    encoded_properties = self._checked(properties)
            else:
                encoded_properties = self._checked(properties)
            if properties:
                kind |= KIND_PROPERTIES
            else:
                encoded_properties = b""
        if duplicate_id is not None:
            encoded_id = check_duplicate_id(duplicate_id)
            kind |= KIND_ID
        headers: dict[str, Any] | None = None
        if (ttl is not None or delay is not None or group is not None) and (headers := _control(ttl, delay, group)):
            kind |= KIND_CONTROL
        if headers or correlation_id is not None or reply_to is not None or content_type is not None:
            encoded_headers = _headers(headers or {}, correlation_id, reply_to, content_type)
            kind |= KIND_HEADERS
        if len(encoded_properties) + len(encoded_headers) > _BYTES_MAX:
            size = len(encoded_headers) + len(encoded_properties)
            allowed = f"at most {limits.PROPERTIES_BYTES_MAX} bytes"
            raise SettingsError("properties", None, allowed, shown=f"<{size} bytes, encoded>")
        return (kind, encoded_id, encoded_headers, encoded_properties)

    def _checked(self, properties: Any) -> bytes:
        """Encode properties after a close look."""
        check_properties(properties)
        names = self._names
        if len(names) < NAMES_MAX:
            names.update(properties)
        return self._pack(dict(properties))  # type: ignore[no-any-return]


def _control(ttl: Any, delay: Any, group: Any) -> dict[str, Any]:
    """The headers by which the broker acts."""
    headers: dict[str, Any] = {}
    if ttl is not None and ttl != math.inf:
        headers["x"] = check_span("ttl", ttl)
    if delay is not None:
        headers["d"] = check_span("delay", delay)
    if group is not None:
        headers["g"] = check_group(group)
    return headers


def _headers(headers: dict[str, Any], correlation_id: Any, reply_to: Any, content_type: Any) -> bytes:
    if correlation_id is not None:
        headers["c"] = check_text("correlation_id", correlation_id)
    if reply_to is not None:
        parse_target(reply_to, "reply_to")
        headers["r"] = reply_to
    if content_type is not None:
        headers["t"] = check_text("content_type", content_type)
    return encode_map(headers)
