"""What was counted of forwarded messages before: the rows that a peer may name, and the numbers that it may say."""

from __future__ import annotations

import struct

import pytest

from meshq import limits
from meshq.errors import RemoteProtocolError
from meshq.wire import decode_former, decode_waits, encode_former, encode_waits


def test_counts_and_times_come_back_as_they_were_encoded() -> None:
    counts = {3: (2, 2), 0: (1, 0)}
    assert decode_former(encode_former(counts), 4) == counts
    assert encode_former({0: (70_000, 65_536)}) == struct.pack("<HHH", 0, 65_535, 65_535)
    waits = {1: 0, 2: limits.TIME_S_MAX * 1_000}
    assert decode_waits(encode_waits(waits), 3) == waits


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        pytest.param([(0, 0, 0)], "never delivered", id="never delivered"),
        pytest.param([(0, 1, 0), (1, 1, 2)], "more often than delivered", id="returned too often"),
        pytest.param([(1, 1, 0), (0, 1, 0)], "row 0 after row 1 of 2", id="out of order"),
        pytest.param([(1, 1, 0), (1, 1, 0)], "row 1 after row 1 of 2", id="twice"),
        pytest.param([(2, 1, 0)], "row 2 after row -1 of 2", id="no row of the run"),
    ],
)
def test_counts_that_nobody_can_have_are_refused(rows: list[tuple[int, int, int]], said: str) -> None:
    with pytest.raises(RemoteProtocolError, match=said):
        decode_former(b"".join(struct.pack("<HHH", *row) for row in rows), 2)


def test_times_that_are_too_long_and_pieces_of_rows_are_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="waits longer than"):
        decode_waits(encode_waits({0: limits.TIME_S_MAX * 1_000 + 1}), 1)
    with pytest.raises(RemoteProtocolError, match="7 bytes of delivery counts"):
        decode_former(bytes(7), 1)
    with pytest.raises(RemoteProtocolError, match="11 bytes of times"):
        decode_waits(bytes(11), 1)
