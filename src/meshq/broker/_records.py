"""What the broker writes into the journal: one encoding per kind of record, each the inverse of its reader."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from meshq import limits
from meshq.broker.queue._traits import readable
from meshq.errors import DamagedError, RemoteProtocolError
from meshq.wire import RUN_ROW_BYTES, RunBytes, decode_map, encode_map

#: Record kinds; 1 is the journal's own.  Never reused.
RUN: Final = 2
SETTLED: Final = 3
IDS: Final = 4
DEFINITION: Final = 5
MARKS: Final = 6
PRODUCERS: Final = 7
ROUTED: Final = 8
LINKS: Final = 9
PLACED: Final = 10
DUE: Final = 11
COUNTED: Final = 12

# producer, number, stamp, rows, targets, skipped rows, address bytes
_RUN_HEAD: Final = struct.Struct("<16sQQHHHH")
# queue, first number, first row, step
_TARGET: Final = struct.Struct("<IQHH")
# link, the highest of its numbers in the run; step of the producer's numbers
_ROUTED_HEAD: Final = struct.Struct("<16sQH")
# queue, first number, first row, stop row, step, queues of the peer
_ROUTED_TARGET: Final = struct.Struct("<IQHHHH")
# link, highest number
_LINK: Final = struct.Struct("<16sQ")
# bytes of notes, number of settled rows
_PLACED_HEAD: Final = struct.Struct("<HH")
# queue, run's position, first row, stop row, step, first number
_DUE_ROW: Final = struct.Struct("<IQHHHQ")
# queue, run's position, first row, stop row, step of the share
_COUNTED_HEAD: Final = struct.Struct("<IQHHH")
# row of the share, deliveries, returns, when it may be granted again (ms)
_COUNTED_ROW: Final = struct.Struct("<HHHQ")
#: Beyond that nobody counts.
COUNT_MAX: Final = 2**16 - 1
# queue, run's position, first row, stop row, step
_SETTLED_ROW: Final = struct.Struct("<IQHHH")
# position of the run that the ids came with, address bytes, number of ids
_IDS_HEAD: Final = struct.Struct("<QHH")
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
#: Producers of one checkpoint record.
PRODUCERS_MAX: Final = 4_096
#: Where messages were moved from, and why.
_ORIGIN: Final = ("address", "queue", "reason")
#: Parts of one run in queues.
ROUTED_TARGETS_MAX: Final = 2**16 - 1
#: What each kind of definition says.
_DEFINITIONS: Final[dict[str, dict[str, type]]] = {
    "address": {"kind": str, "name": str, "routing": str},
    "queue": {"kind": str, "name": str, "address": str, "number": int},
    "numbers": {"kind": str, "last": int},
    "divert": {"kind": str, "name": str, "address": str, "forwarding_address": str},
}
#: What it may say besides, and what holds if it doesn't: such a key is written only if it says something else.
_OPTIONAL: Final[dict[str, dict[str, Any]]] = {
    "address": {"on_use": False},
    "queue": {"paused": False, "subscription": "", "filter": "", "on_use": False},
    "divert": {"filter": "", "exclusive": False},
}


class RunTarget(NamedTuple):
    """A queue that a run was placed in: its number, the first message's number there, and which rows are its own."""

    queue: int
    first: int
    start: int
    step: int


class RunRecord(NamedTuple):
    """A run as it stands in the journal.  ``skipped``: rows that no queue got, repeats of known duplicate ids."""

    producer: bytes
    number: int
    stamp: int
    address: str
    targets: tuple[RunTarget, ...]
    skipped: tuple[int, ...]
    content: RunBytes


def encode_run_head(record: RunRecord) -> bytes:
    """The record without the run's own bytes, which follow it as they are: table, then body."""
    address = record.address.encode()
    targets, skipped = record.targets, record.skipped
    head = _RUN_HEAD.pack(
        record.producer, record.number, record.stamp, record.content.rows, len(targets), len(skipped), len(address)
    )
    if len(targets) == 1 and not skipped:
        return b"".join((head, address, _TARGET.pack(*targets[0])))
    rows = struct.pack(f"<{len(skipped)}H", *skipped)
    return b"".join((head, address, *(_TARGET.pack(*target) for target in targets), rows))


def decode_run(payload: bytes) -> RunRecord:
    """Read a run record."""
    try:
        producer, number, stamp, rows, targets, skips, address_size = _RUN_HEAD.unpack_from(payload)
        at = _RUN_HEAD.size + address_size
        address = payload[_RUN_HEAD.size : at].decode()
        skipped_at = at + targets * _TARGET.size
        table_at = skipped_at + skips * 2
        body_at = table_at + rows * RUN_ROW_BYTES
        found = tuple(RunTarget(*row) for row in _TARGET.iter_unpack(payload[at:skipped_at]))
        skipped = struct.unpack_from(f"<{skips}H", payload, skipped_at)
        content = RunBytes(rows, payload[table_at:body_at], 0, payload[body_at:])
        end = int.from_bytes(content.table[-4:], "little")
    except (struct.error, UnicodeDecodeError) as error:
        raise _unreadable("run") from error
    if (
        not 0 < rows <= limits.RUN_MESSAGES_MAX
        or len(content.table) != rows * RUN_ROW_BYTES
        or len(content.body) != end
        or any(target.start >= target.step for target in found)
        or any(row >= rows for row in skipped)
    ):
        raise _unreadable("run")
    return RunRecord(producer, number, stamp, address, found, skipped, content)


class RoutedTarget(NamedTuple):
    """What of a run a queue has: the first message's number there, which rows, and for which queues of a peer.

    The number is 0 while the messages are not due.
    """

    queue: int
    first: int
    rows: range
    remote: tuple[int, ...]


class RoutedRecord(NamedTuple):
    """A run that came over a link, or that other nodes have a share of.

    ``link``: whose number ``link_last`` is; empty for a run that a client sent.
    """

    link: bytes
    link_last: int
    number_step: int
    run: RunRecord
    targets: tuple[RoutedTarget, ...]


def encode_routed_head(record: RoutedRecord) -> bytes:
    """The record without the run's own bytes, which follow it as they are: table, then body."""
    run = record.run
    address = run.address.encode()
    parts = [
        _ROUTED_HEAD.pack(record.link or bytes(16), record.link_last, record.number_step),
        _RUN_HEAD.pack(run.producer, run.number, run.stamp, run.content.rows, len(record.targets), 0, len(address)),
        address,
    ]
    for queue, first, rows, remote in record.targets:
        parts.append(_ROUTED_TARGET.pack(queue, first, rows.start, rows.stop, rows.step, len(remote)))
        parts.append(struct.pack(f"<{len(remote)}I", *remote))
    return b"".join(parts)


def decode_routed(payload: bytes) -> RoutedRecord:
    """Read a routed run's record."""
    try:
        link, link_last, number_step = _ROUTED_HEAD.unpack_from(payload)
        at = _ROUTED_HEAD.size
        producer, number, stamp, rows, count, _, address_size = _RUN_HEAD.unpack_from(payload, at)
        at += _RUN_HEAD.size
        address = payload[at : at + address_size].decode()
        at += address_size
        targets = []
        for _ in range(count):
            queue, first, start, stop, step, remotes = _ROUTED_TARGET.unpack_from(payload, at)
            at += _ROUTED_TARGET.size
            remote = struct.unpack_from(f"<{remotes}I", payload, at)
            at += 4 * remotes
            targets.append(RoutedTarget(queue, first, range(start, stop, step), remote))
        body_at = at + rows * RUN_ROW_BYTES
        content = RunBytes(rows, payload[at:body_at], 0, payload[body_at:])
        end = int.from_bytes(content.table[-4:], "little")
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise _unreadable("routed run") from error
    if (
        not 0 < rows <= limits.RUN_MESSAGES_MAX
        or len(content.table) != rows * RUN_ROW_BYTES
        or len(content.body) != end
        or number_step < 1
        or any(not target.rows or target.rows[-1] >= rows for target in targets)
    ):
        raise _unreadable("routed run")
    run = RunRecord(producer, number, stamp, address, (), (), content)
    return RoutedRecord(link if any(link) else b"", link_last, number_step, run, tuple(targets))


class PlacedRecord(NamedTuple):
    """A run about which there is more to say than where it went.

    ``arrival``: when the first broker took it, ms; 0: that doesn't matter.  ``origin``: address, queue and reason, if
    it was moved here; ``settled``: what is gone from there by this very record.
    """

    arrival: int
    origin: tuple[str, str, str] | None
    settled: tuple[SettledRow, ...]
    routed: RoutedRecord


def encode_placed_head(record: PlacedRecord) -> bytes:
    """The record without the run's own bytes, which follow it as they are: table, then body."""
    notes: dict[str, Any] = {}
    if record.arrival:
        notes["arrival"] = record.arrival
    if record.origin is not None:
        notes.update(zip(_ORIGIN, record.origin, strict=True))
    said = encode_map(notes)
    return b"".join(
        (
            _PLACED_HEAD.pack(len(said), len(record.settled)),
            said,
            encode_settled(record.settled),
            encode_routed_head(record.routed),
        )
    )


def decode_placed(payload: bytes) -> PlacedRecord:
    """Read the record of a run about which there is more to say."""
    try:
        size, count = _PLACED_HEAD.unpack_from(payload)
        settled_at = _PLACED_HEAD.size + size
        routed_at = settled_at + count * _SETTLED_ROW.size
        notes = decode_map(payload[_PLACED_HEAD.size : settled_at], limits.HEADER_BYTES_MAX)
    except (struct.error, RemoteProtocolError) as error:
        raise _unreadable("placed run") from error
    arrival, origin = notes.pop("arrival", 0), tuple(notes.pop(name, None) for name in _ORIGIN)
    moved = all(type(part) is str for part in origin)
    if notes or type(arrival) is not int or not (moved or set(origin) == {None}):
        raise _unreadable("placed run")
    routed = decode_routed(payload[routed_at:])
    if not readable(routed.run.content):
        raise _unreadable("placed run")
    return PlacedRecord(
        arrival,
        (str(origin[0]), str(origin[1]), str(origin[2])) if moved else None,
        tuple(decode_settled(payload[settled_at:routed_at])),
        routed,
    )


class DueRow(NamedTuple):
    """Rows of a run that have become visible in a queue, and the number of the first of them."""

    queue: int
    position: int
    start: int
    stop: int
    step: int
    first: int


def encode_due(row: DueRow) -> bytes:
    """The record of messages that have become due."""
    return _DUE_ROW.pack(*row)


def decode_due(payload: bytes) -> DueRow:
    """Read the record of messages that have become due."""
    try:
        row = DueRow(*_DUE_ROW.unpack(payload))
    except struct.error as error:
        raise _unreadable("due") from error
    if not row.start < row.stop or not row.step or not row.first:
        raise _unreadable("due")
    return row


class CountedRow(NamedTuple):
    """How often a message was delivered, how often it came back for sure, and when it may be delivered again (ms; 0: at
    once)."""

    row: int
    deliveries: int
    returns: int
    due: int


class CountedRecord(NamedTuple):
    """What came back of a queue's share of a run."""

    queue: int
    position: int
    share: tuple[int, int, int]
    rows: tuple[CountedRow, ...]


def encode_counted(record: CountedRecord) -> bytes:
    """The record of what came back."""
    head = _COUNTED_HEAD.pack(record.queue, record.position, *record.share)
    return b"".join([head, *(_COUNTED_ROW.pack(*row) for row in record.rows)])


def decode_counted(payload: bytes) -> CountedRecord:
    """Read the record of what came back."""
    try:
        queue, position, start, stop, step = _COUNTED_HEAD.unpack_from(payload)
        rows = tuple(CountedRow(*row) for row in _COUNTED_ROW.iter_unpack(payload[_COUNTED_HEAD.size :]))
    except struct.error as error:
        raise _unreadable("counted") from error
    if not step or not start < stop or any(row.row >= len(range(start, stop, step)) for row in rows):
        raise _unreadable("counted")
    return CountedRecord(queue, position, (start, stop, step), rows)


def encode_links(marks: dict[bytes, int]) -> bytes:
    """The high marks of links."""
    return b"".join([_LINK.pack(link, number) for link, number in marks.items()])


def decode_links(payload: bytes) -> dict[bytes, int]:
    """Read a record of links' high marks."""
    try:
        return dict(_LINK.iter_unpack(payload))
    except struct.error as error:
        raise _unreadable("links") from error


class SettledRow(NamedTuple):
    """Rows of a run that a queue has no more use for."""

    queue: int
    position: int
    start: int
    stop: int
    step: int


def encode_settled(rows: Iterable[SettledRow]) -> bytes:
    """A settled record."""
    return b"".join([_SETTLED_ROW.pack(*row) for row in rows])


def decode_settled(payload: bytes) -> list[SettledRow]:
    """Read a settled record."""
    try:
        rows = [SettledRow(*row) for row in _SETTLED_ROW.iter_unpack(payload)]
    except struct.error as error:
        raise _unreadable("settled") from error
    if any(not row.start < row.stop <= limits.RUN_MESSAGES_MAX or not row.step for row in rows):
        raise _unreadable("settled")
    return rows


class IdsRecord(NamedTuple):
    """Duplicate ids that outlive the run they came with; ``origin`` is that run's position, for their order."""

    origin: int
    address: str
    ids: tuple[bytes, ...]


def encode_ids(origin: int, address: str, ids: Sequence[bytes]) -> bytes:
    """A record of duplicate ids."""
    name = address.encode()
    sizes = bytes(map(len, ids))
    return b"".join((_IDS_HEAD.pack(origin, len(name), len(ids)), name, sizes, *ids))


def decode_ids(payload: bytes) -> IdsRecord:
    """Read a record of duplicate ids."""
    try:
        origin, name_size, count = _IDS_HEAD.unpack_from(payload)
        at = _IDS_HEAD.size + name_size
        address = payload[_IDS_HEAD.size : at].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise _unreadable("ids") from error
    sizes = payload[at : at + count]
    at += count
    if len(sizes) != count or at + sum(sizes) != len(payload):
        raise _unreadable("ids")
    ids = []
    for size in sizes:
        ids.append(payload[at : at + size])
        at += size
    return IdsRecord(origin, address, tuple(ids))


def encode_definition(values: dict[str, Any]) -> bytes:
    """A definition; what is as it is by default is left out, so that an older version reads all that it can know."""
    optional = _OPTIONAL.get(values["kind"], {})
    return encode_map({name: value for name, value in values.items() if optional.get(name, ...) != value})


def decode_definition(payload: bytes) -> dict[str, Any]:
    """Read a definition; what it leaves out is as it is by default."""
    try:
        values = decode_map(payload, limits.HEADER_BYTES_MAX)
    except RemoteProtocolError as error:
        raise _unreadable("definition") from error
    kind = values.get("kind")
    if kind == "settings" and type(values.get("pattern")) is str:
        # What else it says is read as settings are.
        return values
    schema = _DEFINITIONS.get(kind) if type(kind) is str else None
    if schema is None:
        raise _unreadable("definition")
    values = {**_OPTIONAL.get(str(kind), {}), **values}
    types = {name: type(value) for name, value in _OPTIONAL.get(str(kind), {}).items()}
    if {name: type(value) for name, value in values.items()} != {**schema, **types}:
        raise _unreadable("definition")
    return values


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
        raise _unreadable("marks") from error
    if any(priority > limits.PRIORITY_MAX for priority in others):
        raise _unreadable("marks")
    return queue, given, {limits.PRIORITY_DEFAULT: usual, **others}


class ProducersRecord(NamedTuple):
    """The high marks of producers, and below them the gaps of what was not stored.

    ``forgotten``: some producer's mark was given up.
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
        raise _unreadable("producers") from error
    if (len(record.marks), len(record.gaps)) != (marks, gaps):
        raise _unreadable("producers")
    return record


def _unreadable(what: str) -> DamagedError:
    return DamagedError("journal", 0, f"a readable {what} record", "one whose check is right and whose form is not")
