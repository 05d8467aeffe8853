"""The frame: what crosses a link, as an object and as bytes.

A frame is a fixed binary header, a small msgpack header, a table of fixed binary rows and an opaque body.  One
frame carries a whole run of messages, so its fixed cost vanishes in them.  The layout is in
``docs/formats/wire.md``.
"""

from __future__ import annotations

import enum
import struct
import zlib
from typing import Final

from meshq import limits
from meshq.errors import LocalProtocolError

PROTOCOL_VERSION: Final = 1
PROTOCOL_VERSION_MIN: Final = 1
MAGIC: Final = b"MQ"

#: magic, version, type, flags, header bytes, rows, body bytes, channel, number, received, first, stamp; then crc32.
FIXED: Final = struct.Struct("<2sBBHHIIIQQQQ")
CHECK: Final = struct.Struct("<I")
FIXED_BYTES: Final = FIXED.size
HEAD_BYTES: Final = FIXED.size + CHECK.size

RUN_ROW_BYTES: Final = 20
RANGE_ROW_BYTES: Final = 16
#: Ranges of one settle frame: a run settled in the worst order, one by one, many times over.
RANGES_MAX: Final = 4_096


class FrameType(enum.IntEnum):
    """What a frame is; the number on the wire, never reused."""

    HELLO = 1
    WELCOME = 2
    AUTHENTICATE = 3
    AUTHENTICATED = 4
    ATTACH = 5
    ATTACHED = 6
    CLOSE = 7
    PING = 8
    PONG = 9
    RECEIVED = 10
    PRODUCE = 16
    SEND = 17
    CONSUME = 18
    SETTLE = 19
    LEAVE = 20
    CALL = 21
    DELIVER = 32
    CONFIRM = 33
    REFUSE = 34
    ANSWER = 35
    CREDIT = 36
    CONSUMER_LOST = 37


#: Frames that change state: numbered from 1 in each direction of a session, kept until known to have arrived, and
#: sent again after a resume.
NUMBERED: Final = frozenset(t for t in FrameType if t >= 16)
ROW_BYTES: Final = {
    FrameType.SEND: RUN_ROW_BYTES,
    FrameType.DELIVER: RUN_ROW_BYTES,
    FrameType.SETTLE: RANGE_ROW_BYTES,
}
ROWS_MAX: Final = {
    FrameType.SEND: limits.RUN_MESSAGES_MAX,
    FrameType.DELIVER: limits.RUN_MESSAGES_MAX,
    FrameType.SETTLE: RANGES_MAX,
}
#: Frames that may have a body.
BODIED: Final = frozenset({FrameType.SEND, FrameType.DELIVER})

#: The checksum covers the body, too: for links that neither TLS nor the loopback device protects.
FLAG_BODY_CHECKED: Final = 1
#: SEND: these messages may have arrived before; what the producer's high mark covers is left out.
FLAG_RESENT: Final = 2
#: SEND: the messages are synced before they are confirmed, and survive a crash.
FLAG_DURABLE: Final = 4
#: SETTLE: what becomes of the deliveries; none of the two: they are acknowledged.
FLAG_RETURN: Final = 8
FLAG_REJECT: Final = 16
#: Flags that each frame type may have.
FLAGS: Final = {
    FrameType.SEND: FLAG_BODY_CHECKED | FLAG_RESENT | FLAG_DURABLE,
    FrameType.DELIVER: FLAG_BODY_CHECKED | FLAG_DURABLE,
    FrameType.SETTLE: FLAG_RETURN | FLAG_REJECT,
}


class Frame:
    """One frame.

    ``channel`` is the number of a producer or consumer of the session, 0 for the session itself.  ``number`` is
    the frame's place in its direction's stream (0: not numbered) and ``received`` the highest number that the
    sender has received.  ``first`` depends on the type: the number of a run's first message, the first delivery
    tag, a call's id, or an amount.  ``stamp`` is the producer's clock in ms for a run.  ``table`` holds ``count``
    rows.
    """

    __slots__ = (
        "body",
        "channel",
        "count",
        "first",
        "flags",
        "header",
        "number",
        "received",
        "stamp",
        "table",
        "type",
    )

    def __init__(
        self,
        type: FrameType,
        *,
        flags: int = 0,
        channel: int = 0,
        number: int = 0,
        received: int = 0,
        first: int = 0,
        stamp: int = 0,
        header: bytes = b"",
        count: int = 0,
        table: bytes | memoryview = b"",
        body: bytes | memoryview = b"",
    ) -> None:
        self.type = type
        self.flags = flags
        self.channel = channel
        self.number = number
        self.received = received
        self.first = first
        self.stamp = stamp
        self.header = header
        self.count = count
        self.table = table
        self.body = body

    @property
    def size_bytes(self) -> int:
        """How long the frame is on the wire."""
        return HEAD_BYTES + len(self.header) + len(self.table) + len(self.body)

    def __repr__(self) -> str:
        return (
            f"<Frame {self.type.name} channel={self.channel} number={self.number} first={self.first} "
            f"count={self.count} body={len(self.body)}>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frame):
            return NotImplemented
        return encode(self) == encode(other)

    __hash__ = None  # type: ignore[assignment]


def head(frame: Frame) -> bytes:
    """The bytes of a frame without its body, checksum included.

    Raises:
        LocalProtocolError: a part of the frame is larger than the protocol allows.
    """
    header_size = len(frame.header)
    if header_size > limits.HEADER_BYTES_MAX:
        raise LocalProtocolError(
            f"the header of a {frame.type.name} frame has {header_size} bytes; allowed: {limits.HEADER_BYTES_MAX}"
        )
    body_size = len(frame.body)
    if body_size > limits.BODY_BYTES_MAX:
        raise LocalProtocolError(
            f"the body of a {frame.type.name} frame has {body_size} bytes; allowed: {limits.BODY_BYTES_MAX}"
        )
    fixed = FIXED.pack(
        MAGIC,
        PROTOCOL_VERSION,
        frame.type,
        frame.flags,
        header_size,
        frame.count,
        body_size,
        frame.channel,
        frame.number,
        frame.received,
        frame.first,
        frame.stamp,
    )
    check = zlib.crc32(frame.table, zlib.crc32(frame.header, zlib.crc32(fixed)))
    if frame.flags & FLAG_BODY_CHECKED:
        check = zlib.crc32(frame.body, check)
    return b"".join((fixed, CHECK.pack(check), frame.header, frame.table))


def encode(frame: Frame) -> bytes:
    """All the bytes of a frame."""
    return b"".join((head(frame), frame.body))
