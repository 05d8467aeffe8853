"""What a message has besides its body, encoded once."""

from __future__ import annotations

from typing import Any, Final

import msgpack

from meshq import limits
from meshq.address import parse_target
from meshq.errors import SettingsError
from meshq.message import PROPERTY_TYPES, check_duplicate_id, check_properties, check_text
from meshq.wire import KIND_HEADERS, KIND_ID, KIND_PLAIN, KIND_PROPERTIES, Envelope, encode_map

#: Property names that were checked are remembered, up to this many: programs use a handful.
NAMES_MAX: Final = 1_024

Row = tuple[int, bytes, bytes, bytes]
"""The fields of an ``Envelope``; a plain tuple is made in a third of the time."""

PLAIN_ROW: Final[Row] = (KIND_PLAIN, b"", b"", b"")


class Encoder:
    """Makes envelopes; one for each client, because it remembers names."""

    __slots__ = ("_names", "_pack")

    def __init__(self) -> None:
        self._pack = msgpack.Packer(use_bin_type=True, strict_types=True).pack
        self._names: set[str] = set()

    def row(
        self,
        properties: Any,
        duplicate_id: Any,
        *,
        correlation_id: Any = None,
        reply_to: Any = None,
        content_type: Any = None,
    ) -> Row:
        """The envelope of one message.

        Raises:
            SettingsError: a part is not allowed.
        """
        kind = KIND_PLAIN
        encoded_id = encoded_headers = encoded_properties = b""
        if properties:
            encoded_properties = self._properties(properties)
            kind |= KIND_PROPERTIES
        elif properties is not None:
            check_properties(properties)
        if duplicate_id is not None:
            if type(duplicate_id) is str and duplicate_id.isascii():
                encoded_id = duplicate_id.encode()
                if not 0 < len(encoded_id) <= limits.DUPLICATE_ID_BYTES_MAX:
                    check_duplicate_id(duplicate_id)
            else:
                encoded_id = check_duplicate_id(duplicate_id)
            kind |= KIND_ID
        if correlation_id is not None or reply_to is not None or content_type is not None:
            encoded_headers = _headers(correlation_id, reply_to, content_type)
            kind |= KIND_HEADERS
        if len(encoded_headers) + len(encoded_properties) > limits.PROPERTIES_BYTES_MAX:
            raise SettingsError(
                "properties",
                f"{len(encoded_headers) + len(encoded_properties)} bytes, encoded",
                f"at most {limits.PROPERTIES_BYTES_MAX} bytes",
            )
        return (kind, encoded_id, encoded_headers, encoded_properties)

    def envelope(self, properties: Any, duplicate_id: Any, **headers: Any) -> Envelope:
        """The same as an ``Envelope``."""
        return Envelope(*self.row(properties, duplicate_id, **headers))

    def _properties(self, properties: Any) -> bytes:
        if type(properties) is not dict:
            check_properties(properties)
            properties = dict(properties)
        elif not self._names.issuperset(properties) or not _plain_values(properties):
            check_properties(properties)
            if len(self._names) + len(properties) <= NAMES_MAX:
                self._names.update(properties)
        elif len(properties) > limits.PROPERTIES_MAX:
            check_properties(properties)
        try:
            return self._pack(properties)  # type: ignore[no-any-return]
        except (ValueError, TypeError, OverflowError, UnicodeEncodeError):
            # A value that the quick look can't judge: the check names it.
            check_properties(properties)
            raise


def _plain_values(properties: dict[str, Any]) -> bool:
    """Whether all values are of an allowed type, as far as their types tell; no float, which may be no number."""
    kinds = set(map(type, properties.values()))
    return kinds <= PROPERTY_TYPES and float not in kinds


def _headers(correlation_id: Any, reply_to: Any, content_type: Any) -> bytes:
    headers = {}
    if correlation_id is not None:
        headers["c"] = check_text("correlation_id", correlation_id)
    if reply_to is not None:
        parse_target(reply_to, "reply_to")
        headers["r"] = reply_to
    if content_type is not None:
        headers["t"] = check_text("content_type", content_type)
    return encode_map(headers)
