"""The fuzzing targets of a network: frames of a connection, and datagrams."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

from meshq import limits
from meshq.discovery._datagram_format import (
    Announcement,
    ConnectorPair,
    decode_announcement,
    encode_announcement,
)
from meshq.discovery._dns_sd_format import decode_message, encode_messages
from meshq.discovery._shared_directory_format import MemberFile, decode_member, encode_member
from meshq.errors import RemoteProtocolError
from meshq.wire import (
    HEAD_BYTES,
    RUN_ROW_BYTES,
    SCHEMAS,
    Attach,
    Close,
    ConnectionMachine,
    Deliver,
    Frame,
    FrameType,
    Hello,
    Produce,
    ReceiveBuffer,
    RunBytes,
    RunView,
    Send,
    Sender,
    check_run,
    encode,
    encode_run,
)
from meshq.wire._frames import CHECK, FIXED, FIXED_BYTES, FLAG_BODY_CHECKED, FORMS
from qa.fuzz.target import RefusedInputError, Target, split

_TYPES: Final = {int(frame_type): frame_type for frame_type in FrameType}
#: Frames with rows of a run.
_OF_RUNS: Final = frozenset(frame_type for frame_type, form in FORMS.items() if form.row_bytes == RUN_ROW_BYTES)
_SECRET: Final = b"a secret of a group"
_GROUP: Final = "fuzz"


def frames(data: bytes) -> None:
    """Feed the bytes of a connection, as they are or with right checksums; then read all that its frames say."""
    kind, stream = split(data, 4)
    if kind & 1:
        stream = with_checksums(stream)
    buffer = ReceiveBuffer(limits.BODY_BYTES_MAX if kind & 2 else limits.UNAUTHENTICATED_BYTES_MAX)
    half = len(stream) // 2
    found = [*buffer.feed(stream[:half]), *buffer.feed(stream[half:])]
    encoded = b"".join(map(encode, found))
    assert encoded == stream[: len(encoded)], "a frame is encoded as the bytes it came in"
    assert len(encoded) + buffer.pending_bytes == len(stream), "no byte is lost between frames"
    assert ReceiveBuffer(limits.BODY_BYTES_MAX).feed(encoded) == found, "whole or in pieces the frames are the same"
    machine = ConnectionMachine(Sender.SERVER, Sender.CLIENT)
    refused: RemoteProtocolError | None = None
    for frame in found:
        # Each frame is read, although a real connection ends with the first one that is not legal.
        try:
            machine.received(frame.type)
        except RemoteProtocolError as error:
            refused = error
        _read(frame)
    if refused is not None:
        raise refused


def _read(frame: Frame) -> None:
    if frame.type in SCHEMAS:
        header = SCHEMAS[frame.type].decode(frame.header)
        assert SCHEMAS[frame.type].decode(header.encode()) == header, "a header is decoded as it was encoded"
    if frame.type in _OF_RUNS and frame.count:
        run = RunBytes(frame.count, bytes(frame.table), 0, bytes(frame.body))
        check_run(run)
        view = RunView(run)
        view.read_bodies()
        bodies = [view.body(index) for index in range(run.rows)]
        parts = [view.properties(index) + view.headers(index) + view.duplicate_id(index) for index in range(run.rows)]
        assert sum(map(len, (*bodies, *parts))) <= len(run.body), "the messages of a run have its bytes, and no others"


def with_checksums(stream: bytes) -> bytes:
    """Return frames with the checksums that their reader computes, as far as they are whole."""
    data, at = bytearray(stream), 0
    while len(data) - at >= HEAD_BYTES:
        _, _, type_number, flags, header, count, body, *_ = FIXED.unpack_from(data, at)
        form = FORMS.get(_TYPES.get(type_number, FrameType.PING), FORMS[FrameType.PING])
        body_at = at + HEAD_BYTES + header + count * form.row_bytes
        covered_to = body_at + (body if flags & FLAG_BODY_CHECKED else 0)
        check = zlib.crc32(data[at + HEAD_BYTES : covered_to], zlib.crc32(data[at : at + FIXED_BYTES]))
        CHECK.pack_into(data, at + FIXED_BYTES, check)
        at = body_at + body
    return bytes(data)


def _some_frames() -> Sequence[bytes]:
    run = encode_run([b"one", b"", b"three"])
    producer = bytes(range(16))
    opening = [
        Frame(FrameType.HELLO, header=Hello(oldest=1, newest=1, label="a client").encode()),
        Frame(FrameType.ATTACH, header=Attach().encode()),
        Frame(
            FrameType.PRODUCE, channel=1, number=1, first=1, header=Produce(address="a", producer=bytes(16)).encode()
        ),
    ]
    send = Frame(
        FrameType.SEND,
        channel=1,
        number=2,
        first=1,
        stamp=5,
        header=Send().encode(),
        count=run.rows,
        table=run.table,
        body=run.body,
    )
    deliver = Frame(
        FrameType.DELIVER,
        channel=2,
        number=1,
        first=1,
        header=Deliver(address="a", producer=producer, number=1, sequence=1).encode(),
        count=run.rows,
        table=run.table,
        body=run.body,
    )
    close = Frame(FrameType.CLOSE, header=Close(code=36, text="stopping").encode())
    every = [Frame(frame_type, channel=1, first=1) for frame_type in FrameType]
    whole = b"".join(map(encode, [*opening, send]))
    return [
        *[bytes([1]) + encode(frame) for frame in [*opening, send, deliver, close, *every]],
        bytes([0]) + whole,
        bytes([3]) + whole,
    ]


def datagrams(data: bytes) -> None:
    """Decode a datagram, a file of a shared directory or a message of DNS-SD.

    Their readers answer that they refuse an input, or find nothing in it.  Raises: RefusedInputError, then.
    """
    kind, content = split(data, 6)
    if kind < 4:
        secret = _SECRET if kind & 1 else None
        datagram = content
        if kind & 2:
            import hmac

            datagram += sha256(content).digest() if secret is None else hmac.digest(secret, content, "sha256")
        found = decode_announcement(datagram, secret)
        if not isinstance(found, Announcement):
            raise RefusedInputError(found.text)
        again = decode_announcement(encode_announcement(found, secret), secret)
        assert again == found, "an announcement is decoded as it was encoded"
    elif kind == 4:
        member = decode_member(content)
        if member is None:
            raise RefusedInputError("no file of a member")
        assert encode_member(member) == content, "a file of a member is encoded as it was"
    else:
        inner = decode_message(content, _GROUP)
        assert all(0 < len(one) <= limits.DATAGRAM_BYTES_MAX for one in inner), "a datagram has a size that is allowed"
        decoded = [decode_announcement(one, None) for one in inner]
        if not any(isinstance(one, Announcement) for one in decoded):
            raise RefusedInputError("no announcement in the message")


def _some_datagrams() -> Sequence[bytes]:
    connectors = (ConnectorPair("tcp://a.example:61616", "tls://b.example:1"), ConnectorPair("tcp://[::2]:7"))
    announcement = Announcement(
        node_id=bytes(16),
        instance=bytes(range(16)),
        began_ms=1,
        sequence=2,
        period_ms=3,
        name="a node",
        connectors=connectors,
    )
    plain, signed = encode_announcement(announcement, None), encode_announcement(announcement, _SECRET)
    check_bytes = 32
    messages = encode_messages(_GROUP, "member", plain)
    return [
        bytes([0]) + plain,
        bytes([1]) + signed,
        bytes([2]) + plain[:-check_bytes],
        bytes([3]) + signed[:-check_bytes],
        bytes([4]) + encode_member(MemberFile(1, plain)),
        *[bytes([5]) + message for message in messages],
    ]


FRAMES: Final = Target("frames", frames, (RemoteProtocolError,), _some_frames, 4_096)
DATAGRAMS: Final = Target("datagrams", datagrams, (RefusedInputError,), _some_datagrams, 2_048)
