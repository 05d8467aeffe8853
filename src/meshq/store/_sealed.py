"""Segments that are written at once and never appended to: copies of a recovered tail and of what compaction keeps."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from meshq.abc import Disk
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store._batch_format import Place, Sheaf, encode_batch
from meshq.store._layout_format import Layout
from meshq.store._manifest_format import SegmentEntry
from meshq.store._segment_format import SegmentHeader, SegmentKeys, encode_header


@attrs.frozen
class Written:
    """A sealed segment on disk that no manifest names yet, and where its batches begin."""

    entry: SegmentEntry
    offsets: list[int]


def write_sealed(
    disk: Disk, layout: Layout, header: SegmentHeader, sheaves: Sequence[Sheaf], *, durable: int, compacted: bool
) -> Written:
    """Write a whole segment; durable on return, its name included.  Raises: OSError."""
    keys = SegmentKeys(header)
    file = disk.open(layout.segment(header.number), create=True)
    try:
        file.write_at(0, [encode_header(header)])
        offset, previous, last = SEGMENT_HEADER_BYTES, keys.genesis, header.base - 1
        offsets: list[int] = []
        for number, sheaf in enumerate(sheaves, 1):
            batch, tag = encode_batch(keys, Place(number, offset, previous, durable), sheaf)
            file.write_at(offset, [batch, tag])
            offsets.append(offset)
            offset, previous, last = offset + len(batch) + len(tag), tag, sheaf.last
        file.sync()
    finally:
        file.close()
    disk.sync_directory(layout.journal)
    entry = SegmentEntry(
        number=header.number,
        base=header.base,
        last=last,
        length=offset,
        tag=previous,
        sealed=True,
        compacted=compacted,
    )
    return Written(entry, offsets)
