"""The writer of the active segment: an open file, and the end of its chain of batches.

Its methods block; the commit task calls them one after the other, from the journal's thread or inline.
"""

from __future__ import annotations

import attrs

from meshq.abc import File
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.formats._batch_format import BatchData, BatchLocation, encode_batch
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._segment_format import SegmentHeader, SegmentKeys, encode_header


@attrs.define(eq=False)
class PreallocatedSegment:
    """A segment made ahead of need: zeros on disk under its final name, in no manifest."""

    number: int
    capacity: int
    file: File


class SegmentWriter:
    """The writer of one segment, from its header on."""

    __slots__ = ("_file", "_keys", "_previous", "base", "batches", "capacity", "end", "last", "number")

    def __init__(self, preallocated: PreallocatedSegment, header: SegmentHeader, keyring: Keyring) -> None:
        self._file = preallocated.file
        self._keys = SegmentKeys(header, keyring)
        self._previous = self._keys.genesis
        self.number: int = header.number
        self.base: int = header.base
        self.capacity: int = preallocated.capacity
        #: The offset of the next batch; all bytes before it are durable.
        self.end: int = SEGMENT_HEADER_BYTES
        self.last: int = header.base - 1
        self.batches: int = 0

    def entry(self, *, sealed: bool = False) -> SegmentEntry:
        """Return the manifest entry of the segment as it is now."""
        return SegmentEntry(
            number=self.number,
            base=self.base,
            last=self.last,
            length=self.end,
            tag=self._previous,
            sealed=sealed,
        )

    def write(self, batch_data: BatchData, durable: int) -> float:
        """Append a batch and sync; return the seconds that the sync took.

        Raises: OSError; then nothing may be written to this file any more.
        """
        location = BatchLocation(self.batches + 1, self.end, self._previous, durable)
        batch, tag = encode_batch(self._keys, location, batch_data)
        self._file.write_at(self.end, [batch, tag])
        seconds = self._file.sync()
        self.end += len(batch) + len(tag)
        self._previous = tag
        self.batches += 1
        self.last = batch_data.last
        return seconds

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def write_segment_header(preallocated: PreallocatedSegment, header: SegmentHeader) -> None:
    """Write the header of a preallocated segment; durable on return.  Raises: OSError.

    Only then may a manifest list the segment: a listed segment whose header fails its check is damaged.
    """
    preallocated.file.write_at(0, [encode_header(header)])
    preallocated.file.sync()
