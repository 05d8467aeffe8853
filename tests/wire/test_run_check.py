"""Checking a run from a peer: every check of a plain loop over the rows, and the same answer."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.errors import RemoteProtocolError
from meshq.wire import (
    KIND_CONTROL,
    KIND_HEADERS,
    KIND_ID,
    KIND_PLAIN,
    KIND_PRIORITY,
    PLAIN,
    Envelope,
    RunBytes,
    check_run,
    cut,
    encode_run,
)
from tests.wire.test_run import Made, encoded, kinds_of, runs

Rows = list[list[int]]


def by_a_loop(run: RunBytes) -> int | str:
    """The same checks, row by row: the answer, or the name of the refusal."""
    if not 0 < run.rows <= 256 or len(run.table) != run.rows * 20 or not 0 <= run.base <= limits.BODY_BYTES_MAX:
        return "bad_table"
    union, start, too_large = 0, run.base, False
    for kind, *ends in struct.iter_unpack("<5I", run.table):
        if kind & ~0xF07 or kind >> 8 > 9 or max(ends) >= 2**31 or [start, *ends] != sorted([start, *ends]):
            return "bad_table"
        sizes = [end - before for before, end in zip([start, *ends], ends, strict=False)]
        too_large |= sizes[0] > 255 or sizes[1] + sizes[2] > 64 * 1024 or sizes[3] > 16 * 1024 * 1024
        if not too_large and [bool(size) for size in sizes[:3]] != [bool(kind & bit) for bit in (1, 2, 4)]:
            return "bad_table"
        start = ends[3]
        union |= kind | (0 if kind >> 8 == 4 else KIND_PRIORITY)
    if start - run.base != len(run.body):
        return "bad_table"
    return "too_large" if too_large else union


def answer(run: RunBytes) -> int | str:
    try:
        return check_run(run)
    except RemoteProtocolError as error:
        return error.refusal


def rows_of(run: RunBytes) -> Rows:
    return [list(row) for row in struct.iter_unpack("<5I", run.table)]


def of_rows(rows: Rows, body: bytes, base: int = 0) -> RunBytes:
    return RunBytes(len(rows), b"".join(struct.pack("<5I", *row) for row in rows), base, body)


words = st.one_of(
    st.integers(0, 300),
    st.integers(0, 2**32 - 1),
    st.sampled_from([2**31 - 1, 2**31, 2**32 - 1, 0x400, 0x401, 0x407, 0x408, 0x900, 0xA00, 0x1400, 255, 256]),
)
#: Which row, which word of it, and what becomes of that: another value, or one nearby.
changes = st.lists(st.tuples(st.integers(0, 255), st.integers(0, 4), words, st.booleans()), min_size=1, max_size=3)


@pytest.mark.slow
@given(runs, changes, st.integers(0, 255))
def test_a_run_with_words_changed_gets_the_answer_of_a_loop(made: list[Made], todo: Any, start: int) -> None:
    whole = encoded(made)
    run = cut(whole, start % whole.rows, whole.rows)
    rows = rows_of(run)
    for row, word, value, near in todo:
        old = rows[row % len(rows)][word]
        rows[row % len(rows)][word] = (old + value % 5 - 2) % 2**32 if near else value
    changed = of_rows(rows, run.body, run.base)
    assert answer(changed) == by_a_loop(changed)


@given(st.integers(1, 256), st.binary(max_size=40), changes)
def test_a_table_of_nonsense_gets_the_answer_of_a_loop(count: int, body: bytes, todo: Any) -> None:
    rows = [[KIND_PLAIN, 0, 0, 0, 0] for _ in range(count)]
    for row, word, value, _ in todo:
        rows[row % count][word] = value
    run = of_rows(rows, body)
    assert answer(run) == by_a_loop(run)


@pytest.mark.parametrize("count", [1, 2, 7, 8, 9, 47, 48, 49, 255, 256])
def test_every_single_word_of_every_row_counts(count: int) -> None:
    made = [Made(b"body", b"id", b"hh", b"ppp", 4)] * count
    run = encoded(made)
    assert check_run(run) == kinds_of(made)
    rows = rows_of(run)
    for index in {0, 1 % count, count // 2, count - 1}:
        for word in range(5):
            for value in (0, rows[index][word] + 20, rows[index][word] ^ 8, 2**31, 2**32 - 1):
                other = [list(row) for row in rows]
                if other[index][word] != value:
                    other[index][word] = value
                    changed = of_rows(other, run.body)
                    assert answer(changed) == by_a_loop(changed) == "bad_table", (count, index, word, value)


@pytest.mark.parametrize("count", [1, 2, 8, 9, 48, 49, 256])
@pytest.mark.parametrize("priority", range(16))
def test_priorities_go_up_to_nine(count: int, priority: int) -> None:
    rows = [[KIND_PLAIN, 0, 0, 0, 0] for _ in range(count)]
    rows[-1][0] = priority << 8
    union = priority << 8 | (KIND_PLAIN if count > 1 else 0)
    expected = union if priority == 4 else union | KIND_PRIORITY
    assert answer(of_rows(rows, b"")) == ("bad_table" if priority > 9 else expected)


def test_all_plain_is_told_from_a_priority_that_adds_no_bits() -> None:
    # 0 or-ed with the default 4 is 4.
    assert check_run(encode_run([b"a", b"b"], [PLAIN, Envelope(0, b"", b"", b"")])) == KIND_PLAIN | KIND_PRIORITY
    assert check_run(encode_run([b"a", b"b"])) == KIND_PLAIN


@pytest.mark.parametrize("other", [0, 3, 30, 200])
def test_each_part_of_the_largest_size_is_taken_and_one_byte_more_is_not(other: int) -> None:
    mib16, kib64 = limits.MESSAGE_BYTES_MAX, limits.ENVELOPE_BYTES_MAX
    small = [[KIND_PLAIN, 0, 0, 0, 0] for _ in range(other)]

    def sized(kind: int, *sizes: int) -> RunBytes:
        ends = [sum(sizes[: index + 1]) for index in range(4)]
        return of_rows([*small, [KIND_PLAIN | kind, *ends]], bytes(ends[-1]))

    assert answer(sized(1, 255, 0, 0, 0)) == KIND_PLAIN | 1
    assert answer(sized(1, 256, 0, 0, 0)) == "too_large"
    assert answer(sized(2, 0, kib64, 0, 0)) == KIND_PLAIN | 2
    assert answer(sized(2, 0, kib64 + 1, 0, 0)) == "too_large"
    assert answer(sized(4, 0, 0, kib64, 0)) == KIND_PLAIN | 4
    assert answer(sized(4, 0, 0, kib64 + 1, 0)) == "too_large"
    assert answer(sized(6, 0, kib64 - 7, 7, 0)) == KIND_PLAIN | 6
    assert answer(sized(6, 0, kib64 - 7, 8, 0)) == "too_large"
    assert answer(sized(6, 0, 1, kib64, 0)) == "too_large"
    assert answer(sized(0, 0, 0, 0, mib16)) == KIND_PLAIN
    assert answer(sized(0, 0, 0, 0, mib16 + 1)) == "too_large"
    assert answer(sized(7, 255, kib64 - 1, 1, mib16)) == KIND_PLAIN | 7


def test_one_message_with_everything_of_the_largest_size_fits_a_frame() -> None:
    envelope = Envelope(KIND_PLAIN | 7, bytes(255), bytes(1_000), bytes(limits.ENVELOPE_BYTES_MAX - 1_000))
    run = encode_run([bytes(limits.MESSAGE_BYTES_MAX)], [envelope])
    assert check_run(run) == KIND_PLAIN | 7
    assert len(run.body) <= limits.BODY_BYTES_MAX


@pytest.mark.parametrize(
    "run",
    [
        RunBytes(0, b"", 0, b""),
        RunBytes(257, bytes(257 * 20), 0, b""),
        RunBytes(1, bytes(19), 0, b""),
        RunBytes(2, bytes(20), 0, b""),
        RunBytes(1, bytes(40), 0, b""),
        encode_run([b"a"])._replace(base=-1),
        encode_run([b"a"])._replace(base=1),
        encode_run([b"a", b"b"])._replace(base=limits.BODY_BYTES_MAX + 1),
        encode_run([b"a", b"b"])._replace(body=b"a"),
        encode_run([b"a", b"b"])._replace(body=b"abc"),
        encode_run([b"a"])._replace(body=b""),
        encode_run([b"a"] * 9)._replace(base=3),
    ],
)
def test_a_run_that_does_not_fit_its_own_numbers_is_refused(run: RunBytes) -> None:
    assert answer(run) == by_a_loop(run) == "bad_table"


def test_a_part_counts_from_its_base() -> None:
    run = encode_run([b"aa", b"bb", b"cc"], [Envelope(KIND_PLAIN | KIND_ID, b"i", b"", b"")] * 3)
    part = cut(run, 1, 3)
    assert check_run(part) == KIND_PLAIN | KIND_ID
    for base in (0, part.base - 1, part.base + 1):
        assert answer(part._replace(base=base)) == "bad_table"
    one = cut(run, 2, 3)
    assert check_run(one) == KIND_PLAIN | KIND_ID
    assert answer(one._replace(base=one.base + 1)) == "bad_table"


@pytest.mark.parametrize("rows", [1, 2])
def test_what_stands_in_headers_is_not_there_without_headers(rows: int) -> None:
    def run(kind: int, headers: int) -> RunBytes:
        ends = [(number * (headers + 1), (number + 1) * (headers + 1)) for number in range(rows)]
        table = b"".join(
            struct.pack("<5I", kind | 4 << 8, start, start + headers, start + headers, end) for start, end in ends
        )
        return RunBytes(rows, table, 0, bytes(rows * (headers + 1)))

    assert check_run(run(KIND_CONTROL | KIND_HEADERS, 1)) & KIND_CONTROL
    assert answer(run(KIND_CONTROL, 0)) == "bad_table"
