"""Runs: what is encoded comes back, whole, in parts, in parts of parts and picked out."""

from __future__ import annotations

import struct
from array import array
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.errors import InvariantError
from meshq.wire import (
    KIND_HEADERS,
    KIND_ID,
    KIND_PLAIN,
    KIND_PRIORITY,
    KIND_PROPERTIES,
    PLAIN,
    PRIORITY_SHIFT,
    RUN_ROW_BYTES,
    Envelope,
    RunBytes,
    RunView,
    check_run,
    cut,
    duplicate_ids,
    encode_bodies,
    encode_columns,
    encode_one,
    encode_run,
    has_ids,
    pick,
)


class Made(NamedTuple):
    """A message as it goes into a run."""

    body: bytes
    duplicate_id: bytes
    headers: bytes
    properties: bytes
    priority: int

    @property
    def envelope(self) -> Envelope:
        kind = (
            (KIND_ID if self.duplicate_id else 0)
            | (KIND_HEADERS if self.headers else 0)
            | (KIND_PROPERTIES if self.properties else 0)
            | self.priority << PRIORITY_SHIFT
        )
        return Envelope(kind, self.duplicate_id, self.headers, self.properties)


part = st.one_of(st.just(b""), st.binary(max_size=8))
messages = st.builds(Made, part, part, part, part, st.sampled_from([4, 4, 4, 0, 9]))
#: A few messages, of every kind; many, of a handful of kinds.
some = st.lists(messages, min_size=1, max_size=12)
many = st.builds(
    lambda kinds, size: [kinds[index * index % len(kinds)] for index in range(size)], some, st.integers(1, 256)
)
runs = st.one_of(some, many)


def encoded(made: list[Made]) -> RunBytes:
    return encode_run([message.body for message in made], [message.envelope for message in made])


def read(run: RunBytes) -> list[Made]:
    """All the messages of a run, by the readers of single messages."""
    view = RunView(run)
    found = []
    for index in range(run.rows):
        priority = view.priority(index)
        body = view.body(index)
        assert view.size(index) == len(body)
        assert all(type(data) is bytes for data in (body, view.properties(index), view.headers(index)))
        found.append(Made(body, view.duplicate_id(index), view.headers(index), view.properties(index), priority))
    assert duplicate_ids(run) == [message.duplicate_id for message in found]
    return found


def kinds_of(made: list[Made]) -> int:
    """What checking this run should say of its kinds."""
    union = 0
    for message in made:
        union |= message.envelope.kind | (KIND_PRIORITY if message.priority != limits.PRIORITY_DEFAULT else 0)
    return union


@pytest.mark.slow
@given(runs)
def test_what_is_encoded_comes_back(made: list[Made]) -> None:
    run = encoded(made)
    assert (run.rows, run.base) == (len(made), 0)
    assert read(run) == made
    assert check_run(run) == kinds_of(made)


@pytest.mark.slow
@given(st.lists(part, min_size=1, max_size=256))
def test_plain_messages_are_the_same_with_and_without_envelopes(bodies: list[bytes]) -> None:
    run = encode_run(bodies)
    assert run == encode_run(bodies, [PLAIN] * len(bodies))
    assert check_run(run) == KIND_PLAIN
    assert [message.body for message in read(run)] == bodies


@pytest.mark.slow
@given(messages)
def test_one_message_is_encoded_as_a_run_of_one(message: Made) -> None:
    run = encode_one(message.body, message.envelope)
    assert run == encoded([message])
    assert check_run(run) == kinds_of([message])
    assert encode_one(message.body) == encode_run([message.body])
    assert encode_one(message.body, tuple(message.envelope)) == run


@pytest.mark.slow
@given(runs, st.data())
def test_every_part_of_a_run_and_of_its_parts_has_its_messages(made: list[Made], data: st.DataObject) -> None:
    run = encoded(made)
    low, high = 0, len(made)
    for _ in range(3):
        start = data.draw(st.integers(0, run.rows - 1))
        stop = data.draw(st.integers(start + 1, run.rows))
        run = cut(run, start, stop)
        low, high = low + start, low + stop
        assert run.rows == high - low
        assert run.base == sum(sum(map(len, message[:4])) for message in made[:low])
        assert read(run) == made[low:high]
        assert check_run(run) == kinds_of(made[low:high])


@pytest.mark.slow
@given(runs, st.data())
def test_messages_picked_from_a_run_or_a_part_of_it_are_a_run_of_their_own(
    made: list[Made], data: st.DataObject
) -> None:
    start = data.draw(st.integers(0, len(made) - 1))
    stop = data.draw(st.integers(start + 1, len(made)))
    part_of_it = cut(encoded(made), start, stop)
    indexes = data.draw(st.lists(st.integers(0, stop - start - 1), min_size=1, max_size=20))
    picked = [made[start + index] for index in indexes]
    # The very bytes that encoding them alone would have made.
    assert pick(part_of_it, indexes) == encoded(picked)


@pytest.mark.parametrize("step", [1, 2, 3, 255])
def test_every_so_many_messages_are_picked(step: int) -> None:
    made = [Made(bytes(index % 5), b"%d" % index, b"h", b"", 4) for index in range(256)]
    run = cut(encoded(made), 1, 256)
    indexes = range(0, 255, step)
    assert read(pick(run, indexes)) == made[1::step]


def test_a_run_may_be_a_view_of_something_larger() -> None:
    made = [Made(b"body", b"id", b"", b"pp", 4)] * 5
    run = encoded(made)
    large = memoryview(b"before" + run.table + run.body + b"after")
    table, body = large[6 : 6 + len(run.table)], large[6 + len(run.table) : -5]
    viewed = RunBytes(5, table, 0, body)  # type: ignore[arg-type]
    assert check_run(viewed) == kinds_of(made)
    assert read(viewed) == made
    assert read(cut(viewed, 1, 3)) == made[1:3]
    assert pick(viewed, [4, 0]) == encoded(made[:2])


def test_a_whole_run_is_its_own_part() -> None:
    run = encode_run([b"a", b"b"])
    assert cut(run, 0, 2) is run


def test_a_part_shares_its_rows_with_the_run() -> None:
    run = encode_run([b"aa", b"bb", b"cc"])
    assert cut(run, 1, 3) == RunBytes(2, run.table[RUN_ROW_BYTES:], 2, b"bbcc")


@pytest.mark.parametrize(("start", "stop"), [(0, 0), (1, 1), (2, 1), (-1, 1), (0, 3), (2, 3)])
def test_a_part_has_messages_of_the_run(start: int, stop: int) -> None:
    with pytest.raises(InvariantError):
        cut(encode_run([b"a", b"b"]), start, stop)


def test_nothing_is_no_run() -> None:
    for attempt in (lambda: encode_run([]), lambda: encode_run([b""] * 257), lambda: pick(encode_run([b"a"]), [])):
        with pytest.raises(InvariantError):
            attempt()


def test_256_messages_are_a_run() -> None:
    run = encode_run([b"x"] * 256)
    assert (run.rows, len(run.table), len(run.body)) == (256, 256 * RUN_ROW_BYTES, 256)


def test_a_body_without_its_envelope_is_a_defect_of_ours() -> None:
    with pytest.raises(ValueError, match="zip"):
        encode_run([b"a", b"b"], [PLAIN])


def test_the_rows_of_a_run_are_what_the_format_says() -> None:
    run = encode_run([b"ab", b"c"], [Envelope(KIND_PLAIN | KIND_ID | KIND_PROPERTIES, b"id", b"", b"{}"), PLAIN])
    assert struct.unpack("<10I", run.table) == (0x405, 2, 2, 4, 6, 0x400, 6, 6, 6, 7)
    assert run.body == b"id{}abc"


def test_the_columns_of_a_view_are_read_once() -> None:
    view = RunView(encode_run([b"a", b"b"]))
    view.body(0)
    data, starts, ends = view.data, view.starts, view.ends
    view.properties(1)
    columns = view._columns
    view.properties(0), view.headers(1), view.duplicate_id(1), view.priority(1), view.size(1)
    assert view._columns is columns
    view.body(1)
    assert view.data is data and view.starts is starts and view.ends is ends


def test_plain_bodies_are_encoded_as_a_run_of_messages() -> None:
    assert encode_bodies(array("I", [1, 1, 4]), b"abbb") == encode_run([b"a", b"", b"bbb"])


def test_columns_that_count_from_elsewhere_are_encoded_as_a_run_of_messages() -> None:
    rows = [Envelope(KIND_PLAIN | KIND_ID, b"id", b"", b""), PLAIN]
    whole = encode_run([b"aa", b"b"], rows)
    kinds = array("I", [row.kind for row in rows]).tobytes()
    ends = [array("I", column).tobytes() for column in ([12, 14], [12, 14], [12, 14], [14, 15])]
    assert encode_columns(kinds, ends, 10, b"idaab") == whole
    assert RunView(whole).has_ids() and not RunView(encode_run([b"a"])).has_ids()


def test_the_offsets_of_bodies_are_known_where_nothing_stands_between_them() -> None:
    def offsets(run: RunBytes, start: int, end: int) -> list[int] | None:
        found = RunView(run).body_offsets(start, end)
        return None if found is None else memoryview(found).cast("I").tolist()

    run = encode_run([b"a", b"bb", b"", b"dddd"])
    assert offsets(run, 0, 4) == [0, 1, 3, 3, 7]
    assert offsets(run, 1, 3) == [1, 3, 3]
    assert offsets(cut(run, 1, 4), 0, 3) == [0, 2, 2, 6]
    named = encode_run([b"a", b"b"], [Envelope(KIND_ID, b"1", b"", b""), Envelope(KIND_ID, b"2", b"", b"")])
    assert offsets(named, 0, 2) is None and offsets(named, 1, 2) == [3, 4]
    assert not RunView(named).has_properties(0, 2)
    kept = encode_run([b"a", b"b"], [Envelope(0, b"", b"", b""), Envelope(KIND_PROPERTIES, b"", b"", b"\x80")])
    assert RunView(kept).has_properties(0, 2) and not RunView(kept).has_properties(0, 1)


@pytest.mark.parametrize("size", [1, 16])
def test_a_table_tells_whether_any_message_has_a_duplicate_id(size: int) -> None:
    plain, known = (b"body", PLAIN), (b"body", Envelope(KIND_ID, bytes(size), b"", b""))
    other = (b"body", Envelope(KIND_HEADERS, b"", bytes(size), b""))
    for made, expected in (([plain, other, plain], False), ([other, known], True), ([known, plain], True)):
        run = encode_run([body for body, _ in made], [envelope for _, envelope in made])
        assert has_ids(bytes(run.table)) is expected


@pytest.mark.parametrize("parts", [(b"i", b"", b""), (b"", b"hh", b""), (b"", b"", b"ppp"), (b"i", b"hh", b"ppp")])
def test_one_message_with_some_parts_is_encoded_as_it_is_among_others(parts: tuple[bytes, bytes, bytes]) -> None:
    kind = sum(bit for bit, part in zip((KIND_ID, KIND_HEADERS, KIND_PROPERTIES), parts, strict=True) if part)
    envelope = Envelope(kind | 4 << PRIORITY_SHIFT, *parts)
    run = encode_one(b"body", envelope)
    assert run == encode_run([b"body"], [envelope])
    view = RunView(run)
    assert (view.duplicate_id(0), view.headers(0), view.properties(0), view.body(0)) == (*parts, b"body")


def test_a_part_of_a_part_has_the_bytes_of_its_messages_and_no_more() -> None:
    bodies = [b"first", b"2", b"", b"fourth", b"5"]
    part = cut(encode_run(bodies), 1, 5)
    for start in range(4):
        for stop in range(start + 1, 5):
            inner = cut(part, start, stop)
            assert bytes(inner.body) == b"".join(bodies[1 + start : 1 + stop])
            assert [RunView(inner).body(index) for index in range(inner.rows)] == bodies[1 + start : 1 + stop]
