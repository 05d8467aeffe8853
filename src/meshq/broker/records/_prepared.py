"""Records of two-phase transactions: a prepared transaction, each run that waits for the decision, and the decision."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from meshq import limits
from meshq.broker.records._kinds import unreadable
from meshq.broker.records._rows import SettledRow, decode_settled, encode_settled
from meshq.wire import RUN_ROW_BYTES, RunBytes

# when it was prepared (ms), bytes of the xid, bytes of the user, runs that wait
_PREPARED_HEAD: Final = struct.Struct("<QHHI")
# position of the prepared record, producer, number, stamp, rows, address bytes, queue bytes
_WAITING_HEAD: Final = struct.Struct("<Q16sQQHHH")
# whether it was committed, bytes of the xid, bytes of the user
_DECIDED_HEAD: Final = struct.Struct("<?HH")


class PreparedRecord(NamedTuple):
    """A transaction that waits for its decision.

    ``acked``: the rows that it has acknowledged.  ``runs``: how many records of runs that it sends stand behind it.
    """

    xid: bytes
    user: str
    prepared_ms: int
    acked: tuple[SettledRow, ...]
    runs: int


def encode_prepared(record: PreparedRecord) -> bytes:
    """The record of a prepared transaction."""
    user = record.user.encode()
    head = _PREPARED_HEAD.pack(record.prepared_ms, len(record.xid), len(user), record.runs)
    return b"".join((head, record.xid, user, encode_settled(record.acked)))


def decode_prepared(payload: bytes) -> PreparedRecord:
    """Read the record of a prepared transaction."""
    try:
        prepared_ms, xid_size, user_size, runs = _PREPARED_HEAD.unpack_from(payload)
        user_at = _PREPARED_HEAD.size + xid_size
        held_at = user_at + user_size
        xid, user = payload[_PREPARED_HEAD.size : user_at], payload[user_at:held_at].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise unreadable("prepared transaction") from error
    if not 0 < len(xid) == xid_size <= limits.XID_BYTES_MAX or len(payload) < held_at:
        raise unreadable("prepared transaction")
    return PreparedRecord(xid, user, prepared_ms, tuple(decode_settled(payload[held_at:])), runs)


class WaitingRecord(NamedTuple):
    """A run that a prepared transaction sends.  ``prepared``: where the record of that stands."""

    prepared: int
    producer: bytes
    number: int
    stamp: int
    address: str
    queue: str | None
    content: RunBytes


def encode_waiting_head(record: WaitingRecord) -> bytes:
    """The record without the run's own bytes, which follow it as they are: table, then body."""
    address, queue = record.address.encode(), (record.queue or "").encode()
    head = _WAITING_HEAD.pack(
        record.prepared,
        record.producer,
        record.number,
        record.stamp,
        record.content.rows,
        len(address),
        len(queue),
    )
    return b"".join((head, address, queue))


def decode_waiting(payload: bytes) -> WaitingRecord:
    """Read the record of a run that waits."""
    try:
        prepared, producer, number, stamp, rows, address_size, queue_size = _WAITING_HEAD.unpack_from(payload)
        queue_at = _WAITING_HEAD.size + address_size
        table_at = queue_at + queue_size
        body_at = table_at + rows * RUN_ROW_BYTES
        address, queue = payload[_WAITING_HEAD.size : queue_at].decode(), payload[queue_at:table_at].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise unreadable("waiting run") from error
    content = RunBytes(rows, payload[table_at:body_at], 0, payload[body_at:])
    if (
        not 0 < rows <= limits.RUN_MESSAGES_MAX
        or not prepared
        or len(content.table) != rows * RUN_ROW_BYTES
        or len(content.body) != int.from_bytes(content.table[-4:], "little")
    ):
        raise unreadable("waiting run")
    return WaitingRecord(prepared, producer, number, stamp, address, queue or None, content)


class DecidedRecord(NamedTuple):
    """The decision about a prepared transaction; its record deletes the records of the transaction."""

    xid: bytes
    user: str
    committed: bool


def encode_decided(record: DecidedRecord) -> bytes:
    """The record of a decision."""
    user = record.user.encode()
    return b"".join((_DECIDED_HEAD.pack(record.committed, len(record.xid), len(user)), record.xid, user))


def decode_decided(payload: bytes) -> DecidedRecord:
    """Read the record of a decision."""
    try:
        committed, xid_size, user_size = _DECIDED_HEAD.unpack_from(payload)
        user_at = _DECIDED_HEAD.size + xid_size
        xid, user = payload[_DECIDED_HEAD.size : user_at], payload[user_at:].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise unreadable("decision") from error
    if not 0 < len(xid) == xid_size <= limits.XID_BYTES_MAX or len(payload) != user_at + user_size:
        raise unreadable("decision")
    return DecidedRecord(xid, user, committed)
