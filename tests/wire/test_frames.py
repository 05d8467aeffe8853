"""Frames as bytes: where each field stands, what may not be built, what a frame costs."""

from __future__ import annotations

import struct
import zlib

import pytest

from meshq import limits
from meshq.errors import LocalProtocolError
from meshq.wire import (
    COUNTER_MAX,
    FLAG_BODY_CHECKED,
    FLAG_DURABLE,
    FLAG_REJECT,
    FLAG_RESENT,
    FLAG_RETURN,
    HEAD_BYTES,
    NUMBERED,
    RANGES_MAX,
    Frame,
    FrameType,
    encode,
    encode_run,
)
from meshq.wire._frames import FORMS


def send(**fields: object) -> Frame:
    run = encode_run([b"one", b"two"])
    values = {"channel": 1, "number": 1, "first": 1, "count": run.rows, "table": run.table, "body": run.body}
    return Frame(FrameType.SEND, **{**values, **fields})


def test_each_field_stands_where_the_layout_says() -> None:
    run = encode_run([b"abc"])
    frame = Frame(
        FrameType.DELIVER,
        flags=FLAG_DURABLE,
        channel=0x0A0B0C0D,
        number=0x1112131415161718,
        received=0x2122232425262728,
        first=0x3132333435363738,
        stamp=0x4142434445464748,
        header=b"\x80",
        count=1,
        table=run.table,
        body=run.body,
    )
    data = encode(frame)
    assert data[:4] == b"MQ\x01\x20"
    assert data[4:16] == bytes.fromhex("0400 0100 01000000 03000000")
    assert data[16:20] == bytes.fromhex("0d0c0b0a")
    assert struct.unpack("<QQQQ", data[20:52]) == (frame.number, frame.received, frame.first, frame.stamp)
    assert data[52:56] == struct.pack("<I", zlib.crc32(data[56:77], zlib.crc32(data[:52])))
    assert data[56:57] == b"\x80"
    assert data[57:77] == run.table
    assert data[77:] == b"abc"
    assert len(data) == frame.size_bytes == HEAD_BYTES + 1 + 20 + 3


def test_the_checksum_covers_the_body_only_if_the_flag_says_so() -> None:
    plain, other = encode(send()), encode(send(body=b"six---"[:6]))
    assert plain[:-6] == other[:-6]
    plain, other = encode(send(flags=FLAG_BODY_CHECKED)), encode(send(flags=FLAG_BODY_CHECKED, body=b"six---"))
    assert plain[:-6] != other[:-6]


def test_frames_that_change_state_are_numbered_and_no_others() -> None:
    assert sorted(frame_type.name for frame_type in set(FrameType) - NUMBERED) == [
        "ATTACH",
        "ATTACHED",
        "AUTHENTICATE",
        "AUTHENTICATED",
        "CHALLENGE",
        "CLOSE",
        "HELLO",
        "PING",
        "PONG",
        "PROBE",
        "PROBED",
        "PROOF",
        "RECEIVED",
        "REPLICATE",
        "WELCOME",
    ]


def test_the_numbers_of_frame_types_stay_what_they_are() -> None:
    assert {frame_type.name: int(frame_type) for frame_type in FrameType} == {
        "HELLO": 1, "WELCOME": 2, "AUTHENTICATE": 3, "AUTHENTICATED": 4, "ATTACH": 5, "ATTACHED": 6, "CLOSE": 7,
        "PING": 8, "PONG": 9, "RECEIVED": 10, "CHALLENGE": 11, "PROOF": 12, "PROBE": 13, "PROBED": 14,
        "REPLICATE": 15,
        "PRODUCE": 16, "SEND": 17, "CONSUME": 18,
        "SETTLE": 19, "LEAVE": 20, "CALL": 21, "LINK": 22, "FORWARD": 23, "TRANSACT": 25, "BLOCK": 28, "READ": 29,
        "BRANCH": 30, "DELIVER": 32, "CONFIRM": 33, "REFUSE": 34, "ANSWER": 35, "CREDIT": 36, "CONSUMER_LOST": 37,
        "BINDING": 38, "SNAPSHOT": 39, "NODE": 40, "ADDRESS_CREDIT": 41, "PIECE": 44, "LOG": 46, "LOGGED": 47,
    }  # fmt: skip


@pytest.mark.parametrize(
    "frame",
    [
        Frame(FrameType.CONFIRM, channel=1, header=b"\x80"),
        Frame(FrameType.HELLO, header=bytes(limits.HEADER_BYTES_MAX + 1)),
        Frame(FrameType.PING, header=b"\x80"),
        send(count=3),
        send(table=b""),
        Frame(FrameType.CALL, count=1, table=bytes(20)),
        Frame(FrameType.SETTLE, channel=1, count=RANGES_MAX + 1, table=bytes(16 * (RANGES_MAX + 1))),
        send(count=257, table=bytes(20 * 257)),
        Frame(FrameType.CALL, body=b"x"),
        send(flags=FLAG_REJECT),
        Frame(FrameType.DELIVER, channel=1, flags=FLAG_RESENT),
        send(number=COUNTER_MAX + 1),
        send(received=COUNTER_MAX + 1),
        send(first=COUNTER_MAX + 1),
        send(stamp=COUNTER_MAX + 1),
        send(stamp=-1),
        send(channel=2**32),
        send(channel=-1),
    ],
)
def test_a_frame_that_its_receiver_would_refuse_is_not_built(frame: Frame) -> None:
    with pytest.raises(LocalProtocolError) as caught:
        encode(frame)
    assert caught.value.outcome == "not_done"
    assert frame.type.name in str(caught.value)


def test_a_body_of_the_largest_size_is_built_and_one_byte_more_is_not() -> None:
    body = bytes(limits.BODY_BYTES_MAX)
    assert len(encode(send(body=body))) == HEAD_BYTES + 40 + limits.BODY_BYTES_MAX
    with pytest.raises(LocalProtocolError, match="body"):
        encode(send(body=body + b"x"))


def test_the_largest_header_and_table_are_built() -> None:
    assert encode(Frame(FrameType.HELLO, header=bytes(limits.HEADER_BYTES_MAX)))
    assert encode(Frame(FrameType.SETTLE, channel=1, count=RANGES_MAX, table=bytes(16 * RANGES_MAX)))
    assert encode(
        send(number=COUNTER_MAX, received=COUNTER_MAX, first=COUNTER_MAX, stamp=COUNTER_MAX, channel=2**32 - 1)
    )


def test_flags_and_the_bound_of_counters_stay_what_they_are() -> None:
    assert (FLAG_BODY_CHECKED, FLAG_RESENT, FLAG_DURABLE, FLAG_RETURN, FLAG_REJECT) == (1, 2, 4, 8, 16)
    assert COUNTER_MAX == 2**63 - 1


def test_what_is_not_said_of_a_frame_is_nothing() -> None:
    frame = Frame(FrameType.PING)
    assert (frame.flags, frame.channel, frame.number, frame.received, frame.first, frame.stamp) == (0,) * 6
    assert (frame.count, frame.header, frame.table, frame.body) == (0, b"", b"", b"")


def test_frames_are_equal_if_their_bytes_are() -> None:
    assert send() == send()
    assert send() != send(first=2)
    assert send() != "a frame"
    assert send(body=memoryview(b"onetwo")) == send()


def test_a_frame_shows_what_it_is_and_nothing_of_what_is_in_it() -> None:
    assert repr(send(body=b"secret")) == "<Frame SEND channel=1 number=1 first=1 count=2 body=6>"


def test_every_type_with_rows_says_how_many_it_may_have() -> None:
    assert {frame_type.name: form.rows_max for frame_type, form in FORMS.items() if form.row_bytes} == {
        "SEND": 256,
        "FORWARD": 256,
        "TRANSACT": 256,
        "DELIVER": 256,
        "SETTLE": 4096,
    }
    assert all(bool(form.row_bytes) == bool(form.rows_max) for form in FORMS.values())
