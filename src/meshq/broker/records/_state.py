"""Records of state: definitions, watermarks of queues, and the highest numbers of producers and links."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from meshq import limits
from meshq.broker.records._kinds import unreadable
from meshq.errors import RemoteProtocolError
from meshq.wire import decode_map, encode_map

# link, highest number
_LINK: Final = struct.Struct("<16sQ")
# link, highest number of the branch, bytes of the address
_BRANCH: Final = struct.Struct("<16sQH")
# queue, numbers given, numbers of the usual priority that may have been delivered
_MARKS: Final = struct.Struct("<IQQ")
# another priority, numbers of it that may have been delivered
_MARK: Final = struct.Struct("<BQ")
# whether some producer was forgotten, number of producers, number of gaps
_PRODUCERS_HEAD: Final = struct.Struct("<?II")
# producer, highest number
_PRODUCER: Final = struct.Struct("<16sQ")
# producer, first and last number that were not stored
_GAP: Final = struct.Struct("<16sQQ")
# whether it is of a checkpoint, whether some producer was forgotten, bytes of the user's name, number of producers,
# number of gaps
_USER_HEAD: Final = struct.Struct("<??HII")
# producer, highest number, whether its next runs are this user's
_USER_PRODUCER: Final = struct.Struct("<16sQ?")
# first number, the number behind the last one, kind
_HOLE: Final = struct.Struct("<QQB")
#: Producers of one checkpoint record.
PRODUCERS_MAX: Final = 4_096
#: What each kind of definition says.
_DEFINITIONS: Final[dict[str, dict[str, type]]] = {
    "address": {"kind": str, "name": str, "routing": str},
    "queue": {"kind": str, "name": str, "address": str, "number": int},
    "numbers": {"kind": str, "last": int},
    "divert": {"kind": str, "name": str, "address": str, "forwarding_address": str},
    "peer": {"kind": str, "queue": int, "connector": str},
    "binding": {"kind": str, "queue": int, "number": int, "name": str, "address": str, "routing": str},
    "pin": {"kind": str, "queue": str, "group": str, "node": str},
    "introduced": {"kind": str, "members": str, "lives": str},
    "renumbered": {"kind": str, "queue": int, "turn": int, "last": int, "numbers": bytes},
    "cursor": {
        "kind": str,
        "queue": int,
        "queue_name": str,
        "name": str,
        "epoch": int,
        "start": int,
        "since": int,
        "processed": int,
        "pinned": int,
        "lease_ms": int,
    },
    "holes": {"kind": str, "queue": int, "epoch": int, "ranges": bytes},
    "stage": {
        "kind": str,
        "number": int,
        "sink": str,
        "batch": int,
        "partition": int,
        "attempt": int,
        "timeout_ms": int,
    },
    "sink": {"kind": str, "sink": str, "batch": int},
}
#: A queue of a further node that fills the header which describes it takes a little more in its record.
DEFINITION_BYTES_MAX: Final = 2 * limits.HEADER_BYTES_MAX
#: What it may say besides, and what holds if it doesn't: such a key is written only if it says something else.
_OPTIONAL: Final[dict[str, dict[str, Any]]] = {
    "address": {"on_use": False},
    "queue": {
        "paused": False,
        "subscription": "",
        "filter": "",
        "on_use": False,
        "routes": "",
        "wanted": "",
        "holder": "",
    },
    "divert": {"filter": "", "exclusive": False},
    "peer": {"left": False, "over": False, "store": b"", "turn": 0, "link": b""},
    "cursor": {"user": "", "fence": 0, "holder": "", "token": "", "max_lag": 0},
    "stage": {"user": "", "prepared": False, "dropped": False, "messages": 0},
    "sink": {"user": "", "placing": b"", "purge": ""},
    "binding": {"filter": "", "turn": 0, "path": "", "node_name": "", "relay": 0, "durable": True},
}


def encode_links(watermarks: dict[bytes, int]) -> bytes:
    """The high watermarks of cluster links."""
    return b"".join([_LINK.pack(link, number) for link, number in watermarks.items()])


def decode_links(payload: bytes) -> dict[bytes, int]:
    """Read a record of the high watermarks of cluster links."""
    try:
        return dict(_LINK.iter_unpack(payload))
    except struct.error as error:
        raise unreadable("links") from error


class BranchMark(NamedTuple):
    """A branch of a link: the highest number of it that is stored.  Its messages are those of one address."""

    link: bytes
    address: str
    number: int


class BranchesRecord(NamedTuple):
    """All branches of all cluster links; ``checkpoint``: as a segment begins with them."""

    branches: tuple[BranchMark, ...]
    checkpoint: bool


def encode_branches(record: BranchesRecord) -> bytes:
    """All branches of all cluster links."""
    names = [one.address.encode() for one in record.branches]
    heads = zip(record.branches, names, strict=True)
    parts = [_BRANCH.pack(one.link, one.number, len(name)) + name for one, name in heads]
    return b"".join([bytes([record.checkpoint]), *parts])


def decode_branches(payload: bytes) -> BranchesRecord:
    """Read a record of the branches of cluster links."""
    found: list[BranchMark] = []
    at = 1
    if payload[:1] not in (b"\0", b"\1"):
        raise unreadable("branches")
    try:
        while at < len(payload):
            link, number, size = _BRANCH.unpack_from(payload, at)
            at += _BRANCH.size + size
            if at > len(payload):
                raise unreadable("branches")
            found.append(BranchMark(link, payload[at - size : at].decode(), number))
    except (struct.error, UnicodeDecodeError) as error:
        raise unreadable("branches") from error
    return BranchesRecord(tuple(found), payload[:1] == b"\1")


def encode_definition(values: dict[str, Any]) -> bytes:
    """Encode a definition; defaults are left out, so that an older version can read it."""
    optional = _OPTIONAL.get(values["kind"], {})
    return encode_map({name: value for name, value in values.items() if optional.get(name, ...) != value})


def decode_definition(payload: bytes) -> dict[str, Any]:
    """Decode a definition; missing values are defaults."""
    try:
        values = decode_map(payload, DEFINITION_BYTES_MAX)
    except RemoteProtocolError as error:
        raise unreadable("definition") from error
    kind = values.get("kind")
    if kind == "settings" and type(values.get("pattern")) is str:
        # What else it says is read as settings are.
        return values
    schema = _DEFINITIONS.get(kind) if type(kind) is str else None
    if schema is None:
        raise unreadable("definition")
    values = {**_OPTIONAL.get(str(kind), {}), **values}
    types = {name: type(value) for name, value in _OPTIONAL.get(str(kind), {}).items()}
    if {name: type(value) for name, value in values.items()} != {**schema, **types}:
        raise unreadable("definition")
    return values


def encode_holes(holes: list[tuple[int, int, int]]) -> bytes:
    """The holes of a queue: the first number, the number behind the last one, and the kind of each."""
    return b"".join([_HOLE.pack(*hole) for hole in holes])


def decode_holes(ranges: bytes) -> list[tuple[int, int, int]]:
    """Read the holes of a queue.  Raises: struct.error: these are none."""
    return list(_HOLE.iter_unpack(ranges))


def encode_marks(queue: int, given: int, delivered: dict[int, int]) -> bytes:
    """How far a queue's numbers have been given, and how far messages of each priority may have been delivered."""
    usual = limits.PRIORITY_DEFAULT
    others = [_MARK.pack(priority, mark) for priority, mark in delivered.items() if priority != usual]
    return b"".join([_MARKS.pack(queue, given, delivered.get(usual, 0)), *others])


def decode_marks(payload: bytes) -> tuple[int, int, dict[int, int]]:
    """Read a queue's marks."""
    try:
        queue, given, usual = _MARKS.unpack_from(payload)
        others = dict(_MARK.iter_unpack(payload[_MARKS.size :]))
    except struct.error as error:
        raise unreadable("marks") from error
    if any(priority > limits.PRIORITY_MAX for priority in others):
        raise unreadable("marks")
    return queue, given, {limits.PRIORITY_DEFAULT: usual, **others}


class ProducersRecord(NamedTuple):
    """The highest numbers of producers, and the gaps of numbers that were not stored.

    ``forgotten``: a producer was forgotten.
    """

    forgotten: bool
    marks: tuple[tuple[bytes, int], ...]
    gaps: tuple[tuple[bytes, int, int], ...]


def encode_producers(record: ProducersRecord) -> bytes:
    """A record of producers."""
    head = _PRODUCERS_HEAD.pack(record.forgotten, len(record.marks), len(record.gaps))
    return b"".join(
        [head, *(_PRODUCER.pack(*mark) for mark in record.marks), *(_GAP.pack(*gap) for gap in record.gaps)]
    )


def decode_producers(payload: bytes) -> ProducersRecord:
    """Read a record of producers."""
    try:
        forgotten, marks, gaps = _PRODUCERS_HEAD.unpack_from(payload)
        gaps_at = _PRODUCERS_HEAD.size + marks * _PRODUCER.size
        record = ProducersRecord(
            forgotten,
            tuple(_PRODUCER.iter_unpack(payload[_PRODUCERS_HEAD.size : gaps_at])),
            tuple(_GAP.iter_unpack(payload[gaps_at:])),
        )
    except struct.error as error:
        raise unreadable("producers") from error
    if (len(record.marks), len(record.gaps)) != (marks, gaps):
        raise unreadable("producers")
    return record


class UserProducersRecord(NamedTuple):
    """The producers of one user: their highest numbers, and the gaps below.

    ``marks``: producer, highest number, and whether the producer's runs behind this record are this user's.
    ``whole``: the record is one of a checkpoint; else it only says whose the next runs of its producers are.
    """

    user: str
    whole: bool
    forgotten: bool
    marks: tuple[tuple[bytes, int, bool], ...]
    gaps: tuple[tuple[bytes, int, int], ...]


def encode_user_producers(record: UserProducersRecord) -> bytes:
    """A record of one user's producers."""
    user = record.user.encode()
    head = _USER_HEAD.pack(record.whole, record.forgotten, len(user), len(record.marks), len(record.gaps))
    marks = (_USER_PRODUCER.pack(*mark) for mark in record.marks)
    return b"".join([head, user, *marks, *(_GAP.pack(*gap) for gap in record.gaps)])


def decode_user_producers(payload: bytes) -> UserProducersRecord:
    """Read a record of one user's producers."""
    try:
        whole, forgotten, user_size, marks, gaps = _USER_HEAD.unpack_from(payload)
        marks_at = _USER_HEAD.size + user_size
        gaps_at = marks_at + marks * _USER_PRODUCER.size
        record = UserProducersRecord(
            payload[_USER_HEAD.size : marks_at].decode(),
            whole,
            forgotten,
            tuple(_USER_PRODUCER.iter_unpack(payload[marks_at:gaps_at])),
            tuple(_GAP.iter_unpack(payload[gaps_at:])),
        )
    except (struct.error, UnicodeDecodeError) as error:
        raise unreadable("user's producers") from error
    if len(payload) < gaps_at or (len(record.marks), len(record.gaps)) != (marks, gaps):
        raise unreadable("user's producers")
    return record
