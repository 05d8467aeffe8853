"""The records of prepared transactions: what is written is read, and what is documented is written."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshq.broker.records import (
    ArrivingRecord,
    DecidedRecord,
    ElsewhereRecord,
    HandedRecord,
    PreparedRecord,
    SettledRow,
    WaitingRecord,
    decode_arrived,
    decode_arriving,
    decode_decided,
    decode_elsewhere,
    decode_handed,
    decode_prepared,
    decode_waiting,
    encode_arrived,
    encode_arriving,
    encode_decided,
    encode_elsewhere,
    encode_handed,
    encode_prepared,
    encode_waiting_head,
)
from meshq.errors import DamagedError
from meshq.wire import encode_run

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "transactions.md"
XID, USER = b"order-7", "app"
PREPARED = PreparedRecord(XID, USER, 1_700_000_000_000, (SettledRow(5, 12, 1, 4, 2),), 1)
WAITING = WaitingRecord(20, b"producer-16bytes", 3, 1_700_000_000_000, "out", None, encode_run([b"hi"]))
DECIDED = DecidedRecord(XID, USER, True)

ELSEWHERE = ElsewhereRecord(XID, USER, "tcp://b:1")

NUMBERS = st.integers(1, 2**63 - 1)
NAMES = st.text(max_size=20)
XIDS = st.binary(min_size=1, max_size=128)
ROWS = st.builds(
    lambda queue, position, start, more, step: SettledRow(queue, position, start, start + more, step),
    st.integers(1, 2**32 - 1),
    NUMBERS,
    st.integers(0, 200),
    st.integers(1, 56),
    st.integers(1, 2**16 - 1),
)


def whole(record: WaitingRecord) -> bytes:
    return encode_waiting_head(record) + bytes(record.content.table) + bytes(record.content.body)


def documented(kind: int) -> bytes:
    """The example of a kind, as bytes."""
    lines = re.findall(rf"^{kind}  ((?:[0-9a-f]{{2}} ?)+)$", PAGE.read_text(encoding="utf-8"), re.M)
    return bytes.fromhex(" ".join(lines))


def test_the_examples_of_the_page_are_what_is_written_and_read() -> None:
    assert documented(13) == encode_prepared(PREPARED)
    assert decode_prepared(documented(13)) == PREPARED
    assert documented(14) == whole(WAITING)
    assert decode_waiting(documented(14)) == WAITING
    assert documented(15) == encode_decided(DECIDED)
    assert decode_decided(documented(15)) == DECIDED


@given(
    st.builds(PreparedRecord, XIDS, NAMES, NUMBERS, st.lists(ROWS, max_size=5).map(tuple), st.integers(0, 2**32 - 1))
)
def test_what_is_prepared_is_read_as_it_was_written(record: PreparedRecord) -> None:
    assert decode_prepared(encode_prepared(record)) == record


@given(
    st.builds(
        WaitingRecord,
        NUMBERS,
        st.binary(min_size=16, max_size=16),
        NUMBERS,
        NUMBERS,
        NAMES,
        st.none() | st.text(min_size=1, max_size=20),
        st.lists(st.binary(max_size=20), min_size=1, max_size=5).map(encode_run),
    )
)
def test_what_waits_is_read_as_it_was_written(record: WaitingRecord) -> None:
    assert decode_waiting(whole(record)) == record


@given(st.builds(DecidedRecord, XIDS, NAMES, st.booleans()))
def test_what_was_decided_is_read_as_it_was_written(record: DecidedRecord) -> None:
    assert decode_decided(encode_decided(record)) == record


@pytest.mark.parametrize(
    ("decode", "payload"),
    [
        (decode_prepared, encode_prepared(PREPARED)),
        (decode_waiting, whole(WAITING)),
        (decode_decided, encode_decided(DECIDED)),
    ],
    ids=["prepared", "waiting", "decided"],
)
def test_a_record_that_is_cut_or_longer_can_not_be_read(decode: object, payload: bytes) -> None:
    ends = {len(payload) - 18} if decode is decode_prepared else set()
    for end in {*range(len(payload))} - ends:
        with pytest.raises(DamagedError, match="a readable"):
            decode(payload[:end])  # type: ignore[operator]
    with pytest.raises(DamagedError, match="a readable"):
        decode(payload + b"x")  # type: ignore[operator]


@given(
    st.builds(PreparedRecord, XIDS, NAMES, NUMBERS, st.lists(ROWS, max_size=5).map(tuple), st.just(0)),
    st.binary(min_size=16, max_size=16),
    st.integers(1, 2**32 - 1),
)
def test_a_transaction_between_nodes_is_read_as_it_was_written(record: PreparedRecord, link: bytes, queue: int) -> None:
    assert decode_arriving(encode_arriving(ArrivingRecord(link, record))) == ArrivingRecord(link, record)
    assert decode_handed(encode_handed(HandedRecord(queue, record))) == HandedRecord(queue, record)


@given(st.builds(ElsewhereRecord, XIDS, NAMES, NAMES), NUMBERS)
def test_what_is_decided_elsewhere_and_what_has_come_is_read_as_it_was_written(
    record: ElsewhereRecord, position: int
) -> None:
    assert decode_elsewhere(encode_elsewhere(record)) == record
    assert decode_arrived(encode_arrived(position)) == position


def test_the_example_of_a_transaction_that_is_elsewhere_is_what_is_written() -> None:
    assert documented(21) == encode_elsewhere(ELSEWHERE)


@pytest.mark.parametrize("decode", [decode_arriving, decode_arrived, decode_handed, decode_elsewhere])
@pytest.mark.parametrize("size", [0, 1, 3, 7, 9, 20])
def test_records_of_a_transaction_between_nodes_that_can_not_be_read_are_named(decode: Any, size: int) -> None:
    with pytest.raises(DamagedError, match="record"):
        decode(b"\xff" * size)
