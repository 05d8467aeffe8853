"""The former counts of forwarded messages: deliveries, returns and remaining delays."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from typing import Final

from meshq import limits
from meshq.wire._refusals import violation

# row, deliveries, certain returns
_COUNT: Final = struct.Struct("<HHH")
# row, ms that are left
_WAIT: Final = struct.Struct("<HQ")
#: Beyond that nobody counts.
_COUNT_MAX: Final = 2**16 - 1
#: As for users: nothing waits longer.
_WAIT_MS_MAX: Final = limits.TIME_S_MAX * 1_000


def encode_former(counts: Mapping[int, tuple[int, int]]) -> bytes:
    """Encode deliveries and certain returns, by row."""
    return b"".join(
        [
            _COUNT.pack(row, min(deliveries, _COUNT_MAX), min(returns, _COUNT_MAX))
            for row, (deliveries, returns) in sorted(counts.items())
        ]
    )


def encode_waits(waits: Mapping[int, int]) -> bytes:
    """Encode how long messages still wait, ms, by row."""
    return b"".join([_WAIT.pack(row, wait_ms) for row, wait_ms in sorted(waits.items())])


def decode_former(data: bytes, rows: int) -> dict[int, tuple[int, int]]:
    """Decode deliveries and certain returns of a run of ``rows`` messages.

    Raises:
        RemoteProtocolError: the counts are not those of different rows, in order.
    """
    if len(data) % _COUNT.size:
        raise violation("bad_header", f"{len(data)} bytes of delivery counts")
    found = list(_COUNT.iter_unpack(data))
    _check([row for row, _, _ in found], rows)
    if any(not deliveries or returns > deliveries for _, deliveries, returns in found):
        raise violation("bad_header", "a message that was returned more often than delivered, or never delivered")
    return {row: (deliveries, returns) for row, deliveries, returns in found}


def decode_waits(data: bytes, rows: int) -> dict[int, int]:
    """Decode how long messages of a run of ``rows`` messages still wait, ms.

    Raises:
        RemoteProtocolError: the times are not those of different rows, in order, or longer than any may be.
    """
    if len(data) % _WAIT.size:
        raise violation("bad_header", f"{len(data)} bytes of times for which messages wait")
    found = list(_WAIT.iter_unpack(data))
    _check([row for row, _ in found], rows)
    if any(wait_ms > _WAIT_MS_MAX for _, wait_ms in found):
        raise violation("bad_header", f"a message that waits longer than {_WAIT_MS_MAX} ms")
    return dict(found)


def _check(found: Iterable[int], rows: int) -> None:
    last = -1
    for row in found:
        if not last < row < rows:
            raise violation("bad_header", f"row {row} after row {last} of {rows}")
        last = row
