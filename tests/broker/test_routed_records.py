"""The records of routed runs and of links: what is written is what is read, and nothing else is."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshq.broker.records import (
    RoutedRecord,
    RoutedTarget,
    RunRecord,
    decode_links,
    decode_routed,
    encode_links,
    encode_routed_head,
)
from meshq.errors import DamagedError
from meshq.wire import RunBytes, encode_run

U32, U64 = st.integers(0, 2**32 - 1), st.integers(0, 2**64 - 1)
NAMES = st.text(st.characters(codec="utf-8"), max_size=20)
LINKS = st.binary(min_size=16, max_size=16).filter(any)


@st.composite
def routed(draw: st.DrawFn) -> RoutedRecord:
    rows = draw(st.integers(1, 256))
    content = encode_run([draw(st.binary(max_size=3))] * rows)
    targets = []
    for _ in range(draw(st.integers(0, 5))):
        start = draw(st.integers(0, rows - 1))
        stop = draw(st.integers(start + 1, rows))
        part = range(start, stop, draw(st.integers(1, 256)))
        targets.append(RoutedTarget(draw(U32), draw(U64), part, tuple(draw(st.lists(U32, max_size=4)))))
    sent = RunRecord(draw(st.binary(min_size=16, max_size=16)), draw(U64), draw(U64), draw(NAMES), (), (), content)
    link = draw(st.just(b"") | LINKS)
    return RoutedRecord(link, draw(U64), draw(st.integers(1, 2**16 - 1)), sent, tuple(targets))


def payload_of(record: RoutedRecord) -> bytes:
    content = record.run.content
    return b"".join((encode_routed_head(record), content.table, bytes(content.body)))


def plain(record: RoutedRecord) -> RoutedRecord:
    content = record.run.content
    same = RunBytes(content.rows, bytes(content.table), content.base, bytes(content.body))
    return record._replace(run=record.run._replace(content=same))


@settings(max_examples=20)
@given(routed())
def test_a_routed_run_is_read_as_it_was_written(record: RoutedRecord) -> None:
    assert plain(decode_routed(payload_of(record))) == plain(record)


@settings(max_examples=20)
@given(routed(), st.data())
def test_a_routed_run_that_is_cut_short_or_goes_on_is_refused(record: RoutedRecord, data: st.DataObject) -> None:
    payload = payload_of(record)
    cut = data.draw(st.integers(0, len(payload) - 1))
    for damaged in (payload[:cut], payload + b"\0"):
        with pytest.raises(DamagedError):
            decode_routed(damaged)


@settings(max_examples=20)
@given(routed(), st.data())
def test_a_routed_run_with_changed_bytes_is_refused_or_another_readable_one(
    record: RoutedRecord, data: st.DataObject
) -> None:
    payload = bytearray(payload_of(record))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    try:
        found = decode_routed(bytes(payload))
    except DamagedError:
        return
    assert all(target.rows and target.rows[-1] < found.run.content.rows for target in found.targets)
    assert found.number_step >= 1


def target(queue: int, first: int, start: int, stop: int, step: int, *remote: int) -> bytes:
    return struct.pack(f"<IQHHHH{len(remote)}I", queue, first, start, stop, step, len(remote), *remote)


def raw(*targets: bytes, rows: int = 4, step: int = 1) -> bytes:
    content = encode_run([b"x"] * rows)
    head = struct.pack("<16sQH16sQQHHHH", b"l" * 16, 9, step, b"p" * 16, 1, 1, rows, len(targets), 0, 1)
    return b"".join((head, b"a", *targets, content.table, bytes(content.body)))


def test_the_bytes_of_a_routed_run_stay_what_they_are() -> None:
    found = decode_routed(raw(target(3, 7, 0, 4, 2), target(5, 1, 1, 4, 2, 8, 9)))
    assert (found.link, found.link_last, found.number_step) == (b"l" * 16, 9, 1)
    assert found.targets == (RoutedTarget(3, 7, range(0, 4, 2), ()), RoutedTarget(5, 1, range(1, 4, 2), (8, 9)))


@pytest.mark.parametrize(
    "damaged",
    [
        raw(target(3, 7, 0, 5, 1)),
        raw(target(3, 7, 4, 5, 1)),
        raw(target(3, 7, 2, 2, 1)),
        raw(target(3, 7, 3, 1, 1)),
        raw(target(3, 7, 0, 4, 0)),
        raw(target(3, 7, 0, 4, 1), step=0),
        raw(target(3, 7, 0, 4, 1)[:-2] + b"\xff\xff"),
        raw(rows=4)[:-1],
        b"",
    ],
)
def test_a_routed_run_that_no_node_writes_is_refused(damaged: bytes) -> None:
    with pytest.raises(DamagedError, match="a readable routed run record"):
        decode_routed(damaged)


@given(st.dictionaries(st.binary(min_size=16, max_size=16), U64, max_size=20))
def test_the_marks_of_links_are_read_as_they_were_written(marks: dict[bytes, int]) -> None:
    payload = encode_links(marks)
    assert decode_links(payload) == marks
    for damaged in (payload[:-1] if payload else b"x", payload + b"\0" * 23):
        with pytest.raises(DamagedError, match="a readable links record"):
            decode_links(damaged)
