"""Records: what is written is read back, and what could not have been written is refused."""

from __future__ import annotations

import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshq import limits
from meshq.broker import records
from meshq.errors import DamagedError
from meshq.store import JournalRecord
from meshq.wire import Binding, encode_map, encode_run
from tests.broker.kit import make_core

NUMBERS = st.integers(0, 2**63 - 1)
PRINTABLE = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
NAMES = st.text(PRINTABLE, min_size=1, max_size=40)
DECODERS: dict[str, Callable[[bytes], Any]] = {
    "run": records.decode_run,
    "settled": records.decode_settled,
    "ids": records.decode_ids,
    "definition": records.decode_definition,
    "marks": records.decode_marks,
    "producers": records.decode_producers,
}


@st.composite
def runs(draw: st.DrawFn) -> records.RunRecord:
    bodies = draw(st.lists(st.binary(max_size=20), min_size=1, max_size=8))
    steps = draw(st.lists(st.integers(1, 5), max_size=4))
    targets = tuple(
        records.RunTarget(draw(st.integers(1, 2**32 - 1)), draw(NUMBERS), draw(st.integers(0, step - 1)), step)
        for step in steps
    )
    skipped = tuple(sorted(draw(st.sets(st.integers(0, len(bodies) - 1)))))
    producer = draw(st.binary(min_size=16, max_size=16))
    return records.RunRecord(producer, draw(NUMBERS), draw(NUMBERS), draw(NAMES), targets, skipped, encode_run(bodies))


def encoded_run(record: records.RunRecord) -> bytes:
    return records.encode_run_head(record) + record.content.table + bytes(record.content.body)


@pytest.mark.slow
@given(runs())
def test_a_run_is_read_back(record: records.RunRecord) -> None:
    assert records.decode_run(encoded_run(record)) == record


@pytest.mark.slow
@given(runs(), st.data())
def test_a_run_that_is_cut_or_has_more_is_refused(record: records.RunRecord, data: st.DataObject) -> None:
    payload = encoded_run(record)
    cut = data.draw(st.integers(0, len(payload) - 1))
    for wrong in (payload[:cut], payload + b"x"):
        with pytest.raises(DamagedError):
            records.decode_run(wrong)


def test_a_run_without_messages_or_with_too_many_is_refused() -> None:
    good = encoded_run(records.RunRecord(b"p" * 16, 1, 1, "q", (), (), encode_run([b"x"])))
    for rows in (b"\0\0", b"\1\1"):
        with pytest.raises(DamagedError):
            records.decode_run(good[:32] + rows + good[34:])


def test_a_target_or_a_skipped_row_outside_its_run_is_refused() -> None:
    content = encode_run([b"x", b"y"])
    for targets, skipped in (
        ((records.RunTarget(1, 1, 2, 2),), ()),
        ((records.RunTarget(1, 1, 0, 0),), ()),
        ((), (2,)),
    ):
        with pytest.raises(DamagedError):
            records.decode_run(encoded_run(records.RunRecord(b"p" * 16, 1, 1, "q", targets, skipped, content)))


SPANS = st.builds(
    lambda queue, position, start, rows, step: records.SettledRow(queue, position, start, start + rows, step),
    st.integers(0, 2**32 - 1),
    NUMBERS,
    st.integers(0, 128),
    st.integers(1, 128),
    st.integers(1, 256),
)


@given(st.lists(SPANS, max_size=5))
def test_settled_rows_are_read_back(rows: list[records.SettledRow]) -> None:
    assert records.decode_settled(records.encode_settled(rows)) == rows


@pytest.mark.parametrize("row", [(1, 1, 3, 3, 1), (1, 1, 0, 257, 1), (1, 1, 0, 1, 0)])
def test_settled_rows_that_are_none_are_refused(row: tuple[int, int, int, int, int]) -> None:
    with pytest.raises(DamagedError):
        records.decode_settled(records.encode_settled([records.SettledRow(*row)]))


@given(NUMBERS, NAMES, st.lists(st.binary(min_size=1, max_size=255), max_size=6))
def test_duplicate_ids_are_read_back(origin: int, address: str, ids: list[bytes]) -> None:
    payload = records.encode_ids(origin, address, ids)
    assert records.decode_ids(payload) == (origin, address, tuple(ids))
    with pytest.raises(DamagedError):
        records.decode_ids(payload + b"x")


@given(st.integers(0, 2**32 - 1), NUMBERS, st.dictionaries(st.integers(0, 9), NUMBERS))
def test_marks_are_read_back(queue: int, given_mark: int, delivered: dict[int, int]) -> None:
    found = records.decode_marks(records.encode_marks(queue, given_mark, delivered))
    assert found == (queue, given_mark, {4: 0, **delivered})


PRODUCER_IDS = st.binary(min_size=16, max_size=16)


@given(
    st.builds(
        records.ProducersRecord,
        st.booleans(),
        st.lists(st.tuples(PRODUCER_IDS, NUMBERS), max_size=5).map(tuple),
        st.lists(st.tuples(PRODUCER_IDS, NUMBERS, NUMBERS), max_size=5).map(tuple),
    )
)
def test_producers_are_read_back(record: records.ProducersRecord) -> None:
    payload = records.encode_producers(record)
    assert records.decode_producers(payload) == record
    with pytest.raises(DamagedError):
        records.decode_producers(payload + b"x" * 24)


@pytest.mark.parametrize(
    "values",
    [
        {"kind": "address", "name": "a", "routing": "anycast"},
        {"kind": "queue", "name": "q", "address": "a", "number": 7},
        {"kind": "numbers", "last": 7},
        {"kind": "divert", "name": "d", "address": "a", "forwarding_address": "b"},
    ],
)
def test_definitions_are_read_back_and_nothing_else_is_one(values: dict[str, Any]) -> None:
    assert records.decode_definition(encode_map(values)).items() >= values.items()
    missing = dict(list(values.items())[:-1])
    for wrong in ({**values, "more": 1}, missing, {**values, "kind": "other"}, {**values, "kind": 7}, {}):
        with pytest.raises(DamagedError):
            records.decode_definition(encode_map(wrong))
    with pytest.raises(DamagedError):
        records.decode_definition(encode_map({**values, list(values)[-1]: b"x"}))


def test_what_a_definition_leaves_out_is_as_it_is_by_default_and_is_not_written() -> None:
    old = {"kind": "queue", "name": "q", "address": "a", "number": 7}
    read = records.decode_definition(encode_map(old))
    assert read == {
        **old,
        **dict.fromkeys(("paused", "on_use"), False),
        **dict.fromkeys(("subscription", "filter", "routes", "wanted", "holder"), ""),
    }
    assert records.encode_definition(read) == encode_map(old)
    paused = {**read, "paused": True}
    assert records.decode_definition(records.encode_definition(paused)) == paused
    with pytest.raises(DamagedError):
        records.decode_definition(encode_map({**old, "paused": 1}))


@pytest.mark.parametrize("kind", list(DECODERS))
@given(payload=st.binary(max_size=120))
def test_garbage_is_a_record_or_damage_and_nothing_else(kind: str, payload: bytes) -> None:
    try:
        DECODERS[kind](payload)
    except DamagedError as error:
        assert error.file == "journal"


@pytest.mark.parametrize(
    ("kind", "payload", "expected"),
    [
        (99, b"", "a kind from 2, 3, 4, 5, 6, 7"),
        (
            records.DEFINITION,
            records.encode_definition({"kind": "queue", "name": "q", "address": "a", "number": 1}),
            "the address of each queue",
        ),
    ],
)
def test_a_record_that_cannot_stand_in_a_journal_is_damage(kind: int, payload: bytes, expected: str) -> None:
    with pytest.raises(DamagedError, match=expected):
        make_core().recovery().take([JournalRecord(1, kind, payload)])


def test_rows_settled_beyond_their_run_are_damage() -> None:
    address = records.encode_definition({"kind": "address", "name": "q", "routing": "anycast"})
    queue = records.encode_definition({"kind": "queue", "name": "q", "address": "q", "number": 1})
    run = records.RunRecord(b"p" * 16, 1, 1, "q", (records.RunTarget(1, 1, 0, 1),), (), encode_run([b"x"]))
    settled = records.encode_settled([records.SettledRow(1, 3, 0, 2, 1)])
    journal = [
        JournalRecord(1, records.DEFINITION, address),
        JournalRecord(2, records.DEFINITION, queue),
        JournalRecord(3, records.RUN, encoded_run(run)),
        JournalRecord(4, records.SETTLED, settled, refs=(3,), tombstone=True),
    ]
    make_core().recovery().take(journal[:3])
    with pytest.raises(DamagedError, match="row 2"):
        make_core().recovery().take(journal)


def test_what_other_nodes_have_stands_in_definitions_as_the_page_says() -> None:
    page = (Path(__file__).parents[2] / "docs/formats/definitions-of-peers.md").read_text(encoding="utf-8")
    found = bytes.fromhex("".join(page.split("```text\n")[1].split("```")[0].split()))
    peer = {"kind": "peer", "queue": 7, "connector": "tcp://b:500", "left": True, "store": b"", "turn": 0, "link": b""}
    binding = {
        "kind": "binding",
        "queue": 7,
        "number": 2,
        "name": "q",
        "address": "q",
        "routing": "anycast",
        "filter": "",
        "turn": 0,
    }
    renumbered = {"kind": "renumbered", "queue": 7, "turn": 1, "last": 300, "numbers": struct.pack("<II", 2, 5)}
    anew = {**peer, "left": False, "store": b"s" * 16, "turn": 1}
    said = [peer, binding, renumbered, anew]
    encoded = [records.encode_definition(values) for values in said]
    assert found == b"".join(encoded)
    # What a binding says only of a queue that is further away, or not durable, is read back as if it were said; and so
    # is what a peer says only that had handed over to a successor.
    near = {"relay": 0, "path": "", "node_name": "", "durable": True}
    read = [{"over": False, **peer}, {**near, **binding}, renumbered, {"over": False, **anew}]
    assert [records.decode_definition(payload) for payload in encoded] == read
    with pytest.raises(DamagedError):
        records.decode_definition(encode_map({**peer, "left": 1}))


def test_a_queue_of_a_further_node_is_read_back_although_its_names_fill_a_header() -> None:
    ids = tuple(f"{number:032x}" for number in range(14))
    told = Binding(
        queue=2**32 - 1,
        name=f"{'a' * 512}::{'n' * 200}",
        address="a" * 512,
        routing="multicast",
        filter="f" * limits.FILTER_BYTES_MAX,
        durable=True,
        precise=False,
        path=ids,
        node_name="n" * limits.NODE_NAME_CHARACTERS_MAX,
    )
    assert len(told.encode()) == limits.HEADER_BYTES_MAX
    kept = {
        "name": told.name,
        "address": told.address,
        "routing": told.routing,
        "filter": told.filter,
        "path": " ".join(ids),
        "node_name": told.node_name,
        "durable": True,
    }
    values = {"kind": "binding", "queue": 2**31, "number": told.queue, "turn": 3, "relay": 2**31, **kept}
    assert records.decode_definition(records.encode_definition(values)) == values
