"""Properties of messages as columns show these, and back."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any

from meshq.errors import SettingsError
from meshq.message import PropertyValue

#: The property that is the column ``key``.
KEY = "key"


def as_bytes(value: PropertyValue) -> bytes | None:
    """A property as the value of a header."""
    if value is None or type(value) is bytes:
        return value
    return value.encode() if type(value) is str else json.dumps(value).encode()


def as_text(value: PropertyValue) -> str | None:
    """A property as text."""
    if value is None or type(value) is str:
        return value
    return base64.b64encode(value).decode() if type(value) is bytes else json.dumps(value)


def key_bytes(properties: Mapping[str, PropertyValue]) -> bytes | None:
    """The key of a message; None: it has none, or one that is neither bytes nor text."""
    value = properties.get(KEY)
    return as_bytes(value) if type(value) in (bytes, str) else None


def shown_without_key(properties: Mapping[str, PropertyValue]) -> list[tuple[str, PropertyValue]]:
    """The properties that are no key, by name in order."""
    hidden = KEY if key_bytes(properties) is not None else None
    return sorted((name, value) for name, value in properties.items() if name != hidden)


def merged(
    key: bytes | str | None, headers: Sequence[Mapping[str, Any]] | None, properties: Any
) -> dict[str, PropertyValue] | None:
    """The properties of a message to send, from the columns of its row; None: it has none.

    Raises:
        SettingsError: a name stands there twice, or is missing.
    """
    found: dict[str, PropertyValue] = {}
    if key is not None:
        found[KEY] = key
    for header in headers or ():
        name = header["key"] if header is not None else None
        if name is None:
            raise SettingsError("column 'headers'", None, "headers with a key")
        _put(found, "headers", name, header["value"])
    if properties is not None:
        # A map comes as pairs; a struct as a dict, in which a field without a value is a property that is not set.
        is_struct = isinstance(properties, Mapping)
        for name, value in properties.items() if is_struct else properties:
            if value is not None or not is_struct:
                _put(found, "properties", name, value)
    return found or None


def _put(found: dict[str, PropertyValue], column: str, name: str, value: PropertyValue) -> None:
    if name in found:
        raise SettingsError(f"column {column!r}", name, "each name once among key, headers and properties")
    found[name] = value
