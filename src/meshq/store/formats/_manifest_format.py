"""The manifest: the list of segments, and where each sealed segment ends.

The body of the pair ``journal/manifest-0`` and ``-1``:

====== ===== ==================================================================
offset bytes what (integers little-endian)
====== ===== ==================================================================
0      16    node id
16     16    journal id
32     8     the number that the next segment gets, at least
40     8     the highest position known to be durable
48     4     how many entries follow, n
52     4     zero
56     56 n  entries: number 8, flags 4 (1 sealed, 2 compacted), zero 4, base 8,
             last position 8, length 8, tag of the last batch 16
====== ===== ==================================================================

``length`` is the end of a sealed segment; of the segment being written, the bytes that are known to be durable.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import attrs

from meshq.errors import DamagedError

PURPOSE: Final = "manifest"
SEALED: Final = 1
COMPACTED: Final = 2
_HEAD: Final = struct.Struct("<16s16sQQII")
_ENTRY: Final = struct.Struct("<QIIQQQ16s")


@attrs.frozen(kw_only=True)
class SegmentEntry:
    """The manifest's entry for one segment."""

    number: int
    base: int
    #: The position of the last record; base - 1 if there is none, or none is known to be durable.
    last: int
    #: Bytes from the start of the file that are known to be durable.
    length: int
    #: The tag of the batch that ends at ``length``; the genesis tag without a batch.
    tag: bytes
    sealed: bool = False
    #: The records do not fill their range of positions: each batch has a table of positions.
    compacted: bool = False


@attrs.frozen(kw_only=True)
class Manifest:
    """A state of the store's list of segments; each change makes a new manifest."""

    generation: int
    node_id: bytes
    journal_id: bytes
    next_segment: int = 1
    last: int = 0
    entries: tuple[SegmentEntry, ...] = ()

    def by_number(self) -> dict[int, SegmentEntry]:
        """Return the entries by segment number."""
        return {entry.number: entry for entry in self.entries}

    def changed(self, *, without: Iterable[int] = (), entries: Iterable[SegmentEntry] = (), last: int = 0) -> Manifest:
        """Return the next manifest: ``without`` these segments, with these ``entries`` in place of older ones."""
        kept = self.by_number()
        for number in without:
            del kept[number]
        for entry in entries:
            kept[entry.number] = entry
        ordered = tuple(kept[number] for number in sorted(kept))
        return attrs.evolve(
            self,
            generation=self.generation + 1,
            next_segment=max([self.next_segment, *(entry.number + 1 for entry in ordered)]),
            last=max([self.last, last, *(entry.last for entry in ordered)]),
            entries=ordered,
        )


def encode_manifest(manifest: Manifest) -> bytes:
    """Encode the body of a manifest's file."""
    head = _HEAD.pack(
        manifest.node_id,
        manifest.journal_id,
        manifest.next_segment,
        manifest.last,
        len(manifest.entries),
        0,
    )
    return head + b"".join(
        _ENTRY.pack(
            entry.number,
            SEALED * entry.sealed | COMPACTED * entry.compacted,
            0,
            entry.base,
            entry.last,
            entry.length,
            entry.tag,
        )
        for entry in manifest.entries
    )


def decode_manifest(generation: int, body: bytes, file: str) -> Manifest:
    """Decode the body of a manifest's file.  Raises: DamagedError."""
    count = _HEAD.unpack_from(body)[4] if len(body) >= _HEAD.size else 0
    if len(body) != _HEAD.size + count * _ENTRY.size:
        raise DamagedError(file, 0, f"{_HEAD.size + count * _ENTRY.size} bytes for {count} segments", f"{len(body)}")
    node_id, journal_id, next_segment, last, _, _ = _HEAD.unpack_from(body)
    entries = tuple(
        SegmentEntry(
            number=number,
            base=base,
            last=last_position,
            length=length,
            tag=tag,
            sealed=bool(flags & SEALED),
            compacted=bool(flags & COMPACTED),
        )
        for number, flags, _, base, last_position, length, tag in _ENTRY.iter_unpack(body[_HEAD.size :])
    )
    return Manifest(
        generation=generation,
        node_id=node_id,
        journal_id=journal_id,
        next_segment=next_segment,
        last=last,
        entries=entries,
    )
