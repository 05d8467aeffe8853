"""Bytes in, frames out: every chunking gives the same frames, and each wrong byte its own refusal."""

from __future__ import annotations

import itertools
import struct
import zlib
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.errors import RemoteProtocolError
from meshq.wire import (
    BY_NAME,
    COUNTER_MAX,
    FLAG_BODY_CHECKED,
    FLAG_REJECT,
    FLAG_RETURN,
    HEAD_BYTES,
    RANGES_MAX,
    Frame,
    FrameType,
    Hello,
    ReceiveBuffer,
    encode,
    encode_ranges,
    encode_run,
)
from meshq.wire._frames import CHECK, FIXED, FIXED_BYTES, FORMS

RUN = encode_run([b"first", b"", b"third"])
FRAMES = [
    Frame(FrameType.HELLO, header=Hello(oldest=1, newest=1).encode()),
    Frame(FrameType.SEND, channel=1, number=1, first=1, stamp=7, count=RUN.rows, table=RUN.table, body=RUN.body),
    Frame(FrameType.PING, received=3),
    Frame(FrameType.SETTLE, channel=2, number=2, count=2, table=encode_ranges([(1, 4), (7, 7)]), flags=FLAG_RETURN),
    Frame(FrameType.DELIVER, channel=2, flags=FLAG_BODY_CHECKED, count=RUN.rows, table=RUN.table, body=RUN.body),
    Frame(FrameType.CREDIT, number=3, first=4096),
]
STREAM = b"".join(map(encode, FRAMES))


def raw(type_number: int = FrameType.PING, *, rest: bytes = b"", **fields: Any) -> bytes:
    """A frame with a right checksum, whatever its fields are."""
    values = {
        "magic": b"MQ", "version": 1, "type": type_number, "flags": 0, "header": 0, "count": 0, "body": 0,
        "channel": 0, "number": 0, "received": 0, "first": 0, "stamp": 0, **fields,
    }  # fmt: skip
    fixed = FIXED.pack(*values.values())
    body = rest[len(rest) - values["body"] :] if values["body"] and not values["flags"] & FLAG_BODY_CHECKED else b""
    covered = rest[: len(rest) - len(body)]
    return fixed + CHECK.pack(zlib.crc32(covered, zlib.crc32(fixed))) + rest


def refusal(data: bytes, **options: int) -> str:
    """The refusal that these bytes get."""
    buffer = ReceiveBuffer(**options)
    with pytest.raises(RemoteProtocolError) as caught:
        buffer.feed(data)
    return caught.value.refusal


def test_bytes_one_at_a_time_give_the_same_frames() -> None:
    buffer = ReceiveBuffer()
    frames = [frame for index in range(len(STREAM)) for frame in buffer.feed(STREAM[index : index + 1])]
    assert frames == FRAMES
    assert buffer.pending_bytes == 0


@given(st.lists(st.integers(0, len(STREAM)), max_size=12))
def test_every_chunking_gives_the_same_frames(cuts: list[int]) -> None:
    buffer = ReceiveBuffer()
    edges = [0, *sorted(cuts), len(STREAM)]
    frames = []
    for start, stop in itertools.pairwise(edges):
        frames += buffer.feed(STREAM[start:stop])
    assert frames == FRAMES
    buffer.end()


def test_a_frame_cut_at_any_byte_waits_and_is_truncated_if_nothing_follows() -> None:
    for frame in FRAMES:
        data = encode(frame)
        for size in range(1, len(data)):
            buffer = ReceiveBuffer()
            assert buffer.feed(data[:size]) == []
            assert buffer.pending_bytes == size
            with pytest.raises(RemoteProtocolError) as caught:
                buffer.end()
            assert caught.value.refusal == "truncated"
            assert buffer.feed(data[size:]) == [frame]
            buffer.end()


def test_frames_stay_what_they_are_when_more_bytes_come() -> None:
    buffer = ReceiveBuffer()
    data = encode(FRAMES[1])
    buffer.feed(data[:70])
    (frame,) = buffer.feed(data[70:] + data[:70])
    buffer.feed(data[70:])
    assert frame == FRAMES[1]
    assert (type(frame.body), type(frame.table), type(frame.header)) == (bytes, bytes, bytes)


@pytest.mark.parametrize(
    ("data", "name"),
    [
        (b"GET / HTTP/1.1\r\n\r\n" + bytes(60), "bad_magic"),
        (b"Q", "bad_magic"),
        (b"MX", "bad_magic"),
        (encode(FRAMES[2]) + b"\x16\x03", "bad_magic"),
        (raw(version=0), "unknown_version"),
        (raw(version=2), "unknown_version"),
        (raw(24), "unknown_type"),
        (raw(0), "unknown_type"),
        (raw(255), "unknown_type"),
        (raw(flags=1), "unknown_flags"),
        (raw(FrameType.SEND, channel=1, flags=8), "unknown_flags"),
        (raw(FrameType.DELIVER, channel=1, flags=2), "unknown_flags"),
        (raw(FrameType.SETTLE, channel=1, flags=FLAG_RETURN | FLAG_REJECT), "unknown_flags"),
        (raw(FrameType.HELLO, header=limits.HEADER_BYTES_MAX + 1), "too_large"),
        (raw(FrameType.SEND, channel=1, count=limits.RUN_MESSAGES_MAX + 1), "too_large"),
        (raw(FrameType.SETTLE, channel=1, count=RANGES_MAX + 1), "too_large"),
        (raw(FrameType.CALL, count=1), "too_large"),
        (raw(FrameType.CALL, body=1), "too_large"),
        (raw(FrameType.SEND, channel=1, body=limits.UNAUTHENTICATED_BYTES_MAX + 1), "too_large"),
        (raw(number=COUNTER_MAX + 1), "too_large"),
        (raw(received=COUNTER_MAX + 1), "too_large"),
        (raw(FrameType.SEND, channel=1, first=COUNTER_MAX + 1), "too_large"),
        (raw(FrameType.SEND, channel=1, stamp=2**64 - 1), "too_large"),
        (raw(FrameType.SEND), "bad_channel"),
        (raw(FrameType.PING, channel=1), "bad_channel"),
        (raw(FrameType.CALL, channel=9), "bad_channel"),
        (raw(FrameType.PING, first=1), "bad_header"),
        (raw(FrameType.HELLO, stamp=1), "bad_header"),
        (raw(FrameType.CONSUMER_LOST, channel=1, first=1), "bad_header"),
        (raw(FrameType.CONFIRM, channel=1, header=1, rest=b"\x80"), "bad_header"),
        (raw()[:-1] + b"\0", "bad_checksum"),
    ],
)
def test_each_wrong_field_has_its_refusal(data: bytes, name: str) -> None:
    assert refusal(data) == name


@pytest.mark.parametrize("frame_type", list(FrameType))
def test_a_frame_of_each_type_is_read_with_every_field_that_it_may_have(frame_type: FrameType) -> None:
    form = FORMS[frame_type]
    rest = b"\x80" * form.has_header + bytes(form.row_bytes) + b"b" * form.has_body
    data = raw(
        frame_type,
        rest=rest,
        header=int(form.has_header),
        count=1 if form.row_bytes else 0,
        body=int(form.has_body),
        channel=0 if form.has_channel is False else 2**32 - 1,
        number=COUNTER_MAX,
        received=COUNTER_MAX,
        first=COUNTER_MAX * form.has_first,
        stamp=COUNTER_MAX * form.has_stamp,
    )
    (frame,) = ReceiveBuffer().feed(data)
    assert frame.type is frame_type
    assert encode(frame) == data


def test_an_answer_may_speak_of_a_channel_or_of_the_session() -> None:
    assert ReceiveBuffer().feed(raw(FrameType.ANSWER) + raw(FrameType.ANSWER, channel=4))[1].channel == 4


def test_a_header_of_4096_bytes_is_read_and_one_byte_more_is_refused() -> None:
    size = limits.HEADER_BYTES_MAX
    (frame,) = ReceiveBuffer().feed(raw(FrameType.HELLO, header=size, rest=bytes(size)))
    assert len(frame.header) == size
    assert refusal(raw(FrameType.HELLO, header=size + 1, rest=bytes(size + 1))) == "too_large"


def test_256_rows_are_read_and_one_more_is_refused() -> None:
    run = encode_run([b"x"] * 256)
    frame = Frame(FrameType.SEND, channel=1, count=256, table=run.table, body=run.body)
    assert ReceiveBuffer().feed(encode(frame)) == [frame]
    rest = bytes(257 * 20)
    assert refusal(raw(FrameType.SEND, channel=1, count=257, rest=rest)) == "too_large"


def test_the_limit_of_a_body_is_small_until_it_is_raised() -> None:
    def data(size: int) -> bytes:
        return encode(Frame(FrameType.SEND, channel=1, count=1, table=bytes(20), body=bytes(size)))

    small, large = limits.UNAUTHENTICATED_BYTES_MAX, limits.BODY_BYTES_MAX
    buffer = ReceiveBuffer()
    assert len(buffer.feed(data(small))[0].body) == small
    assert refusal(data(small + 1)) == "too_large"
    buffer.body_bytes_max = large
    assert len(buffer.feed(data(large))[0].body) == large
    assert refusal(raw(FrameType.SEND, channel=1, body=large + 1), body_bytes_max=large) == "too_large"


def test_a_limit_is_told_from_the_head_alone() -> None:
    # Otherwise a peer could make us wait for, and hold, what we shall refuse.
    assert refusal(raw(FrameType.SEND, channel=1, body=2**32 - 1), body_bytes_max=limits.BODY_BYTES_MAX) == "too_large"


@pytest.mark.parametrize("frame", FRAMES, ids=lambda frame: frame.type.name)
def test_every_single_bit_that_flips_under_the_checksum_is_found(frame: Frame) -> None:
    data = encode(frame)
    covered = len(data) if frame.flags & FLAG_BODY_CHECKED else len(data) - len(frame.body)
    for bit in range(covered * 8):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        # Behind a length that has become larger more has to come before anything can be said.
        buffer = ReceiveBuffer()
        with pytest.raises(RemoteProtocolError) as caught:
            buffer.feed(bytes(damaged) + bytes(HEAD_BYTES + limits.HEADER_BYTES_MAX + 70_000))
        # The zeros behind a frame that passed would be no frame, either.
        assert bit < 16 or caught.value.refusal != "bad_magic"


def test_a_flipped_bit_in_an_unchecked_body_is_not_found() -> None:
    data = bytearray(encode(FRAMES[1]))
    data[-1] ^= 1
    (frame,) = ReceiveBuffer().feed(bytes(data))
    assert frame.body != FRAMES[1].body


def test_after_a_violation_every_call_says_so_again() -> None:
    buffer = ReceiveBuffer()
    with pytest.raises(RemoteProtocolError) as first:
        buffer.feed(encode(FRAMES[0]) + raw(version=9))
    with pytest.raises(RemoteProtocolError) as second:
        buffer.feed(STREAM)
    assert (second.value.refusal, str(second.value)) == (first.value.refusal, str(first.value))
    assert buffer.pending_bytes == 0


def test_a_refusal_of_another_version_names_both() -> None:
    with pytest.raises(RemoteProtocolError, match=r"version 2, this side speaks 1-1"):
        ReceiveBuffer().feed(raw(version=2))


def test_the_order_of_checks_does_not_depend_on_the_chunking() -> None:
    data = raw(FrameType.SEND, channel=0, flags=32, number=2**64 - 1, header=1, rest=b"\x80")
    whole = refusal(data)
    buffer = ReceiveBuffer()
    with pytest.raises(RemoteProtocolError) as caught:
        for index in range(len(data)):
            buffer.feed(data[index : index + 1])
    assert caught.value.refusal == whole == "unknown_flags"


@given(st.binary(max_size=300))
def test_no_bytes_at_all_raise_anything_but_a_violation(data: bytes) -> None:
    for start in (b"", b"MQ\x01", STREAM[:120]):
        buffer = ReceiveBuffer()
        try:
            buffer.feed(start + data)
            buffer.end()
        except RemoteProtocolError as error:
            assert error.refusal in BY_NAME


def test_a_large_frame_in_small_pieces_is_checked_once_when_it_is_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    body = bytes(2 * limits.MIB)
    frame = Frame(FrameType.SEND, flags=FLAG_BODY_CHECKED, channel=1, count=1, table=bytes(20), body=body)
    data = encode(frame)
    checked: list[int] = []

    def crc32(part: memoryview, start: int = 0) -> int:
        checked.append(len(part))
        return zlib.crc32(part, start)

    monkeypatch.setattr("meshq.wire._receive_buffer.zlib", SimpleNamespace(crc32=crc32))
    buffer = ReceiveBuffer(limits.BODY_BYTES_MAX)
    frames = [found for at in range(0, len(data), 4096) for found in buffer.feed(data[at : at + 4096])]
    assert frames == [frame]
    assert 0 < sum(checked) <= len(data)


def test_the_fixed_header_is_52_bytes_and_four_of_checksum() -> None:
    assert (FIXED_BYTES, HEAD_BYTES, struct.calcsize("<I")) == (52, 56, CHECK.size)
