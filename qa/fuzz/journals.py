"""The fuzzing target of the files of a store and of the records in them.

Checksums would stop a fuzzer at the first changed bit, so most inputs get right ones: what is tried is the reading
behind the checksum, which also has to stand bytes of another version, or of a defect of the writer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Any, Final

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from meshq.broker import records
from meshq.errors import DamagedError, SettingsError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.formats import _batch_format as batches
from meshq.store.formats import _large_body_format as large
from meshq.store.formats import _segment_index_format as indexes
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import PURPOSE, Manifest, SegmentEntry, decode_manifest, encode_manifest
from meshq.store.formats._ping_pong_format import PingPongCopy, decode_copy, encode_copy
from meshq.store.formats._record_prefix import RecordPrefix
from meshq.store.formats._scan_format import Scan, scan
from meshq.store.formats._segment_format import SegmentHeader, SegmentKeys, decode_header, encode_header, index_key
from meshq.wire import encode_run
from qa.fuzz.target import Target, split

_FILE: Final = "a file"
_PURPOSE: Final = PURPOSE.encode()
_HEADER: Final = SegmentHeader(number=1, base=1, epoch=1, node_id=bytes(16), journal_id=bytes(16), salt=bytes(32))
_KEYS: Final = SegmentKeys(_HEADER)
_OPEN: Final = SegmentEntry(number=1, base=1, last=0, length=SEGMENT_HEADER_BYTES, tag=bytes(16))
_SALT: Final = bytes(32)
_PREFIX: Final = RecordPrefix(records.PREFIX_FORM, records.record_prefix)
#: Kind of record -> its reader.
_READERS: Final[dict[int, Callable[[bytes], Any]]] = {
    records.RUN: records.decode_run,
    records.SETTLED: records.decode_settled,
    records.IDS: records.decode_ids,
    records.DEFINITION: records.decode_definition,
    records.MARKS: records.decode_marks,
    records.PRODUCERS: records.decode_producers,
    records.ROUTED: records.decode_routed,
    records.LINKS: records.decode_links,
    records.PLACED: records.decode_placed,
    records.DUE: records.decode_due,
    records.COUNTED: records.decode_counted,
    records.PREPARED: records.decode_prepared,
    records.WAITING: records.decode_waiting,
    records.DECIDED: records.decode_decided,
    records.USER_PRODUCERS: records.decode_user_producers,
    records.HANDED_IDS: records.decode_handed_ids,
    records.ARRIVING: records.decode_arriving,
    records.ARRIVED: records.decode_arrived,
    records.HANDED: records.decode_handed,
    records.ELSEWHERE: records.decode_elsewhere,
    records.BRANCHES: records.decode_branches,
}
_KINDS: Final = tuple(_READERS)


def _small_segment() -> bytes:
    data = encode_header(_HEADER)
    previous = _KEYS.genesis
    for number, parts in enumerate(([b"one", b"", b"three"], [b"four"], []), 1):
        rows = [len(part) | 7 << batches.KIND_SHIFT | batches.DATA_RECORD for part in parts]
        location = batches.BatchLocation(number, len(data), previous, 0)
        first = (1, 4, 5)[number - 1]
        batch, previous = batches.encode_batch(_KEYS, location, batches.BatchData(first, rows, parts))
        data += batch + previous
    return data


_SEGMENT: Final = _small_segment()
_RECORDS: Final = [_SEGMENT[start:end] for batch in scan(_SEGMENT, _FILE, _OPEN).batches
                   for _, _, start, end in batches.records_of(_SEGMENT, batch)]  # fmt: skip


def journals(data: bytes) -> None:
    """Read the input as one kind of file, or as a record."""
    kind, content = split(data, len(_PLAYS))
    _PLAYS[kind](content)


def _header(content: bytes) -> None:
    body = content[: SEGMENT_HEADER_BYTES - 16].ljust(SEGMENT_HEADER_BYTES - 16, b"\0")
    found = decode_header(body + blake2b(body, digest_size=16).digest(), _FILE)
    assert decode_header(encode_header(found), _FILE) == found, "a header is decoded as it was encoded"
    scan(body + blake2b(body, digest_size=16).digest(), _FILE, _OPEN)


def _changed(content: bytes) -> None:
    """Change a segment at some places: two bytes name a place, the third one is put there.

    No record comes out that was not in the segment.
    """
    segment = bytearray(_SEGMENT)
    for at in range(0, len(content) - 2, 3):
        place = int.from_bytes(content[at : at + 2], "little")
        segment[place % len(segment)] = content[at + 2]
    found = scan(bytes(segment), _FILE, _OPEN)
    read = [bytes(found.data[start:end]) for batch in found.batches
            for _, _, start, end in batches.records_of(found.data, batch)]  # fmt: skip
    assert read == _RECORDS[: len(read)], "what is read is what was written, from the beginning"
    assert 0 <= found.proven(_OPEN) <= len(found.batches), "no more batches are proven than were found"


def _cut(content: bytes) -> None:
    """Read the beginning of a segment, and any bytes behind it."""
    end = int.from_bytes(content[:2], "little")
    scan(_SEGMENT[:end] + content[2:], _FILE, _OPEN)


def _scan_of(content: bytes, flags: int, count: int) -> Scan:
    """Scan a segment of one batch, whose check and tag are right and whose body is any bytes."""
    size = batches.batch_bytes(len(content)) - batches.HEAD_BYTES - 16
    at = SEGMENT_HEADER_BYTES
    body = content.ljust(size, b"\0")
    fields = batches._FIELDS.pack(1, at, size, count, 1, 0, at, flags, size - len(content), _KEYS.genesis)
    batch = b"".join((_KEYS.mark, _KEYS.check(1, fields), fields, body))
    return scan(encode_header(_HEADER) + batch + _KEYS.tag(1, batch), _FILE, _OPEN)


def _batch(content: bytes) -> None:
    flags, count = (content[0] & 3, content[1]) if len(content) > 1 else (0, 0)
    # A count of thousands of millions takes no time and no memory.
    found = _scan_of(content[2:], flags, count if count < 255 else 2**32 - 1)
    for batch in found.batches:
        for _, row, start, end in batches.records_of(found.data, batch):
            payload = bytes(found.data[start:end])
            _PREFIX.of(row >> batches.KIND_SHIFT & 0xFF, payload)


def _copies(content: bytes) -> None:
    """Read one file of a manifest's pair, with a right checksum."""
    raw, body = split(content, 2)
    checked = body + blake2b(body, digest_size=16).digest()
    data = checked if raw else encode_copy(_PURPOSE, PingPongCopy(3, body))
    copy = decode_copy(_PURPOSE, data, _FILE)
    manifest = decode_manifest(copy.generation, copy.body, _FILE)
    again = decode_manifest(manifest.generation, encode_manifest(manifest), _FILE)
    assert again == manifest, "a manifest is decoded as it was encoded"


def _index(content: bytes) -> None:
    """Read an index of a segment, with a right tag."""
    count, body = split(content, 256)
    entry = SegmentEntry(number=1, base=1, last=0, length=SEGMENT_HEADER_BYTES, tag=_KEYS.genesis, sealed=True)
    head = indexes._HEAD.pack(
        indexes.MAGIC,
        indexes.VERSION,
        1,
        *indexes._seal(entry),
        count if count < 255 else 2**32 - 1,
        len(body),
        _SALT,
    )
    tag = AESGCM(index_key(_HEADER, Layout("/").keyring, _SALT, _FILE)[0]).encrypt(indexes._NONCE, b"", head + body)
    found = indexes.decode_index(head + body + tag, _HEADER, entry, Layout("/"))
    if isinstance(found, indexes.SegmentIndex):
        for indexed in found.batches:
            for _, _, start, end, _ in indexed.records():
                assert 0 <= start <= end <= len(indexed.data), "a record lies in its index"


def _large_body(content: bytes) -> None:
    """Read the header of the file of a large body, with a right checksum, and a block behind the header."""
    raw, data = split(content, 2)
    size = large._HEAD.size
    head = data[:size].ljust(size, b"\0") if raw else _LARGE[:size]
    found = large.decode_large_header(head + blake2b(head, digest_size=16).digest(), _FILE)
    keys = large.BlockKeys(found, Layout("/").keyring, _FILE)
    block = keys.open(0, data[size:] if raw else data, last=True)
    assert block is None or keys.seal(0, block, last=True), "a block that is opened can be sealed"


def _record(content: bytes) -> None:
    """Read a record of the broker, whole and as its beginning alone."""
    kind, payload = split(content, len(_KINDS))
    size, _ = records.record_prefix(_KINDS[kind], payload)
    assert size >= 0, "a beginning has a size"
    _READERS[_KINDS[kind]](payload)


_LARGE: Final = large.encode_large_header(large.LargeBodyHeader(bytes(16), bytes(32), 4_096))
_PLAYS: Final = (_header, _changed, _cut, _batch, _copies, _index, _large_body, _record)


def _some_files() -> Sequence[bytes]:
    entries = (_OPEN, SegmentEntry(number=2, base=5, last=9, length=8_192, tag=bytes(16), sealed=True))
    manifest = Manifest(generation=3, node_id=bytes(16), journal_id=bytes(16), next_segment=3, last=9, entries=entries)
    rows = batches.pack_numbers([3 | 7 << batches.KIND_SHIFT | batches.DATA_RECORD])
    copy = encode_copy(_PURPOSE, PingPongCopy(3, encode_manifest(manifest)))
    run = encode_run([b"one", b"two"])
    content = records.RunRecord(bytes(16), 1, 2, "a", (records.RunTarget(1, 1, 0, 1),), (), run)
    routed = records.RoutedRecord(b"", 0, 1, content, (records.RoutedTarget(1, 1, range(2), (4,)),))
    placed = records.PlacedRecord(5, ("a", "q", "moved"), (records.SettledRow(1, 2, 0, 1, 1),), routed)
    tail = run.table + run.body
    kinds = {kind: index for index, kind in enumerate(_KINDS)}
    whole = {
        records.RUN: records.encode_run_head(content) + tail,
        records.ROUTED: records.encode_routed_head(routed) + tail,
        records.PLACED: records.encode_placed_head(placed) + tail,
        records.SETTLED: records.encode_settled([records.SettledRow(1, 2, 0, 1, 1)]),
        records.IDS: records.encode_ids(1, "a", [b"x", b"yy"]),
        records.HANDED_IDS: records.encode_handed_ids(1, "a", [b"x", b"yy"]),
        records.DUE: records.encode_due(records.DueRow(1, 2, 0, 1, 1, 3)),
        records.COUNTED: records.encode_counted(
            records.CountedRecord(1, 2, (0, 2, 1), (records.CountedRow(1, 2, 3, 4),))
        ),
    }
    return [
        bytes([0]) + _SEGMENT[:160],
        bytes([1]) + b"\x00\x10\xff",
        bytes([2]) + b"\x00\x14" + bytes(32),
        bytes([3, 0, 1]) + rows + b"abc",
        bytes([3, 1, 1]) + rows + batches.pack_numbers([1]) + b"abc",
        bytes([4, 0]) + encode_manifest(manifest),
        bytes([4, 1]) + copy[:-16],
        bytes([5, 1]) + indexes._PART.pack(SEGMENT_HEADER_BYTES, 1, 1, 0) + rows + bytes(4),
        bytes([6, 0]) + b"".join(large.BlockKeys(large.decode_large_header(_LARGE, _FILE), Layout("/").keyring, _FILE)
                                 .seal(0, b"block", last=True)),
        bytes([6, 1]) + _LARGE,
        *[bytes([7, index]) + whole.get(kind, bytes(24)) for kind, index in kinds.items()],
    ]  # fmt: skip


JOURNALS: Final = Target("journals", journals, (DamagedError, SettingsError), _some_files, 1_024)
