"""A frame, the unit of the wire protocol, as an object and as bytes.

A frame is a fixed binary header, a small msgpack header, a table of fixed binary rows and an opaque body.  One
frame carries a whole run of messages, so that its fixed cost is small for each of them.  The layout is in
``docs/formats/wire.md``.
"""

from __future__ import annotations

import enum
import struct
import zlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from meshq import limits
from meshq.errors import LocalProtocolError

if TYPE_CHECKING:
    from meshq.wire._run import RunBytes

PROTOCOL_VERSION: Final = 1
PROTOCOL_VERSION_MIN: Final = 1
MAGIC: Final = limits.FRAME_MAGIC

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
    """The type of a frame: its number on the wire, which is never reused."""

    # Enum's own hash is a call in Python, for every look-up of every frame; these are equal as numbers are.
    __hash__ = int.__hash__

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
    CHALLENGE = 11
    PROOF = 12
    PROBE = 13
    PROBED = 14
    REPLICATE = 15
    PRODUCE = 16
    SEND = 17
    CONSUME = 18
    SETTLE = 19
    LEAVE = 20
    CALL = 21
    LINK = 22
    FORWARD = 23
    BLOCK = 28
    READ = 29
    BRANCH = 30
    TRANSACT = 25
    DELIVER = 32
    CONFIRM = 33
    REFUSE = 34
    ANSWER = 35
    CREDIT = 36
    CONSUMER_LOST = 37
    BINDING = 38
    SNAPSHOT = 39
    NODE = 40
    ADDRESS_CREDIT = 41
    PIECE = 44
    LOG = 46
    LOGGED = 47


#: Frames that change state: numbered from 1 in each direction of a session, kept until known to have arrived, and
#: sent again after a resume.  Those of a log are never sent again: their connection has no session.
NUMBERED: Final = frozenset(t for t in FrameType if t >= 16)

#: The checksum covers the body, too: for links that neither TLS nor the loopback device protects.
FLAG_BODY_CHECKED: Final = 1
#: SEND: these messages may have arrived before; what the producer's high watermark covers is not stored again.
FLAG_RESENT: Final = 2
#: SEND: the messages are synced before they are confirmed, and survive a crash.
FLAG_DURABLE: Final = 4
#: SETTLE: what becomes of the deliveries; none of the two: they are acknowledged.
FLAG_RETURN: Final = 8
FLAG_REJECT: Final = 16
#: BLOCK: the body ends with it.
FLAG_LAST: Final = 32
#: SEND, DELIVER: the body of the run's one message is not in the frame; the header says where it is.
FLAG_LARGE: Final = 64
#: SETTLE: the deliveries are acknowledged by a transaction, whose number is the stamp.
FLAG_TRANSACTED: Final = 128
#: SETTLE with RETURN, only on a link within a process: the application has not seen the deliveries, and they are not
#: counted.
FLAG_UNCOUNTED: Final = 2
#: Two at once say nothing.
FLAGS_EXCLUSIVE: Final = FLAG_RETURN | FLAG_REJECT | FLAG_TRANSACTED

#: Counters of the fixed header, and whole numbers in headers, stay below this: sums of two of them fit 64 bits.
COUNTER_MAX: Final = 2**63 - 1


class FrameForm(NamedTuple):
    """The form of the frames of one type: flags, rows, and the fields that they may have."""

    #: Flags that it may have.
    flags: int = 0
    row_bytes: int = 0
    rows_max: int = 0
    has_header: bool = False
    has_body: bool = False
    #: It speaks of a producer or consumer: True, of the session: False, of either: None.
    has_channel: bool | None = False
    has_first: bool = False
    has_stamp: bool = False


_RUN_FLAGS: Final = FLAG_BODY_CHECKED | FLAG_DURABLE
_RUN: Final = FrameForm(
    _RUN_FLAGS, RUN_ROW_BYTES, limits.RUN_MESSAGES_MAX, has_body=True, has_channel=True, has_first=True, has_stamp=True
)
_TALK: Final = FrameForm(has_header=True)
_MARK: Final = FrameForm()
_OPENING: Final = FrameForm(has_header=True, has_channel=True, has_first=True)

FORMS: Final[dict[FrameType, FrameForm]] = {
    FrameType.HELLO: _TALK,
    FrameType.WELCOME: _TALK,
    FrameType.AUTHENTICATE: _TALK,
    FrameType.AUTHENTICATED: _TALK,
    FrameType.ATTACH: _TALK,
    FrameType.ATTACHED: _TALK,
    FrameType.CLOSE: _TALK,
    FrameType.PING: _MARK,
    FrameType.PONG: _MARK,
    FrameType.RECEIVED: _MARK,
    FrameType.CHALLENGE: _TALK,
    FrameType.PROOF: _TALK,
    FrameType.PROBE: _TALK,
    FrameType.PROBED: _TALK,
    FrameType.REPLICATE: _TALK,
    FrameType.PRODUCE: _OPENING,
    FrameType.SEND: _RUN._replace(flags=_RUN_FLAGS | FLAG_RESENT | FLAG_LARGE, has_header=True),
    FrameType.CONSUME: _OPENING,
    FrameType.SETTLE: FrameForm(
        FLAGS_EXCLUSIVE, RANGE_ROW_BYTES, RANGES_MAX, has_channel=True, has_first=True, has_stamp=True
    ),
    FrameType.LEAVE: _OPENING,
    FrameType.CALL: FrameForm(has_header=True, has_first=True),
    FrameType.LINK: _OPENING,
    FrameType.FORWARD: _RUN._replace(has_header=True),
    FrameType.BLOCK: FrameForm(_RUN_FLAGS | FLAG_LAST, has_body=True, has_channel=True, has_first=True),
    FrameType.READ: FrameForm(has_header=True, has_channel=True, has_first=True),
    FrameType.BRANCH: FrameForm(has_header=True, has_channel=True, has_first=True),
    FrameType.DELIVER: _RUN._replace(flags=_RUN_FLAGS | FLAG_LARGE, has_header=True),
    FrameType.TRANSACT: _RUN._replace(has_header=True, has_channel=False),
    FrameType.CONFIRM: FrameForm(has_channel=True, has_first=True),
    FrameType.REFUSE: _OPENING,
    FrameType.ANSWER: FrameForm(has_header=True, has_channel=None, has_first=True),
    FrameType.CREDIT: FrameForm(has_channel=None, has_first=True),
    FrameType.CONSUMER_LOST: FrameForm(has_header=True, has_channel=True),
    FrameType.BINDING: FrameForm(has_header=True, has_channel=True),
    FrameType.SNAPSHOT: FrameForm(has_channel=True, has_first=True),
    FrameType.NODE: FrameForm(has_header=True, has_channel=None, has_first=True),
    FrameType.ADDRESS_CREDIT: FrameForm(has_header=True, has_channel=True, has_first=True),
    FrameType.PIECE: FrameForm(FLAG_BODY_CHECKED, has_body=True, has_first=True),
    FrameType.LOG: FrameForm(FLAG_BODY_CHECKED, has_header=True, has_body=True, has_first=True),
    FrameType.LOGGED: FrameForm(has_header=True, has_first=True),
}
assert set(FORMS) == set(FrameType), "every frame type has a form"


class Frame:
    """A frame.

    ``channel`` is the number of a producer or consumer of the session, 0 for the session itself.  ``number`` is
    the frame's place in its direction's stream (0: not numbered) and ``received`` the highest number that the
    sender has received.  ``first`` depends on the type: the number of a run's first message, the first delivery
    tag, a call's id, or an amount.  ``stamp`` is the producer's clock in ms for a run; for deliveries that return 0, or
    the ms for which they wait, and one more.  ``table`` holds ``count`` rows.
    """

    __slots__ = (
        "body",
        "channel",
        "count",
        "first",
        "flags",
        "header",
        "number",
        "on_stored",
        "plain",
        "received",
        "size_bytes",
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
        on_stored: Callable[[], None] | None = None,
        plain: RunBytes | None = None,
    ) -> None:
        self.type: FrameType = type
        self.flags: int = flags
        self.channel: int = channel
        self.number: int = number
        self.received: int = received
        self.first: int = first
        self.stamp: int = stamp
        self.header: bytes = header
        self.count: int = count
        self.table: bytes | memoryview[int] = table
        self.body: bytes | memoryview[int] = body
        #: How long the frame is on the wire.  Asked for several times; header, table and body are never changed.
        self.size_bytes: int = HEAD_BYTES + len(header) + len(table) + len(body)
        #: SEND within a process: called when the run is stored, instead of a CONFIRM.
        self.on_stored: Callable[[], None] | None = on_stored
        #: SEND within a process: the run as this very code has made it, if it is bodies and nothing else.
        self.plain: RunBytes | None = plain

    def __repr__(self) -> str:
        return (
            f"<Frame {self.type.name} channel={self.channel} number={self.number} first={self.first} "
            f"count={self.count} body={len(self.body)}>"
        )

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Frame):
            return NotImplemented
        return encode(self) == encode(other)


def head(frame: Frame) -> bytes:
    """The bytes of a frame without its body, checksum included.

    Raises:
        LocalProtocolError: the frame has not the form that its receiver will insist on.
    """
    form = FORMS[frame.type]
    header_size = len(frame.header)
    body_size = len(frame.body)
    if (
        header_size > (limits.HEADER_BYTES_MAX if form.has_header else 0)
        or body_size > (limits.BODY_BYTES_MAX if form.has_body else 0)
        or frame.count > form.rows_max
        or len(frame.table) != frame.count * form.row_bytes
        or frame.flags & ~form.flags
        or frame.number | frame.received | frame.first | frame.stamp > COUNTER_MAX
    ):
        raise LocalProtocolError(
            f"a {frame.type.name} frame can't have {header_size} bytes of header, {frame.count} rows in "
            f"{len(frame.table)} bytes, {body_size} bytes of body, flags {frame.flags:#x}, number {frame.number}, "
            f"received {frame.received}, first {frame.first}, stamp {frame.stamp}; a header has at most "
            f"{limits.HEADER_BYTES_MAX} bytes, a body {limits.BODY_BYTES_MAX}"
        )
    try:
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
    except struct.error as error:
        raise LocalProtocolError(f"a number of a {frame.type.name} frame does not fit its field: {error}") from error
    check = zlib.crc32(frame.table, zlib.crc32(frame.header, zlib.crc32(fixed)))
    if frame.flags & FLAG_BODY_CHECKED:
        check = zlib.crc32(frame.body, check)
    return b"".join((fixed, CHECK.pack(check), frame.header, frame.table))


def encode(frame: Frame) -> bytes:
    """All the bytes of a frame."""
    return b"".join((head(frame), frame.body))
