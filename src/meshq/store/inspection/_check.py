"""A check that accounts for every byte of a store, and changes none.

The result is a list of regions that cover each file from its first byte to its last.  Most regions are good; some are
left over from a crash and harmless; ``damage`` and ``unknown`` are the bad ones.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Final, Literal

import attrs

from meshq.abc import Disk
from meshq.errors import DamagedError, NotFoundError, invariant
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.bodies._spill_files import SUFFIX
from meshq.store.directory._identity import PURPOSE as IDENTITY
from meshq.store.directory._identity import Identity, read_identity
from meshq.store.directory._ping_pong_file import read_whole
from meshq.store.directory._store_lock import PURPOSE as PLACES
from meshq.store.directory._store_lock import layout_of
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._large_body_format import (
    HEADER_BYTES,
    PART_SUFFIX,
    TAG_BYTES,
    BlockKeys,
    block_count,
    block_offset,
    decode_large_header,
    id_in_name,
)
from meshq.store.formats._layout_format import BALLAST, LOCK, TEMPORARY_SUFFIX, Layout, index_number, segment_number
from meshq.store.formats._manifest_format import PURPOSE as MANIFEST
from meshq.store.formats._manifest_format import Manifest, SegmentEntry
from meshq.store.formats._ping_pong_format import decode_copy
from meshq.store.formats._scan_format import good_batches, is_zero, scan
from meshq.store.formats._segment_format import NO_KEYS, SegmentKeys, decode_header
from meshq.store.formats._segment_index_format import decode_index, index_problem
from meshq.store.recovery._recovery import check_owner, read_manifest

#: The default names of the parts' directories.
PART_NAMES: Final = ("journal", "bindings", "large", "paging")
#: The purpose of a ping-pong file.
Purpose = Literal["identity", "manifest", "places"]
What = Literal[
    "identity",
    "manifest",
    "places",
    "lock",
    "header",
    "batch",
    "watermark",
    "index",
    "index of no use",
    "zeros",
    "torn tail",
    "left behind the seal",
    "unfinished",
    "made ahead",
    "unlisted",
    "ballast",
    "body",
    "page",
    "damage",
    "unknown",
]
#: Regions that no writer of a store leaves behind.
BAD: Final = ("damage", "unknown")


@attrs.frozen
class Region:
    """A part of a file."""

    file: str
    offset: int
    size: int
    what: What
    note: str = ""


@attrs.define
class Report:
    """The regions, the damage and the size of a store."""

    root: str
    regions: list[Region] = attrs.field(factory=list)
    #: Why an open would refuse the store: the texts of the errors.
    damage: list[str] = attrs.field(factory=list)
    #: Bytes of all files, counted independently of the regions.
    bytes: int = 0

    @property
    def clean(self) -> bool:
        """Whether every byte is accounted for."""
        return not self.damage and not any(region.what in BAD for region in self.regions)

    def sums(self) -> dict[str, tuple[int, int]]:
        """Return count and bytes of each kind of region."""
        sums: dict[str, tuple[int, int]] = {}
        for region in self.regions:
            count, size = sums.get(region.what, (0, 0))
            sums[region.what] = count + 1, size + region.size
        return sums


def check_store(disk: Disk, root: str, keyring: Keyring = NO_KEYS) -> Report:
    """Check every byte of the store in ``root``, which no process may be writing to.

    An index that an open would not use is reported as such and is no damage: the journal writes a new one.

    Raises:
        NotFoundError: there is no store.
        SettingsError: the store is of a newer version, or encrypted with a key that is not in ``keyring``.
        OSError: the disk failed.
    """
    layout = Layout(root.rstrip("/") or "/", keyring)
    # Damage to the list of directories is reported below, with the file that it is in.
    with contextlib.suppress(DamagedError):
        layout = layout_of(disk, root, keyring)
    report = Report(layout.root)
    if not _is_there(disk, layout.journal) or not _is_there(disk, layout.bindings):
        raise NotFoundError(f"there is no store in {layout.root}")
    _check_root(disk, layout, report)
    identity = _check_identity(disk, layout, report)
    manifest = _check_manifest(disk, layout, report, identity)
    _check_segments(disk, layout, report, manifest)
    if _is_there(disk, layout.large):
        _check_bodies(disk, layout, report)
    if _is_there(disk, layout.paging):
        for name in _inside(disk, layout, layout.paging):
            what: What = "page" if name.endswith(SUFFIX) else "unknown"
            _other(disk, report, f"{layout.paging}/{name}", what, "goes at the next start")
    invariant(sum(region.size for region in report.regions) == report.bytes, "regions cover all files")
    return report


def _is_there(disk: Disk, directory: str) -> bool:
    try:
        disk.names(directory)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def _check_root(disk: Disk, layout: Layout, report: Report) -> None:
    """Check the files of a store's own directory, and the locks of the parts that lie elsewhere."""
    parts = (layout.journal, layout.bindings, layout.large, layout.paging)
    for name in disk.names(layout.root):
        path = f"{layout.root}/{name}"
        if name in (f"{PLACES}-0", f"{PLACES}-1"):
            _check_copy(disk, path, report, PLACES)
        elif name in PART_NAMES and path not in parts and _is_there(disk, path) and not disk.names(path):
            continue  # Its files were moved to where they are now.
        elif path not in parts:
            what: What = "lock" if name == LOCK else "unfinished" if name.startswith(f"{PLACES}-") else "unknown"
            _other(disk, report, path, what)
    for directory in layout.directories.outside.values():
        if _is_there(disk, directory) and LOCK in disk.names(directory):
            _other(disk, report, f"{directory}/{LOCK}", "lock")


def _inside(disk: Disk, layout: Layout, directory: str) -> list[str]:
    """Return the names in the directory of a part, without the part's own lock."""
    own = directory in layout.directories.outside.values()
    return [name for name in disk.names(directory) if not own or name != LOCK]


def _check_copy(disk: Disk, path: str, report: Report, purpose: Purpose) -> None:
    try:
        copy = decode_copy(purpose.encode(), read_whole(disk, path), path)
    except DamagedError as error:
        report.damage.append(str(error))
        _other(disk, report, path, "damage")
    else:
        _other(disk, report, path, purpose, f"generation {copy.generation}")


def _other(disk: Disk, report: Report, path: str, what: What, note: str = "") -> None:
    """Report a file as one region."""
    try:
        size = len(read_whole(disk, path))
    except IsADirectoryError:
        report.regions.append(Region(path, 0, 0, "unknown", "a directory"))
        return
    report.bytes += size
    report.regions.append(Region(path, 0, size, what, note))


def _check_ping_pong_file(disk: Disk, layout: Layout, directory: str, report: Report, purpose: Purpose) -> None:
    for name in _inside(disk, layout, directory):
        path = f"{directory}/{name}"
        if name in (f"{purpose}-0", f"{purpose}-1"):
            _check_copy(disk, path, report, purpose)
        elif name.endswith(TEMPORARY_SUFFIX):
            _other(disk, report, path, "unfinished")
        elif name == BALLAST and purpose == MANIFEST:
            _other(disk, report, path, "ballast")
        elif purpose == IDENTITY or (segment_number(name) is None and index_number(name) is None):
            _other(disk, report, path, "unknown")


def _check_identity(disk: Disk, layout: Layout, report: Report) -> Identity | None:
    _check_ping_pong_file(disk, layout, layout.bindings, report, "identity")
    try:
        return read_identity(disk, layout)
    except DamagedError:
        return None


def _check_manifest(disk: Disk, layout: Layout, report: Report, identity: Identity | None) -> Manifest | None:
    _check_ping_pong_file(disk, layout, layout.journal, report, "manifest")
    before = len(report.damage)
    try:
        manifest = read_manifest(disk, layout)
        if manifest is not None:
            if identity is None:
                raise DamagedError(f"{layout.bindings}/{IDENTITY}-0", 0, "an identity", "none that holds")
            check_owner(layout, manifest, identity)
    except DamagedError as error:
        if str(error) not in report.damage[:before]:
            report.damage.append(str(error))
        return None
    return manifest


def _check_segments(disk: Disk, layout: Layout, report: Report, manifest: Manifest | None) -> None:
    listed = {} if manifest is None else manifest.by_number()
    found: dict[int, str] = {}
    for name in disk.names(layout.journal):
        number = segment_number(name)
        if number is not None:
            found[number] = f"{layout.journal}/{name}"
    indexes = [number for name in disk.names(layout.journal) if (number := index_number(name)) is not None]
    for number in indexes:
        if manifest is None or number not in listed or number not in found:
            _other(disk, report, layout.index(number), "index of no use", "of no segment that counts")
    for number in listed:
        if number not in found:
            path = layout.segment(number)
            report.damage.append(str(DamagedError(path, 0, "a segment that the manifest lists", "no such file")))
    for number, path in found.items():
        data = read_whole(disk, path)
        report.bytes += len(data)
        if manifest is None or number not in listed:
            report.regions.append(_unlisted(path, data))
        else:
            report.regions += _segment(layout, data, listed[number], manifest, report)
            if number in indexes:
                _check_index(disk, layout, listed[number], data, report)
    _check_ranges(list(listed.values()), report)


def _unlisted(path: str, data: bytes) -> Region:
    preallocated = is_zero(memoryview(data)[SEGMENT_HEADER_BYTES:])
    return Region(path, 0, len(data), "made ahead" if preallocated else "unlisted", "goes at the next start")


def _segment(layout: Layout, data: bytes, entry: SegmentEntry, manifest: Manifest, report: Report) -> Iterator[Region]:
    path, problem = layout.segment(entry.number), None
    try:
        scan(data, path, entry, identity=(manifest.node_id, manifest.journal_id), keyring=layout.keyring)
    except DamagedError as error:
        problem = str(error)
        report.damage.append(problem)
    try:
        header = decode_header(data, path)
    except DamagedError:
        yield Region(path, 0, len(data), "damage", "no header")
        return
    note = f"segment {header.number} from position {header.base} on"
    yield Region(path, 0, SEGMENT_HEADER_BYTES, "header", note)
    keys = SegmentKeys(header, layout.keyring, path)
    view = memoryview(bytearray(data) if keys.encrypted else data)
    batches, _, _ = good_batches(view[: entry.length] if entry.sealed else view, header, keys)
    end = SEGMENT_HEADER_BYTES
    for batch in batches:
        what: What = "batch" if batch.records or batch.flags else "watermark"
        note = f"{batch.records} records from {batch.first} on" if batch.records else ""
        yield Region(path, batch.offset, batch.end - batch.offset, what, note)
        end = batch.end
    if end < len(data):
        rest: What = "zeros" if is_zero(view[end:]) else "left behind the seal" if entry.sealed else "torn tail"
        yield Region(path, end, len(data) - end, "damage" if problem else rest)


def _check_index(disk: Disk, layout: Layout, entry: SegmentEntry, data: bytes, report: Report) -> None:
    """Check that the index of a segment fits; an index of a damaged segment can't be checked."""
    path, segment = layout.index(entry.number), layout.segment(entry.number)
    try:
        found = scan(data, segment, entry, keyring=layout.keyring)
    except DamagedError:
        _other(disk, report, path, "index of no use", "its segment is damaged")
        return
    index = decode_index(read_whole(disk, path), found.header, entry, layout)
    if isinstance(index, str):
        _other(disk, report, path, "index of no use", index)
        return
    problem = index_problem(index, found)
    _other(disk, report, path, "index" if problem is None else "unknown", problem or "")


def _check_bodies(disk: Disk, layout: Layout, report: Report) -> None:
    """Check the files of large bodies; only the broker knows which of them a record needs."""
    for name in _inside(disk, layout, layout.large):
        path = f"{layout.large}/{name}"
        if id_in_name(name) is None:
            _other(disk, report, path, "unknown")
        elif name.endswith(PART_SUFFIX):
            _other(disk, report, path, "unfinished", "goes at the next start")
        else:
            report.regions += _body(disk, layout, name, report)


def _body(disk: Disk, layout: Layout, name: str, report: Report) -> Iterator[Region]:
    """Yield the regions of a whole body, block by block, as a body may be larger than memory."""
    path = f"{layout.large}/{name}"
    file = disk.open(path)
    try:
        size = file.size()
        report.bytes += size
        at = 0
        try:
            header = decode_large_header(file.read_at(0, HEADER_BYTES), path)
            if header.body_id != id_in_name(name):
                raise DamagedError(path, 16, f"the id of {name}", header.body_id.hex())
            yield Region(path, 0, HEADER_BYTES, "header", f"body {header.body_id.hex()}")
            at, keys = HEADER_BYTES, BlockKeys(header, layout.keyring, path)
            for number in range(max(1, block_count(size - HEADER_BYTES, header.block_bytes + TAG_BYTES))):
                end = min(size, block_offset(number + 1, header.block_bytes))
                data = file.read_at(at, end - at)
                if keys.open(number, data, last=end == size) is None:
                    raise DamagedError(path, at, f"block {number} with its tag", "other bytes")
                yield Region(path, at, len(data), "body", f"block {number}")
                at = end
        except DamagedError as error:
            report.damage.append(str(error))
            yield Region(path, at, size - at, "damage")
    finally:
        file.close()


def _check_ranges(entries: list[SegmentEntry], report: Report) -> None:
    """Check that no position is in two segments without tables."""
    dense = sorted((e.base, e.last, e.number) for e in entries if not e.compacted and e.last >= e.base)
    for (_, last, number), (base, _, other) in pairwise(dense):
        if base <= last:
            report.damage.append(f"segments {number} and {other} both have position {base}")
