"""Ranges of delivery tags: the rows of a SETTLE frame."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq.errors import RemoteProtocolError
from meshq.wire import COUNTER_MAX, RANGE_ROW_BYTES, decode_ranges, encode_ranges

ranges = st.tuples(st.integers(1, 10**6), st.integers(0, 10**6)).map(lambda pair: (pair[0], pair[0] + pair[1]))


@pytest.mark.slow
@given(st.lists(ranges, min_size=1, max_size=50))
def test_ranges_come_back_in_the_order_given(given_ranges: list[tuple[int, int]]) -> None:
    table = encode_ranges(given_ranges)
    assert len(table) == len(given_ranges) * RANGE_ROW_BYTES
    assert decode_ranges(table) == decode_ranges(memoryview(table)) == given_ranges


def test_the_first_and_the_last_possible_tag_make_a_range() -> None:
    assert decode_ranges(struct.pack("<QQ", 1, COUNTER_MAX)) == [(1, COUNTER_MAX)]


@pytest.mark.parametrize("pair", [(0, 0), (0, 5), (2, 1), (1, COUNTER_MAX + 1), (2**64 - 1, 2**64 - 1)])
def test_what_is_no_range_is_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_ranges(struct.pack("<QQQQ", 1, 1, *pair))
    assert caught.value.refusal == "bad_table"


def test_settling_nothing_is_refused() -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        decode_ranges(b"")
    assert caught.value.refusal == "bad_table"
