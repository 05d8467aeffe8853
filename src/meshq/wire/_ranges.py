"""The rows of a SETTLE frame: ranges of delivery tags, both ends included."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from meshq.wire._frames import COUNTER_MAX, RANGE_ROW_BYTES
from meshq.wire._refusals import violation

_RANGE: Final = struct.Struct("<QQ")

assert _RANGE.size == RANGE_ROW_BYTES, "a row is one range"


def encode_ranges(ranges: Iterable[tuple[int, int]]) -> bytes:
    """Encode the table of a SETTLE frame."""
    return b"".join([_RANGE.pack(first, last) for first, last in ranges])


def decode_ranges(table: bytes | memoryview) -> list[tuple[int, int]]:
    """Decode the ranges of a SETTLE frame's table, in the order given; the queue checks the tags.

    Raises:
        RemoteProtocolError: there is no range, or one of them is none: tags begin at 1, and rise.
    """
    ranges: list[tuple[int, int]] = list(_RANGE.iter_unpack(table))
    if not ranges:
        raise violation("bad_table", "SETTLE without ranges")
    for first, last in ranges:
        if not 0 < first <= last <= COUNTER_MAX:
            raise violation("bad_table", f"the tags from {first} to {last} are no range")
    return ranges
