"""Messages for tests of filters."""

from __future__ import annotations

from typing import Any

import attrs

from meshq.selector import ABSENT, parse_filter


@attrs.frozen
class Plain:
    """A message that is two dictionaries."""

    properties: dict[str, Any]
    headers: dict[str, Any]

    def header(self, name: str) -> Any:
        return self.headers.get(name)

    def shadow(self, name: str, encoded: bytes) -> Any:
        assert encoded == name.encode()
        return self.properties.get(name, ABSENT)


def message(headers: dict[str, Any] | None = None, /, **properties: Any) -> Plain:
    """A message with these properties."""
    return Plain(properties, headers or {"priority": 4, "durable": True, "size": 10, "address": "a"})


def verdict(text: str, headers: dict[str, Any] | None = None, /, **properties: Any) -> bool | None:
    """True, False or None: what a filter says of a message with these properties."""
    return parse_filter(text).verdict(message(headers, **properties))
