"""Records about rows of runs: settled, due, counted, and the duplicate ids that outlive them."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from meshq import limits
from meshq.broker.records._kinds import unreadable

# queue, run's position, first row, stop row, step, first number
_DUE_ROW: Final = struct.Struct("<IQHHHQ")
# queue, run's position, first row, stop row, step of the share
_COUNTED_HEAD: Final = struct.Struct("<IQHHH")
# row of the share, deliveries, returns, when it may be dispatched again (ms)
_COUNTED_ROW: Final = struct.Struct("<HHHQ")
#: Beyond that nobody counts.
COUNT_MAX: Final = 2**16 - 1
# queue, run's position, first row, stop row, step
_SETTLED_ROW: Final = struct.Struct("<IQHHH")
# position of the run that the ids came with, address bytes, number of ids
_IDS_HEAD: Final = struct.Struct("<QHH")
# ids that are newer than those of the record
_NEWER: Final = struct.Struct("<I")


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
        raise unreadable("due") from error
    if not row.start < row.stop or not row.step or not row.first:
        raise unreadable("due")
    return row


class CountedRow(NamedTuple):
    """How often a message was delivered, how often it came back for sure, and when it may be delivered again (ms; 0: at
    once)."""

    row: int
    deliveries: int
    returns: int
    due: int


class CountedRecord(NamedTuple):
    """The returned rows of a queue's share of a run."""

    queue: int
    position: int
    share: tuple[int, int, int]
    rows: tuple[CountedRow, ...]


def encode_counted(record: CountedRecord) -> bytes:
    """Encode the record of returned rows."""
    return _COUNTED_HEAD.pack(record.queue, record.position, *record.share) + encode_counts(record.rows)


def encode_counts(rows: Iterable[CountedRow]) -> bytes:
    """Encode counts of rows."""
    return b"".join([_COUNTED_ROW.pack(*row) for row in rows])


def decode_counts(data: bytes) -> tuple[CountedRow, ...]:
    """Decode counts of rows.

    Raises:
        struct.error: the data are not whole rows.
    """
    return tuple(CountedRow(*row) for row in _COUNTED_ROW.iter_unpack(data))


def decode_counted(payload: bytes) -> CountedRecord:
    """Decode the record of returned rows."""
    try:
        queue, position, start, stop, step = _COUNTED_HEAD.unpack_from(payload)
        rows = decode_counts(payload[_COUNTED_HEAD.size :])
    except struct.error as error:
        raise unreadable("counted") from error
    if not step or not start < stop or any(row.row >= len(range(start, stop, step)) for row in rows):
        raise unreadable("counted")
    return CountedRecord(queue, position, (start, stop, step), rows)


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
        raise unreadable("settled") from error
    if any(not row.start < row.stop <= limits.RUN_MESSAGES_MAX or not row.step for row in rows):
        raise unreadable("settled")
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


def encode_handed_ids(newer: int, address: str, ids: Sequence[bytes]) -> bytes:
    """Encode ids that another node has handed over, which had ``newer`` ones besides."""
    return _NEWER.pack(newer) + encode_ids(0, address, ids)


def decode_handed_ids(payload: bytes) -> tuple[int, IdsRecord]:
    """Decode ids that another node has handed over: how many newer ones it had, and the ids."""
    try:
        (newer,) = _NEWER.unpack_from(payload)
    except struct.error as error:
        raise unreadable("handed ids") from error
    return newer, decode_ids(payload[_NEWER.size :])


def decode_ids(payload: bytes) -> IdsRecord:
    """Read a record of duplicate ids."""
    try:
        origin, name_size, count = _IDS_HEAD.unpack_from(payload)
        at = _IDS_HEAD.size + name_size
        address = payload[_IDS_HEAD.size : at].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise unreadable("ids") from error
    sizes = payload[at : at + count]
    at += count
    if len(sizes) != count or at + sum(sizes) != len(payload):
        raise unreadable("ids")
    ids = []
    for size in sizes:
        ids.append(payload[at : at + size])
        at += size
    return IdsRecord(origin, address, tuple(ids))
