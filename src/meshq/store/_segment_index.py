"""Indexes on the disk: beside each sealed segment a file that spares a start most of it.

An index may be missing.  One that is damaged, of another segment or of an older state is not believed, and then the
segment is read whole: slower, and never another outcome.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

import attrs

from meshq.abc import Disk
from meshq.errors import DamagedError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store._layout_format import TEMPORARY_SUFFIX, Layout
from meshq.store._manifest_format import SegmentEntry
from meshq.store._ping_pong_file import DiskFullError, is_disk_full, read_whole, write_new
from meshq.store._record_prefix import RecordPrefix
from meshq.store._scan_format import Scan, check_header, scan
from meshq.store._segment_format import SegmentHeader, decode_header
from meshq.store._segment_index_format import IndexedBatch, SegmentIndex, decode_index, encode_index, indexed_batches


@attrs.frozen
class OpenedSegment:
    """A sealed segment as a start sees it."""

    header: SegmentHeader
    batches: Iterable[IndexedBatch]
    #: The form of the index that was believed; None: all bytes were read and proven.
    form: int | None = None
    #: Why an index that is there was not believed.
    refused: str | None = None


def read_segment(disk: Disk, layout: Layout, entry: SegmentEntry, identity: tuple[bytes, bytes]) -> Scan:
    """A segment, and what its bytes hold.

    Raises:
        DamagedError: what was durable is not there or not what was written.
        SettingsError: a newer version, or a key that is not here.
        OSError: the disk failed.
    """
    path = layout.segment(entry.number)
    try:
        data = read_whole(disk, path, entry.length if entry.sealed else None)
    except FileNotFoundError as error:
        raise _missing(path) from error
    return scan(data, path, entry, identity=identity, keyring=layout.keyring)


def open_segment(disk: Disk, layout: Layout, entry: SegmentEntry, identity: tuple[bytes, bytes]) -> OpenedSegment:
    """The batches of a sealed segment: by its index if that can be believed, otherwise by all of its bytes.

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
    """The header of a sealed segment whose bytes are not read; it has all of them."""
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
    """Read a sealed segment and write its index, in place of any; durable on return.

    Only what a durable manifest says may stand in an index: so ``entry`` is of the manifest.

    Raises:
        NoRoomError: the disk is full; nothing is left of the attempt.
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
    """Remove the file of a segment, and that of its index if there is one.  Raises: OSError."""
    with contextlib.suppress(FileNotFoundError):
        disk.remove(layout.index(number))
    disk.remove(layout.segment(number))
