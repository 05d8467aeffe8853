"""The page on the wire format says what the code does, and its bytes are those of the code."""

from __future__ import annotations

import re
import struct

import pytest
from tools import draw_wire_tables

from meshq import limits
from meshq.bridge._forwarding_plan import bridged_id
from meshq.wire import (
    FLAG_DURABLE,
    HEAD_BYTES,
    HEADER_BRIDGED,
    KIND_HEADERS,
    KIND_ID,
    KIND_PLAIN,
    KIND_PROPERTIES,
    PLAIN,
    RANGE_ROW_BYTES,
    RANGES_MAX,
    RUN_ROW_BYTES,
    Envelope,
    Frame,
    FrameType,
    ReceiveBuffer,
    RunBytes,
    RunView,
    check_run,
    decode_map,
    encode,
    encode_map,
    encode_run,
)
from meshq.wire._frames import FIXED

PAGE = draw_wire_tables.PAGE.read_text(encoding="utf-8")


def section(title: str) -> str:
    """The text under one heading."""
    (text,) = re.findall(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)
    return text


def layout(title: str) -> list[tuple[int, int, str]]:
    """Offset, width and name of each field in the table under a heading."""
    found = re.findall(r"^\| (\d+) \| (\d+) \| ([a-z-]+) \|", section(title), re.M)
    return [(int(offset), int(width), name) for offset, width, name in found]


def example(number: int = 0) -> bytes:
    """One of the worked examples, as bytes: the frame, or what a bridge sends."""
    text = re.findall(r"```text\n(.*?)```", section("A worked example"), re.S)[number]
    lines = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} )*[0-9a-f]{2})  ", text, re.M)
    data = b""
    for offset, digits in lines:
        assert int(offset, 16) == len(data), "each line stands where it says"
        data += bytes.fromhex(digits)
    return data


def test_the_tables_of_the_page_are_not_stale() -> None:
    assert draw_wire_tables.redrawn(PAGE) == PAGE


@pytest.mark.parametrize("name", list(draw_wire_tables.TABLES))
def test_a_table_that_is_missing_is_noticed(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        draw_wire_tables.redrawn(PAGE.replace(f"<!-- drawn: {name} -->", ""))


@pytest.mark.parametrize(
    ("title", "size"),
    [
        ("The fixed header", HEAD_BYTES),
        ("Rows of a run", RUN_ROW_BYTES),
        ("Rows of a SETTLE frame", RANGE_ROW_BYTES),
    ],
)
def test_fields_follow_one_another_without_a_gap(title: str, size: int) -> None:
    fields = layout(title)
    assert [offset for offset, _, _ in fields] == [sum(width for _, width, _ in fields[:n]) for n in range(len(fields))]
    assert sum(width for _, width, _ in fields) == size


def test_the_fixed_header_is_packed_as_the_page_says() -> None:
    widths = {"s": 2, "B": 1, "H": 2, "I": 4, "Q": 8}
    codes = FIXED.format.replace("2s", "s").lstrip("<")
    assert FIXED.format.startswith("<")
    assert [width for _, width, _ in layout("The fixed header")] == [*(widths[code] for code in codes), 4]


def test_the_worked_example_is_what_the_code_makes_of_it() -> None:
    region = Envelope(KIND_PLAIN | KIND_ID | KIND_PROPERTIES, b"o-17", b"", encode_map({"region": "emea"}))
    run = encode_run([b"42 umbrellas", b"7 hats"], [region, PLAIN])
    frame = Frame(
        FrameType.SEND,
        flags=FLAG_DURABLE,
        channel=1,
        number=2,
        received=1,
        first=1,
        stamp=1_760_000_000_000,
        count=run.rows,
        table=run.table,
        body=run.body,
    )
    assert encode(frame) == example()


def test_the_worked_example_is_read_as_the_page_says() -> None:
    (frame,) = ReceiveBuffer().feed(example())
    assert (frame.type, frame.flags, frame.channel, frame.number, frame.first) == (
        FrameType.SEND,
        FLAG_DURABLE,
        1,
        2,
        1,
    )
    run = RunBytes(frame.count, bytes(frame.table), 0, frame.body)
    assert check_run(run) == KIND_PLAIN | KIND_ID | KIND_PROPERTIES
    view = RunView(run)
    assert [view.body(index) for index in range(2)] == [b"42 umbrellas", b"7 hats"]
    assert decode_map(view.properties(0), 99, lists=False) == {"region": "emea"}
    assert (view.duplicate_id(0), view.duplicate_id(1), view.properties(1)) == (b"o-17", b"", b"")


@pytest.mark.parametrize("own", [b"o-17", b""])
def test_what_a_bridge_sends_is_what_the_code_makes_of_it(own: bytes) -> None:
    headers = encode_map({HEADER_BRIDGED: own})
    region = Envelope(KIND_PLAIN | KIND_ID | KIND_HEADERS, bridged_id(bytes(range(16)), 3, 7), headers, b"")
    run = encode_run([b"7 hats"], [region])
    assert check_run(RunBytes(1, bytes(run.table), 0, run.body)) == KIND_ID | KIND_HEADERS | KIND_PLAIN
    if own:
        assert bytes(run.table) + bytes(run.body) == example(1)
    else:
        assert f"`{headers.hex(' ')}`" in section("A worked example")


def test_the_limits_on_the_page_are_the_limits() -> None:
    for title, sizes in {
        "The fixed header": (limits.HEADER_BYTES_MAX, limits.UNAUTHENTICATED_BYTES_MAX, limits.BODY_BYTES_MAX),
        "Rows of a run": (limits.ENVELOPE_BYTES_MAX, limits.MESSAGE_BYTES_MAX),
        "Rows of a SETTLE frame": (RANGES_MAX,),
    }.items():
        for size in sizes:
            assert f"{size:,}" in section(title)
    assert str(limits.DUPLICATE_ID_BYTES_MAX) in section("Rows of a run")
    assert str(limits.RUN_MESSAGES_MAX) in section("Rows of a run")


def test_the_grammar_is_ten_lines() -> None:
    (grammar,) = re.findall(r"```text\n(.*?)```", section("Grammar"), re.S)
    assert len(grammar.splitlines()) == 10
    assert struct.calcsize("<5I") == RUN_ROW_BYTES
