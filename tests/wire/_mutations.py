"""Changing one thing about a conversation.  Each function gives the bytes that go over the link, in pieces."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any, Final, NamedTuple

import msgpack

from meshq.wire import (
    COUNTER_MAX,
    FLAG_BODY_CHECKED,
    NUMBERED,
    Answer,
    Attached,
    Authenticated,
    Challenge,
    Close,
    ConsumerLost,
    Deliver,
    Frame,
    FrameType,
    Hello,
    Refuse,
    Welcome,
    encode,
)
from meshq.wire._frames import CHECK, FIXED, FORMS, HEAD_BYTES
from tests.wire._frames_strategy import RUNS, SEMANTIC, Mutation, Step

#: Fields of the fixed header with their sizes in bits, in their order.
FIELDS: Final = (
    ("magic", 0), ("version", 8), ("type", 8), ("flags", 16), ("header", 16), ("count", 32), ("body", 32),
    ("channel", 32), ("number", 64), ("received", 64), ("first", 64), ("stamp", 64),
)  # fmt: skip
_INDEX: Final = {name: index for index, (name, _) in enumerate(FIELDS)}
_TYPES: Final = {int(frame_type): frame_type for frame_type in FrameType}
_RUN: Final = RUNS[3]

#: A frame of each type that a node says, to be said by a client.
SERVER_FRAMES: Final = (
    Frame(FrameType.WELCOME, header=Welcome(version=1, node_id=bytes(16), node_name="n").encode()),
    Frame(FrameType.CHALLENGE, header=Challenge(salt=bytes(16), iterations=4096, nonce=bytes(32)).encode()),
    Frame(FrameType.AUTHENTICATED, header=Authenticated().encode()),
    Frame(FrameType.ATTACHED, header=Attached(session=1, key=bytes(16)).encode()),
    Frame(
        FrameType.DELIVER,
        channel=2,
        first=1,
        header=Deliver(address="a", producer=bytes(16), number=1, sequence=1).encode(),
        count=_RUN.rows,
        table=_RUN.table,
        body=_RUN.body,
    ),
    Frame(FrameType.CONFIRM, channel=1, first=1),
    Frame(FrameType.REFUSE, channel=1, first=1, header=Refuse(messages=1, code=65).encode()),
    Frame(FrameType.ANSWER, first=1, header=Answer(values=("number", 0)).encode()),
    Frame(FrameType.CREDIT, first=4096),
    Frame(FrameType.CONSUMER_LOST, channel=2, header=ConsumerLost(code=70).encode()),
    Frame(FrameType.CLOSE, header=Close(code=36, text="stopping").encode()),
    Frame(FrameType.PING),
)


class Example(NamedTuple):
    """What goes over the link, piece by piece; ``pieces[i]`` stands for ``steps[i]`` as far as there is one."""

    pieces: list[bytes]
    semantic: bool


def apply(steps: list[Step], mutation: Mutation) -> Example:
    """The conversation with this one thing changed."""
    pieces = [encode(step.frame) for step in steps]
    at = mutation.at % len(steps)
    if mutation.kind in ("order", "state"):
        frames = [step.frame for step in steps]
        change = _order if mutation.kind == "order" else _state
        return Example([encode(frame) for frame in change(frames, at, mutation.what, mutation.value)], True)
    if mutation.kind in ("rows", "body"):
        tables = [index for index, step in enumerate(steps) if step.frame.table]
        at = tables[mutation.at % len(tables)] if tables else at
    if mutation.kind == "range":
        at = 0
    if mutation.kind == "length":
        # The reader takes the bytes that follow for a part of this frame: the checksum covers them, too.
        pieces[at] = _length(pieces[at], b"".join(pieces[at + 1 :]), mutation.what, mutation.value)
    else:
        pieces[at] = _CHANGES[mutation.kind](pieces[at], mutation.what, mutation.value)
    return Example(pieces, mutation.kind in SEMANTIC)


def seal(fields: list[Any], rest: bytes) -> bytes:
    """A frame of these fixed fields and what follows them, with the checksum that its reader will compute."""
    fixed = FIXED.pack(*fields)
    form = FORMS.get(_TYPES.get(fields[_INDEX["type"]], FrameType.PING))
    covered = fields[_INDEX["header"]] + fields[_INDEX["count"]] * (form.row_bytes if form else 0)
    if fields[_INDEX["flags"]] & FLAG_BODY_CHECKED:
        covered += fields[_INDEX["body"]]
    return fixed + CHECK.pack(zlib.crc32(rest[:covered], zlib.crc32(fixed))) + rest


def _split(piece: bytes) -> tuple[list[Any], bytes, bytes, bytes]:
    """Fixed fields, header, table, body."""
    fields = list(FIXED.unpack_from(piece))
    table_at = HEAD_BYTES + fields[_INDEX["header"]]
    body_at = len(piece) - fields[_INDEX["body"]]
    return fields, piece[HEAD_BYTES:table_at], piece[table_at:body_at], piece[body_at:]


def _joined(fields: list[Any], header: bytes, table: bytes, body: bytes) -> bytes:
    fields[_INDEX["header"]] = len(header) & 0xFFFF
    fields[_INDEX["body"]] = len(body)
    row_bytes = FORMS[_TYPES[fields[_INDEX["type"]]]].row_bytes
    if row_bytes:
        fields[_INDEX["count"]] = len(table) // row_bytes
    return seal(fields, header + table + body)


def twist(old: int, bits: int, what: int, value: int) -> int:
    """Another value for a field of so many bits: near the old one, at an end, with a bit flipped, or any."""
    top = 2**bits - 1
    others = (0, 1, old + 1, old - 1, top, top >> 1, (top >> 1) + 1, old ^ 1 << value % bits, old * 2, value, value)
    return others[what % len(others)] & top


def _field(piece: bytes, what: int, value: int) -> bytes:
    """One field of the fixed header has another value."""
    fields, *parts = _split(piece)
    index = 1 + what % (len(FIELDS) - 1)
    fields[index] = twist(fields[index], FIELDS[index][1], what // 11, value)
    return seal(fields, b"".join(parts))


def _twin(piece: bytes, what: int, value: int) -> bytes:
    """Another type, everything else as it was."""
    fields, *parts = _split(piece)
    fields[_INDEX["type"]] = list(FrameType)[value % len(FrameType)]
    return seal(fields, b"".join(parts))


def _length(piece: bytes, following: bytes, what: int, value: int) -> bytes:
    """A length says something else than what is there."""
    fields, *parts = _split(piece)
    index = _INDEX[("header", "count", "body")[what % 3]]
    fields[index] = twist(fields[index], FIELDS[index][1], what // 3, value)
    rest = b"".join(parts)
    return seal(fields, rest + following)[: len(piece)]


def _grown(piece: bytes, what: int, value: int) -> bytes:
    """A part is longer or shorter, and its length says so."""
    fields, *parts = _split(piece)
    index = value % 3
    part = parts[index]
    size = (0, 1, 4, 16, 20, 4096, 4097)[what % 7]
    parts[index] = part[:-size] if what & 64 and size else part + b"\x01" * size
    return _joined(fields, *parts)


_RANGES: Final = ((0, 0), (0, 1), (1, 2), (1, 1_000), (2, 2), (2, 1_000), (2, 1), (1, 0), (0, COUNTER_MAX))


def _range(piece: bytes, what: int, value: int) -> bytes:
    """A client that speaks other protocol versions; the first frame of a node is changed elsewhere."""
    fields, _, table, body = _split(piece)
    if fields[_INDEX["type"]] != FrameType.HELLO:
        return _header(piece, what, value)
    oldest, newest = _RANGES[what % len(_RANGES)]
    return _joined(fields, Hello(oldest=oldest, newest=newest).encode(), table, body)


_KEYS: Final = ("extra", "~extra", "", "address", "number", "counts", "text", "handed", "oldest")
_VALUES: Final = (
    b"\xc0", b"\xc3", b"\x00", b"\xff", b"\xcf" + b"\xff" * 8, b"\xd3\x80" + bytes(7), b"\xcb\x7f\xf8" + bytes(6),
    b"\xa0", b"\xa1x", b"\xda\x10\x00" + b"x" * 4096, b"\xc4\x00", b"\xc4\x10" + bytes(16), b"\x90", b"\x91\xc0",
    b"\x92\x00\x01", b"\x93\x00\x01\x05", b"\x80", b"\x91\x91\x90", b"\xd4\x00\x00", b"\xc1", b"\xa1\xff",
    b"\xdc\xff\xff", b"\xdd\xff\xff\xff\xff",
)  # fmt: skip


def _header(piece: bytes, what: int, value: int) -> bytes:
    """One key of the header is missing, there twice, of another kind, or of another value."""
    fields, header, table, body = _split(piece)
    pairs = [(msgpack.packb(key), msgpack.packb(item)) for key, item in msgpack.unpackb(header or b"\x80").items()]
    change, at = value & 7, (value >> 3) % max(len(pairs), 1)
    new = _VALUES[what % len(_VALUES)]
    if change == 0 and pairs:
        del pairs[at]
    elif change == 1 and pairs:
        pairs.append(pairs[at])
    elif change in (2, 3, 4, 5) and pairs:
        pairs[at] = (pairs[at][0], new)
    elif change == 6:
        pairs.insert(at, (msgpack.packb(_KEYS[(value >> 3) % len(_KEYS)]), new))
    else:
        return _joined(fields, header + new if value & 8 else new, table, body)
    data = (bytes([0x80 | len(pairs)]) if len(pairs) < 16 else b"\xde\0" + bytes([len(pairs)])) + b"".join(
        key + item for key, item in pairs
    )
    return _joined(fields, data, table, body)


def _rows(piece: bytes, what: int, value: int) -> bytes:
    """A word of a row has another value, or a row is missing, there twice, or in another place."""
    fields, header, table, body = _split(piece)
    size = FORMS[_TYPES[fields[_INDEX["type"]]]].row_bytes
    if not table:
        return _field(piece, what, value)
    rows = [table[index : index + size] for index in range(0, len(table), size)]
    change, at = value & 7, (value >> 3) % len(rows)
    if change == 0:
        del rows[at]
    elif change == 1:
        rows.insert(at, rows[what % len(rows)])
    elif change == 2:
        other = what % len(rows)
        rows[at], rows[other] = rows[other], rows[at]
    else:
        word = what % (size // 4) * 4
        old = int.from_bytes(rows[at][word : word + 4], "little")
        new = twist(old, 32, what // 5, value >> 3).to_bytes(4, "little")
        rows[at] = rows[at][:word] + new + rows[at][word + 4 :]
    return _joined(fields, header, b"".join(rows), body)


def _body(piece: bytes, what: int, value: int) -> bytes:
    """The body has other bytes, fewer or more; its length says so."""
    fields, header, table, body = _split(piece)
    if not body:
        return _field(piece, what, value)
    at = value % len(body)
    if what % 4 == 0:
        body = body[:at]
    elif what % 4 == 1:
        body = body[:at] + bytes([value & 0xFF]) + body[at:]
    elif what % 4 == 2:
        body = body + bytes(value % 70_000)
    else:
        body = body[:at] + bytes([value & 0xFF]) + body[at + 1 :]
    return _joined(fields, header, table, body)


def renumbered(frames: list[Frame]) -> list[Frame]:
    """The same frames with numbers as they should be."""
    number = 0
    result = []
    for frame in frames:
        copy = Frame(
            frame.type,
            flags=frame.flags,
            channel=frame.channel,
            received=frame.received,
            first=frame.first,
            stamp=frame.stamp,
            header=frame.header,
            count=frame.count,
            table=frame.table,
            body=frame.body,
        )
        if frame.type in NUMBERED:
            number += 1
            copy.number = number
        result.append(copy)
    return result


def _order(frames: list[Frame], at: int, what: int, value: int) -> list[Frame]:
    """A frame is missing, there twice, or in another place; numbered as before, or rightly."""
    other = value % len(frames)
    match what % 3:
        case 0:
            frames[at], frames[other] = frames[other], frames[at]
        case 1:
            frames.insert(other, frames[at])
        case _:
            del frames[at]
    return renumbered(frames) if what & 64 else frames


def _state(frames: list[Frame], at: int, what: int, value: int) -> list[Frame]:
    """A frame that is not legal at this place, or not from this side."""
    frames.insert(at, SERVER_FRAMES[value % len(SERVER_FRAMES)] if what & 1 else frames[value % len(frames)])
    return renumbered(frames) if what & 6 else frames


def _flip(piece: bytes, what: int, value: int) -> bytes:
    data = bytearray(piece)
    data[value % len(data)] ^= 1 << what % 8
    return bytes(data)


def _overwrite(piece: bytes, what: int, value: int) -> bytes:
    at = what % len(piece)
    return piece[:at] + value.to_bytes(8, "little") + piece[at + 8 :]


def _insert(piece: bytes, what: int, value: int) -> bytes:
    at = what % len(piece)
    return piece[:at] + value.to_bytes(8, "little")[: what % 9] + piece[at:]


def _delete(piece: bytes, what: int, value: int) -> bytes:
    at = value % len(piece)
    return piece[:at] + piece[at + 1 + what % 40 :]


def _truncate(piece: bytes, what: int, value: int) -> bytes:
    return piece[: value % len(piece)]


_CHANGES: Final[dict[str, Callable[[bytes, int, int], bytes]]] = {
    "field": _field,
    "twin": _twin,
    "grown": _grown,
    "range": _range,
    "header": _header,
    "rows": _rows,
    "body": _body,
    "flip": _flip,
    "overwrite": _overwrite,
    "insert": _insert,
    "delete": _delete,
    "truncate": _truncate,
}
