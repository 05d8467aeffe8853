"""Records of two-phase transactions: a prepared transaction, each run that waits for the decision, and the decision."""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from meshq import limits
from meshq.broker.records._kinds import unreadable
from meshq.broker.records._row_options import has_priorities
from meshq.broker.records._rows import SettledRow, decode_settled, encode_settled
from meshq.ids import IDENTITY_BYTES
from meshq.wire import RUN_ROW_BYTES, RunBytes

# when it was prepared (ms), bytes of the xid, bytes of the user, runs that wait
_PREPARED_HEAD: Final = struct.Struct("<QHHI")
# position of the prepared record, producer, number, stamp, rows, address bytes, queue bytes
_WAITING_HEAD: Final = struct.Struct("<Q16sQQHHH")
# whether it was committed, bytes of the xid, bytes of the user
_DECIDED_HEAD: Final = struct.Struct("<?HH")
# position of the record that begins it
_ARRIVED: Final = struct.Struct("<Q")
# number of the store-and-forward queue
_HANDED: Final = struct.Struct("<I")
# bytes of the xid, bytes of the user
_ELSEWHERE_HEAD: Final = struct.Struct("<HH")


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
        or not has_priorities(content)
    ):
        raise unreadable("waiting run")
    return WaitingRecord(prepared, producer, number, stamp, address, queue or None, content)


class ArrivingRecord(NamedTuple):
    """A transaction that another node hands over, of which not all has come yet.

    ``link``: the link over which it comes.  The messages that it has acknowledged name the position of this record.
    """

    link: bytes
    prepared: PreparedRecord


def encode_arriving(record: ArrivingRecord) -> bytes:
    """The record of a transaction that another node hands over."""
    return record.link + encode_prepared(record.prepared)


def decode_arriving(payload: bytes) -> ArrivingRecord:
    """Read the record of a transaction that another node hands over."""
    return ArrivingRecord(payload[:IDENTITY_BYTES], decode_prepared(payload[IDENTITY_BYTES:]))


def encode_arrived(position: int) -> bytes:
    """The record of a transaction of which all has come.  ``position``: that of its first record."""
    return _ARRIVED.pack(position)


def decode_arrived(payload: bytes) -> int:
    """Read the record of a transaction of which all has come; return the position of its first record."""
    try:
        (position,) = _ARRIVED.unpack(payload)
    except struct.error as error:
        raise unreadable("transaction that has come") from error
    return int(position)


class HandedRecord(NamedTuple):
    """A transaction that is being handed over to another node.

    ``queue``: the number of the store-and-forward queue for the node, in which are all messages that it sends.
    ``prepared.acked``: the rows that were not on their way there when this was written.
    """

    queue: int
    prepared: PreparedRecord


def encode_handed(record: HandedRecord) -> bytes:
    """The record of a transaction that is being handed over."""
    return _HANDED.pack(record.queue) + encode_prepared(record.prepared)


def decode_handed(payload: bytes) -> HandedRecord:
    """Read the record of a transaction that is being handed over."""
    try:
        (queue,) = _HANDED.unpack_from(payload)
    except struct.error as error:
        raise unreadable("handed transaction") from error
    return HandedRecord(queue, decode_prepared(payload[_HANDED.size :]))


class ElsewhereRecord(NamedTuple):
    """A transaction that is decided at another node.  ``where``: the URL of that node."""

    xid: bytes
    user: str
    where: str


def encode_elsewhere(record: ElsewhereRecord) -> bytes:
    """The record of a transaction that is decided at another node."""
    user = record.user.encode()
    head = _ELSEWHERE_HEAD.pack(len(record.xid), len(user))
    return b"".join((head, record.xid, user, record.where.encode()))


def decode_elsewhere(payload: bytes) -> ElsewhereRecord:
    """Read the record of a transaction that is decided at another node."""
    try:
        xid_size, user_size = _ELSEWHERE_HEAD.unpack_from(payload)
        user_at = _ELSEWHERE_HEAD.size + xid_size
        where_at = user_at + user_size
        xid, user = payload[_ELSEWHERE_HEAD.size : user_at], payload[user_at:where_at].decode()
        where = payload[where_at:].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise unreadable("transaction elsewhere") from error
    if not 0 < len(xid) == xid_size <= limits.XID_BYTES_MAX or len(payload) < where_at:
        raise unreadable("transaction elsewhere")
    return ElsewhereRecord(xid, user, where)


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
