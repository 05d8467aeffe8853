"""The index files of segments: beside each sealed segment a file that spares a start most of the reading.

An index may be missing.  An index that is damaged, of another segment or of an older state is refused, and the segment
is read whole instead: slower, with the same outcome.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import attrs

from meshq.abc import Disk
from meshq.errors import DamagedError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.directory._ping_pong_file import DiskFullError, is_disk_full, read_whole, write_new
from meshq.store.formats._layout_format import TEMPORARY_SUFFIX, Layout
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._record_prefix import RecordPrefix
from meshq.store.formats._scan_format import Scan, check_header, scan
from meshq.store.formats._segment_format import SegmentHeader, decode_header
from meshq.store.formats._segment_index_format import (
    IndexedBatch,
    SegmentIndex,
    decode_index,
    encode_index,
    indexed_batches,
)


@attrs.frozen
class OpenedSegment:
    """The header and the batches of a sealed segment, as a start reads them."""

    header: SegmentHeader
    batches: Iterable[IndexedBatch]
    #: The form of the index that was used; None: all bytes were read and proven.
    form: int | None = None
    #: Why an existing index was refused.
    refused: str | None = None


def read_segment(
    disk: Disk, layout: Layout, entry: SegmentEntry, identity: tuple[bytes, bytes], *, durable: bool = False
) -> Scan:
    """Read a whole segment and scan its batches.

    ``durable``: no further than it is known to be durable; behind that it may be written right now.

    Raises:
        DamagedError: durable bytes are missing or changed.
        SettingsError: a newer version, or a missing key.
        OSError: the disk failed.
    """
    path = layout.segment(entry.number)
    try:
        data = read_whole(disk, path, entry.length if entry.sealed or durable else None)
    except FileNotFoundError as error:
        raise _missing(path) from error
    return scan(data, path, entry, identity=identity, keyring=layout.keyring)


def open_segment(disk: Disk, layout: Layout, entry: SegmentEntry, identity: tuple[bytes, bytes]) -> OpenedSegment:
    """Read the batches of a sealed segment: from its index if that is valid, otherwise from all of its bytes.

    Raises: as ``read_segment``; with an index, only damage to the header and to the length is noticed.
    """
    try:
        data = read_whole(disk, layout.index(entry.number))
    except FileNotFoundError:
        refused = None
    except OSError as error:
        refused = f"it can't be read: {error}"
    else:
        header = _header(disk, layout, entry, identity)
        index = decode_index(data, header, entry, layout)
        if isinstance(index, SegmentIndex):
            return OpenedSegment(header, index.batches, index.form)
        refused = index
    found = read_segment(disk, layout, entry, identity)
    return OpenedSegment(found.header, indexed_batches(found), refused=refused)


def _header(disk: Disk, layout: Layout, entry: SegmentEntry, identity: tuple[bytes, bytes]) -> SegmentHeader:
    """Read the header of a sealed segment, and check that the file is long enough."""
    path = layout.segment(entry.number)
    try:
        file = disk.open(path)
    except FileNotFoundError as error:
        raise _missing(path) from error
    with contextlib.closing(file):
        header = decode_header(file.read_at(0, SEGMENT_HEADER_BYTES), path)
        check_header(header, path, entry, identity)
        size = file.size()
    if size < entry.length:
        raise DamagedError(path, size, f"batches up to the seal at {entry.length}", "the end of the file")
    return header


def _missing(path: str) -> DamagedError:
    return DamagedError(path, 0, "a segment that the manifest lists", "no such file")


def write_index(
    disk: Disk,
    layout: Layout,
    entry: SegmentEntry,
    identity: tuple[bytes, bytes],
    *,
    salt: bytes,
    record_prefix: RecordPrefix,
) -> None:
    """Read a sealed segment and write its index, in place of an older one; durable on return.

    An index may only say what a durable manifest says: so ``entry`` comes from the manifest.

    Raises:
        DiskFullError: the disk is full; the attempt was undone.
        DamagedError: the segment is not what was written.
        OSError: the disk failed.
    """
    found = read_segment(disk, layout, entry, identity)
    path = layout.index(entry.number)
    temporary = path + TEMPORARY_SUFFIX
    try:
        write_new(disk, temporary, encode_index(found, entry, layout, salt, record_prefix))
    except OSError as error:
        if not is_disk_full(error):
            raise
        with contextlib.suppress(FileNotFoundError):
            disk.remove(temporary)
        raise DiskFullError(error.errno, error.strerror, temporary) from error
    disk.replace(temporary, path)
    disk.sync_directory(layout.journal)


def remove_index(disk: Disk, layout: Layout, number: int) -> None:
    """Remove the index of a segment, if there is one; durable on return.  Raises: OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(layout.index(number))
        disk.sync_directory(layout.journal)


def remove_segment(disk: Disk, layout: Layout, number: int) -> None:
    """Remove the files of a segment and of its index.  Raises: OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(layout.index(number))
    disk.remove(layout.segment(number))
