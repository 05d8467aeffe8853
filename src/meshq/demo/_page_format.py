"""A page of flights: a large message of many lines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from meshq.message import PropertyValue

#: Bytes of a body above which a message is large in the demo, at clients and between nodes.
LARGE_BYTES: Final = 10_240
#: The property with the number of a page, which no message of a single flight has.
PAGE: Final = "page"
FLIGHTS: Final = "flights"


def page_body(lines: Sequence[bytes]) -> bytes:
    """Return the body of a page."""
    return b"\n".join(lines)


def page_properties(number: int, lines: int) -> dict[str, PropertyValue]:
    """Return the properties of a page with so many flights."""
    return {PAGE: number, FLIGHTS: lines}


def page_id(number: int) -> bytes:
    """Return the duplicate id of a page."""
    return b"page %d" % number


def lines_of(body: bytes, properties: Mapping[str, PropertyValue], duplicate_id: bytes | None) -> list[bytes] | None:
    """Return the lines of a page; None: the parts of the message do not fit each other."""
    number, lines = properties.get(PAGE), body.split(b"\n")
    if not isinstance(number, int) or len(body) <= LARGE_BYTES:
        return None
    fits = properties == page_properties(number, len(lines)) and duplicate_id == page_id(number)
    return lines if fits else None
