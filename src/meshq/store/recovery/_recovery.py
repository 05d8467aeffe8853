"""Recovery: prove the bytes of a store, decide how the last life ended, and leave every segment sealed.

The order matters, because the power may fail at any point:

1. Everything is read and proven before anything is changed; of a sealed segment with an index, the index in its
   place.  So damage refuses a store that is unchanged.
2. Files that no manifest lists are removed: preallocated segments, unfinished copies, victims of a compaction.
3. If the last life did not seal its segment, that segment is sealed at the end of the bytes that are known to be
   synced.  The batch behind that point, if it is whole, may exist in memory only (after a failed sync): its records
   are copied to a new segment and that is synced.
4. A new manifest says so, and no longer lists segments that are not needed.  Only now has anything changed.
5. When the owner has read all records, the bytes behind the seals are cut off (``truncate_segments``): a start that is
   followed by the next start uses no more space.

A full disk needs no space: where the copy does not fit, the batch is written again over itself and synced, and where
the manifest does not fit, the next manifest that is written says the same.

A life that ends between any two of these steps leaves a store that the next one treats in the same way: ``recover`` of
a recovered store finds the same records.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import attrs

from meshq.abc import Buffer, Disk, Entropy
from meshq.errors import DamagedError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.directory._identity import Identity, load_identity, repair_identity
from meshq.store.directory._ping_pong_file import DiskFullError, PingPongFile, is_disk_full
from meshq.store.formats._batch_format import (
    CHECKPOINT,
    CHECKPOINT_BATCH,
    SIZE_MASK,
    TARGETS,
    BatchData,
    BatchHeader,
    records_of,
    rows_of,
    unpack_targets,
)
from meshq.store.formats._layout_format import BALLAST, TEMPORARY_SUFFIX, Layout, index_number, segment_number
from meshq.store.formats._manifest_format import PURPOSE, Manifest, SegmentEntry, decode_manifest, encode_manifest
from meshq.store.formats._ping_pong_format import PingPongCopy
from meshq.store.formats._scan_format import Scan
from meshq.store.formats._segment_format import SALT_BYTES, SegmentHeader
from meshq.store.formats._segment_index_format import IndexedBatch, indexed_batches
from meshq.store.segments._reclaim_plan import removable
from meshq.store.segments._sealed_segment import write_sealed
from meshq.store.segments._segment_index import OpenedSegment, open_segment, read_segment
from meshq.store.segments._segment_usage_machine import SegmentRecords, SegmentUsage


@attrs.define
class Recovery:
    """A store as ``recover`` found it and left it."""

    identity: Identity
    manifest: Manifest
    usage: SegmentUsage
    #: Positions of the live records of the owner's last checkpoint.
    checkpoint: list[int]
    #: The last position that the checkpoint covers.
    covered: int
    #: Bytes of a torn tail that were dropped.
    torn_bytes: int = 0
    #: Segments whose index was used, and its form: not all bytes of these segments were read.
    forms: dict[int, int] = attrs.field(factory=dict)
    #: Segments whose index was refused, and the reason.
    refused: dict[int, str] = attrs.field(factory=dict)


@attrs.define
class _ScannedStore:
    """The contents of the segments, collected in the order of their numbers."""

    usage: SegmentUsage = attrs.field(factory=SegmentUsage)
    #: Records with targets: segment, size, deletes and refs.
    targets: list[tuple[SegmentRecords, int, tuple[int, ...], tuple[int, ...]]] = attrs.field(factory=list)
    checkpoint: list[int] = attrs.field(factory=list)
    covered: int = 0
    torn_bytes: int = 0
    forms: dict[int, int] = attrs.field(factory=dict)
    refused: dict[int, str] = attrs.field(factory=dict)

    def opened(self, number: int, opened: OpenedSegment) -> None:
        """Note how a sealed segment was read."""
        if opened.form is not None:
            self.forms[number] = opened.form
        if opened.refused is not None:
            self.refused[number] = opened.refused

    def take(self, segment: SegmentRecords, batches: Iterable[IndexedBatch]) -> None:
        """Enter batches of a segment."""
        for indexed in batches:
            self._take(segment, indexed)

    def _take(self, segment: SegmentRecords, indexed: IndexedBatch) -> None:
        rows = indexed.rows
        segment.add_batch(indexed.first, indexed.offset, rows, None if segment.positions is None else indexed.positions)
        if indexed.flags & CHECKPOINT_BATCH:
            self.covered = max(self.covered, indexed.first - 1)
        if any(row & (TARGETS | CHECKPOINT) for row in rows):
            for position, row, start, _, _ in indexed.records():
                if row & TARGETS:
                    deletes, refs, _ = unpack_targets(indexed.data, start)
                    self.targets.append((segment, row & SIZE_MASK, deletes, refs))
                if row & CHECKPOINT:
                    self.checkpoint.append(position)

    def settle(self) -> None:
        """Apply the targets of all records, once all of the records are known."""
        for segment, size, deletes, refs in self.targets:
            self.usage.add_targets(segment, size, deletes, refs)
        self.targets.clear()
        self.checkpoint = [position for position in self.checkpoint if self.usage.is_live(position)]


def read_manifest(disk: Disk, layout: Layout) -> Manifest | None:
    """Read the newest manifest; None if the store is new.  Raises: DamagedError, SettingsError, OSError."""
    pair = PingPongFile(disk, layout.journal, PURPOSE)
    copy = pair.read()
    if copy is not None:
        return decode_manifest(copy.generation, copy.body, pair.path(copy.generation))
    if any(segment_number(name) is not None for name in disk.names(layout.journal)):
        raise DamagedError(pair.path(0), 0, "a manifest, as there are segments", "no file")
    return None


def write_manifest(disk: Disk, layout: Layout, manifest: Manifest) -> None:
    """Write a manifest, which is then the newest; durable on return.  Raises: OSError."""
    copy = PingPongCopy(manifest.generation, encode_manifest(manifest))
    PingPongFile(disk, layout.journal, PURPOSE).write(copy)


def check_owner(layout: Layout, manifest: Manifest, identity: Identity) -> None:
    """Raise ``DamagedError`` if the manifest is of another store."""
    if (manifest.node_id, manifest.journal_id) != (identity.node_id, identity.journal_id):
        expected = f"node {identity.node_id}, journal {identity.journal_id.hex()}"
        found = f"node {manifest.node_id.hex()}, journal {manifest.journal_id.hex()}"
        raise DamagedError(f"{layout.journal}/{PURPOSE}-{manifest.generation % 2}", 32, expected, found)


def recover(disk: Disk, layout: Layout, entropy: Entropy, node_id: bytes | None = None) -> Recovery:
    """Recover the store whose directories exist and whose lock is held.

    Raises:
        DamagedError: durable bytes are missing or changed; nothing was changed.
        SettingsError: the store is of a newer version, or of another node; nothing was changed.
        OSError: the disk failed.
    """
    manifest = read_manifest(disk, layout)
    identity = load_identity(disk, layout, entropy, node_id, is_new=manifest is None)
    if manifest is None:
        manifest = Manifest(generation=0, node_id=identity.node_id, journal_id=identity.journal_id)
    check_owner(layout, manifest, identity)
    scanned = _ScannedStore()
    unsealed: list[_UnsealedSegment] = []
    owner = (identity.node_id, identity.journal_id)
    for entry in manifest.entries:
        segment = scanned.usage.add_segment(entry.number, entry.base, compacted=entry.compacted)
        if entry.sealed:
            opened = open_segment(disk, layout, entry, owner)
            scanned.take(segment, opened.batches)
            scanned.opened(entry.number, opened)
            continue
        found = read_segment(disk, layout, entry, owner)
        proven = found.proven(entry)
        scanned.take(segment, indexed_batches(found, proven))
        unsealed.append(_UnsealedSegment(entry, segment, found, proven))
        scanned.torn_bytes += len(found.data) - found.end if found.tail == "torn" else 0
    _remove_unlisted(disk, layout, manifest)
    before = manifest.generation
    manifest = _seal(disk, layout, manifest, unsealed, entropy.token(SALT_BYTES), scanned)
    scanned.settle()
    if manifest.generation > before:
        # Otherwise the durable manifest still lists the old segments: none may be removed.
        manifest = _without_unneeded(disk, layout, manifest, scanned)
        _remove_unlisted(disk, layout, manifest)
    with contextlib.suppress(DiskFullError):
        repair_identity(disk, layout, identity)
    return Recovery(
        identity,
        manifest,
        scanned.usage,
        scanned.checkpoint,
        scanned.covered,
        scanned.torn_bytes,
        scanned.forms,
        scanned.refused,
    )


@attrs.frozen
class _UnsealedSegment:
    """A segment that the last life was writing; ``segment`` has its proven records."""

    entry: SegmentEntry
    segment: SegmentRecords
    found: Scan
    #: How many of its batches are known to have been synced.
    proven: int

    def sealed(self, count: int) -> SegmentEntry:
        """Return the manifest entry of the segment, sealed behind its first ``count`` batches, which ``segment``
        has.
        """
        last = self.found.batches[count - 1] if count else None
        return attrs.evolve(
            self.entry,
            sealed=True,
            last=self.segment.last,
            length=last.end if last else SEGMENT_HEADER_BYTES,
            tag=last.tag if last else self.found.keys.genesis,
        )

    def tail(self) -> list[BatchData]:
        """Return the batches that are whole and were perhaps never synced."""
        unproven = self.found.batches[self.proven :]
        return [_batch_data(self.found.data, batch) for batch in unproven if batch.records or batch.flags]


def _seal(
    disk: Disk,
    layout: Layout,
    manifest: Manifest,
    unsealed: list[_UnsealedSegment],
    salt: bytes,
    scanned: _ScannedStore,
) -> Manifest:
    """Seal every segment; return the manifest that says so, which is durable if its generation is new."""
    tail = [batch_data for one in unsealed for batch_data in one.tail()]
    sealed = [one.sealed(one.proven) for one in unsealed]
    try:
        copy = [_copy_tail(disk, layout, manifest, tail, salt)] if tail else []
        try:
            found = manifest.changed(entries=[*sealed, *copy])
            write_manifest(disk, layout, found)
        except DiskFullError:
            for entry in copy:
                disk.remove(layout.segment(entry.number))
            raise
    except DiskFullError:
        if not manifest.generation:
            raise
        return _seal_in_place(disk, layout, manifest, unsealed, scanned)
    for entry in copy:
        read = read_segment(disk, layout, entry, (manifest.node_id, manifest.journal_id))
        scanned.take(scanned.usage.add_segment(entry.number, entry.base), indexed_batches(read))
    return found


def _seal_in_place(
    disk: Disk, layout: Layout, manifest: Manifest, unsealed: list[_UnsealedSegment], scanned: _ScannedStore
) -> Manifest:
    """Seal every segment without space for a copy, and perhaps without space for a manifest."""
    sealed: list[SegmentEntry] = []
    for one in unsealed:
        count = one.proven
        if one.tail():
            count = len(one.found.batches)
            _write_again(disk, layout.segment(one.entry.number), one.found.batches[one.proven].offset, one.found.end)
            scanned.take(one.segment, indexed_batches(one.found, start=one.proven))
        sealed.append(one.sealed(count))
        # Read again, because the records were taken from the bytes before they were written again.
        read_segment(disk, layout, sealed[-1], (manifest.node_id, manifest.journal_id))
    truncate_segments(disk, layout, sealed)
    found = manifest.changed(entries=sealed)
    try:
        write_manifest(disk, layout, found)
    except DiskFullError:
        return attrs.evolve(found, generation=manifest.generation)
    return found


def _write_again(disk: Disk, path: str, start: int, end: int) -> None:
    """Make bytes durable that may be in memory only.  Raises: OSError."""
    file = disk.open(path)
    try:
        file.write_at(start, [file.read_at(start, end - start)])
        file.sync()
    finally:
        file.close()


def truncate_segments(disk: Disk, layout: Layout, entries: Iterable[SegmentEntry]) -> None:
    """Cut off the bytes behind the seals: unused preallocated bytes and torn tails.  Raises: OSError."""
    for entry in entries:
        file = disk.open(layout.segment(entry.number))
        try:
            if file.size() > entry.length:
                file.truncate(entry.length)
        except OSError as error:
            if not is_disk_full(error):
                raise
        finally:
            file.close()


def _batch_data(data: Buffer, batch: BatchHeader) -> BatchData:
    rows = rows_of(data, batch).tolist()
    parts = [memoryview(data)[start:end] for _, _, start, end in records_of(data, batch)]
    return BatchData(batch.first, rows, parts, batch.flags)


def _copy_tail(disk: Disk, layout: Layout, manifest: Manifest, tail: list[BatchData], salt: bytes) -> SegmentEntry:
    header = SegmentHeader(
        number=manifest.next_segment,
        base=tail[0].first,
        epoch=0,
        node_id=manifest.node_id,
        journal_id=manifest.journal_id,
        salt=salt,
        key_id=layout.keyring.current_id,
    )
    written = write_sealed(disk, layout, header, tail, durable=tail[0].first - 1, compacted=False)
    return written.entry


def _without_unneeded(disk: Disk, layout: Layout, manifest: Manifest, scanned: _ScannedStore) -> Manifest:
    """Drop the segments that are not needed from the manifest; their files are removed as unlisted ones."""
    usage = scanned.usage
    unneeded = removable(usage.segments, active=0, covered=scanned.covered)
    if not unneeded:
        return manifest
    kept = manifest.changed(without=unneeded)
    try:
        write_manifest(disk, layout, kept)
    except DiskFullError:
        return manifest
    usage.remove(unneeded)
    return kept


def _remove_unlisted(disk: Disk, layout: Layout, manifest: Manifest) -> None:
    listed = manifest.by_number()
    for name in disk.names(layout.journal):
        number = segment_number(name)
        if number is None:
            number = index_number(name)
        if name == BALLAST or name.endswith(TEMPORARY_SUFFIX) or (number is not None and number not in listed):
            disk.remove(f"{layout.journal}/{name}")
