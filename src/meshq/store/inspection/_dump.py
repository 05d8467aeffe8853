"""The records of a store, as text."""

from __future__ import annotations

from collections.abc import Iterator

from meshq.abc import Disk
from meshq.errors import NotFoundError
from meshq.store.directory._identity import read_identity
from meshq.store.directory._ping_pong_file import read_whole
from meshq.store.directory._store_lock import layout_of
from meshq.store.formats._batch_format import CHECKPOINT, CHECKPOINT_BATCH, DEMOTED, records_of
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._record import JournalRecord
from meshq.store.formats._scan_format import scan
from meshq.store.formats._segment_format import NO_KEYS
from meshq.store.recovery._recovered_records import make_record
from meshq.store.recovery._recovery import read_manifest

#: Bytes of a payload that are shown.
SHOWN_BYTES = 48


def dump_store(disk: Disk, root: str, keyring: Keyring = NO_KEYS) -> Iterator[str]:
    """Yield lines that show identity, manifest, segments, batches and records, the deleted ones included.

    Raises:
        NotFoundError: there is no store.
        DamagedError, SettingsError: the rest of the store can't be read.
        OSError: the disk failed.
    """
    layout = layout_of(disk, root, keyring)
    try:
        identity, manifest = read_identity(disk, layout), read_manifest(disk, layout)
    except FileNotFoundError:
        identity = manifest = None
    if identity is None or manifest is None:
        raise NotFoundError(f"there is no store in {layout.root}")
    yield f"node {identity.node_id} journal {identity.journal_id.hex()}"
    yield f"manifest generation {manifest.generation} last {manifest.last} next segment {manifest.next_segment}"
    for entry in manifest.entries:
        state = ("sealed" if entry.sealed else "open") + (" compacted" if entry.compacted else "")
        yield f"segment {entry.number} {state} base {entry.base} last {entry.last} length {entry.length}"
        path = layout.segment(entry.number)
        data = read_whole(disk, path, entry.length if entry.sealed else None)
        found = scan(data, path, entry, keyring=keyring)
        for batch in found.batches:
            kind = "checkpoint" if batch.flags & CHECKPOINT_BATCH else "batch" if batch.records else "watermark"
            yield f"  {kind} {batch.number} at {batch.offset} durable {batch.durable_position}"
            for position, row, start, end in records_of(found.data, batch):
                yield "    " + _line(make_record(found.data, position, row, (start, end), True), row)
        if found.tail != "sealed":
            yield f"  {len(data) - found.end} bytes behind: {found.tail}"


def _line(record: JournalRecord, row: int) -> str:
    flags = "tombstone" if record.tombstone else "record"
    flags += " demoted" if row & DEMOTED else " checkpoint" if row & CHECKPOINT else ""
    targets = f" deletes {list(record.deletes)}" if record.deletes else ""
    targets += f" refs {list(record.refs)}" if record.refs else ""
    payload = repr(record.payload[:SHOWN_BYTES]) + ("…" if len(record.payload) > SHOWN_BYTES else "")
    return f"{record.position} kind {record.kind} {flags}{targets} {len(record.payload)} bytes {payload}"
