"""Records that bring messages: a run as its producer sent it, one that queues share, one that came from elsewhere."""

from __future__ import annotations

import struct
from typing import Any, Final, NamedTuple

from meshq import limits
from meshq.broker.records._kinds import PLACED, ROUTED, RUN, unreadable
from meshq.broker.records._row_options import has_priorities, readable
from meshq.broker.records._rows import (
    _SETTLED_ROW,
    CountedRow,
    SettledRow,
    decode_counts,
    decode_settled,
    encode_counts,
    encode_settled,
)
from meshq.errors import RemoteProtocolError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import RUN_ROW_BYTES, RunBytes, decode_map, encode_map

# producer, number, stamp, rows, targets, skipped rows, address bytes
_RUN_HEAD: Final = struct.Struct("<16sQQHHHH")
# queue, first number, first row, step
_TARGET: Final = struct.Struct("<IQHH")
# link, the highest of its numbers in the run; step of the producer's numbers
_ROUTED_HEAD: Final = struct.Struct("<16sQH")
# queue, first number, first row, stop row, step, queues of the peer
_ROUTED_TARGET: Final = struct.Struct("<IQHHHH")
# bytes of notes, number of settled rows
_PLACED_HEAD: Final = struct.Struct("<HH")
#: What is said of a run, at most: the counts of all its rows are more than a header of a frame has room for.
_NOTES_BYTES_MAX: Final = 2**16 - 1
#: Where messages were moved from, and why.
_ORIGIN: Final = ("address", "queue", "reason")
#: Where the body of the one message lies, and how large it is.
_BODY: Final = ("body", "size")
#: What a prepared transaction or a stage has to do with the messages, and what holds if it is not said.
_HOLD: Final[dict[str, Any]] = {"held": b"", "sends_to": "", "holder": 0, "unstaged": False}
#: Texts that say which queue of another node the messages are for: name, routing type, filter, subscription, features.
_QUEUE_TEXTS: Final = 5
#: Parts of one run in queues.
ROUTED_TARGETS_MAX: Final = 2**16 - 1


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


def decode_run(payload: bytes, missing: int = 0) -> RunRecord:
    """Read a run record; if bytes are missing behind its head, without the content."""
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
    except (struct.error, UnicodeDecodeError) as error:
        raise unreadable("run") from error
    if (
        not 0 < rows <= limits.RUN_MESSAGES_MAX
        or not _fits(content, missing)
        or any(target.start >= target.step for target in found)
        or any(row >= rows for row in skipped)
    ):
        raise unreadable("run")
    return RunRecord(producer, number, stamp, address, found, skipped, content)


def _fits(content: RunBytes, missing: int) -> bool:
    """Whether table and body are whole, or both of them missing."""
    if missing:
        return not content.table and not content.body
    table = content.table
    whole = len(table) == content.rows * RUN_ROW_BYTES and len(content.body) == int.from_bytes(table[-4:], "little")
    return whole and has_priorities(content)


class RoutedTarget(NamedTuple):
    """A queue's share of a run: the first message's number, the rows, and the queues of a peer.

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


def decode_routed(payload: bytes, missing: int = 0) -> RoutedRecord:
    """Read a routed run's record; if bytes are missing behind its head, without the content."""
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
    except (struct.error, UnicodeDecodeError, ValueError) as error:
        raise unreadable("routed run") from error
    if (
        not 0 < rows <= limits.RUN_MESSAGES_MAX
        or not _fits(content, missing)
        or number_step < 1
        or any(not target.rows or target.rows[-1] >= rows for target in targets)
    ):
        raise unreadable("routed run")
    run = RunRecord(producer, number, stamp, address, (), (), content)
    return RoutedRecord(link if any(link) else b"", link_last, number_step, run, tuple(targets))


class PlacedRecord(NamedTuple):
    """A run about which there is more to say than where it went.

    ``arrival``: when the first broker took it, ms; 0: that doesn't matter.  ``origin``: address, queue and reason, if
    it was moved here; ``settled``: what is gone from there by this very record.  ``body``: id and size of the body of
    its one message, if that lies in a file of its own.  ``begun``: the time of ``arrival`` by this node's clock, ms, if
    another node was the first and that matters; 0: as ``arrival``.  ``counts``: what was counted of messages before
    they came here.  ``queue``: what describes the queue of another node that messages wait for, if that may have to be
    made.  ``entry``: what it is if it is no message, but something else that waits for another node.  ``held``: the id
    of the prepared transaction that has acknowledged the messages, or of which the entry is a part, on their way;
    ``target``: the queue to which such a part sends.  ``holder``: the position of the record of the transaction that
    has acknowledged the messages, as long as that record lives; 0: none has.  ``unstaged``: the messages come out of a
    stage, and their duplicate ids count from here on.
    """

    arrival: int
    origin: tuple[str, str, str] | None
    settled: tuple[SettledRow, ...]
    routed: RoutedRecord
    body: tuple[bytes, int] | None = None
    begun: int = 0
    counts: tuple[CountedRow, ...] = ()
    queue: tuple[str, ...] = ()
    entry: str = ""
    held: bytes = b""
    target: str = ""
    holder: int = 0
    unstaged: bool = False

    @property
    def moved(self) -> bool:
        """Whether it was in a queue here: who has sent it, and under which duplicate ids, was said when it came."""
        # What is given back has no origin; and what comes from another node may have one from there.
        return not self.routed.link and (self.origin is not None or bool(self.settled) or bool(self.entry))


def encode_placed_head(record: PlacedRecord) -> bytes:
    """The record without the run's own bytes, which follow it as they are: table, then body."""
    notes: dict[str, Any] = {}
    if record.arrival:
        notes["arrival"] = record.arrival
    if record.begun:
        notes["begun"] = record.begun
    if record.origin is not None:
        notes.update(zip(_ORIGIN, record.origin, strict=True))
    if record.body is not None:
        notes.update(zip(_BODY, record.body, strict=True))
    if record.counts:
        notes["counts"] = encode_counts(record.counts)
    if record.queue:
        notes["target"] = list(record.queue)
    if record.entry:
        notes["entry"] = record.entry
    for name, value in _hold_of(record).items():
        if value:
            notes[name] = value
    said = encode_map(notes)
    return b"".join(
        (
            _PLACED_HEAD.pack(len(said), len(record.settled)),
            said,
            encode_settled(record.settled),
            encode_routed_head(record.routed),
        )
    )


def decode_placed(payload: bytes, missing: int = 0) -> PlacedRecord:
    """Read the record of a run about which there is more to say; if bytes are missing behind its head, without the
    content."""
    try:
        size, count = _PLACED_HEAD.unpack_from(payload)
        settled_at = _PLACED_HEAD.size + size
        routed_at = settled_at + count * _SETTLED_ROW.size
        notes = decode_map(payload[_PLACED_HEAD.size : settled_at], _NOTES_BYTES_MAX)
    except (struct.error, RemoteProtocolError) as error:
        raise unreadable("placed run") from error
    arrival, begun = notes.pop("arrival", 0), notes.pop("begun", 0)
    origin = tuple(notes.pop(name, None) for name in _ORIGIN)
    moved = all(type(part) is str for part in origin)
    body_id, body_size = (notes.pop(name, None) for name in _BODY)
    large = type(body_id) is bytes and len(body_id) == IDENTITY_BYTES and type(body_size) is int and body_size > 0
    if not large and (body_id, body_size) != (None, None):
        raise unreadable("placed run")
    counts, target, entry = notes.pop("counts", b""), notes.pop("target", []), notes.pop("entry", "")
    hold = {name: notes.pop(name, default) for name, default in _HOLD.items()}
    if (
        notes
        or type(entry) is not str
        or any(type(hold[name]) is not type(default) for name, default in _HOLD.items())
        or type(arrival) is not int
        or type(begun) is not int
        or not (moved or all(part is None for part in origin))
    ):
        raise unreadable("placed run")
    routed = decode_routed(payload[routed_at:], missing)
    counted = _counted(counts, routed.run.content.rows)
    if type(target) is not list or len(target) not in (0, _QUEUE_TEXTS) or not all(type(one) is str for one in target):
        raise unreadable("placed run")
    if not missing and not readable(routed.run.content):
        raise unreadable("placed run")
    return PlacedRecord(
        arrival,
        (str(origin[0]), str(origin[1]), str(origin[2])) if moved else None,
        tuple(decode_settled(payload[settled_at:routed_at])),
        routed,
        (bytes(body_id), int(body_size)) if large else None,
        begun,
        counted,
        tuple(target),
        entry,
        bytes(hold["held"]),
        str(hold["sends_to"]),
        int(hold["holder"]),
        bool(hold["unstaged"]),
    )


def _hold_of(record: PlacedRecord) -> dict[str, Any]:
    said = {"held": record.held, "sends_to": record.target, "holder": record.holder}
    return {**said, "unstaged": record.unstaged}


def _counted(data: Any, rows: int) -> tuple[CountedRow, ...]:
    try:
        found = decode_counts(data)
    except (struct.error, TypeError) as error:
        raise unreadable("placed run") from error
    if any(one.row >= rows for one in found):
        raise unreadable("placed run")
    return found


def content_of(kind: int, payload: bytes) -> RunBytes:
    """The messages in a record that brings some."""
    if kind == RUN:
        return decode_run(payload).content
    if kind == ROUTED:
        return decode_routed(payload).run.content
    if kind == PLACED:
        return decode_placed(payload).routed.run.content
    raise unreadable("run")
