"""Segments that are written whole and never appended to: copies of a recovered tail and of compacted records."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

import attrs

from meshq.abc import Disk
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.directory._ping_pong_file import DiskFullError, is_disk_full
from meshq.store.formats._batch_format import BatchData, BatchLocation, encode_batch
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._segment_format import SegmentHeader, SegmentKeys, encode_header


@attrs.frozen
class WrittenSegment:
    """A sealed segment on disk that no manifest lists yet, and the offsets of its batches."""

    entry: SegmentEntry
    offsets: list[int]


def write_sealed(
    disk: Disk, layout: Layout, header: SegmentHeader, batches: Sequence[BatchData], *, durable: int, compacted: bool
) -> WrittenSegment:
    """Write a whole segment; durable on return, its name included.

    Raises:
        DiskFullError: the disk is full; the attempt was undone.
        OSError: anything else failed.
    """
    path = layout.segment(header.number)
    try:
        entry, offsets = _write_all(disk, layout, header, batches, durable)
    except OSError as error:
        if not is_disk_full(error):
            raise
        with contextlib.suppress(FileNotFoundError):
            disk.remove(path)
        raise DiskFullError(error.errno, error.strerror, path) from error
    disk.sync_directory(layout.journal)
    return WrittenSegment(attrs.evolve(entry, compacted=compacted), offsets)


def _write_all(
    disk: Disk, layout: Layout, header: SegmentHeader, batches: Sequence[BatchData], durable: int
) -> tuple[SegmentEntry, list[int]]:
    keys = SegmentKeys(header, layout.keyring)
    offset, previous, last = SEGMENT_HEADER_BYTES, keys.genesis, header.base - 1
    offsets: list[int] = []
    file = disk.open(layout.segment(header.number), create=True)
    try:
        file.write_at(0, [encode_header(header)])
        for number, batch_data in enumerate(batches, 1):
            batch, tag = encode_batch(keys, BatchLocation(number, offset, previous, durable), batch_data)
            file.write_at(offset, [batch, tag])
            offsets.append(offset)
            offset, previous, last = offset + len(batch) + len(tag), tag, batch_data.last
        file.sync()
    finally:
        file.close()
    entry = SegmentEntry(number=header.number, base=header.base, last=last, length=offset, tag=previous, sealed=True)
    return entry, offsets
