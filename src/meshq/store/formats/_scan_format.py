"""Scanning a segment from its start: the good batches, and whether a torn tail or damage follows.

A write that a power failure cut short and a sector that rotted look the same at the first bad batch.  To treat both as
the end of the log loses acknowledged records; to treat both as damage refuses to start after any power failure.
The batches that were written *later* tell them apart: each batch says how much of its file had been synced before.
So if any header behind the bad batch X was really written there (its keyed check and its own offset prove that) and
says that X had been synced, X was whole once: that is damage.  If none does, X was written last, no later batch
confirms a sync that covers X, and unless the manifest says otherwise no task was told that X is durable: a torn tail.

One case stays open: damage to the very last batch.  An idle journal closes it by an empty batch, a *watermark*; a clean
close seals the segment in the manifest.
"""

from __future__ import annotations

from typing import Final, Literal

import attrs

from meshq.abc import Buffer
from meshq.errors import DamagedError
from meshq.limits import SEGMENT_HEADER_BYTES
from meshq.store.formats._batch_format import (
    HEAD_BYTES,
    TABLE,
    BatchHeader,
    content_problem,
    decode_head,
    open_batch,
    positions_of,
)
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._segment_format import NO_KEYS, TAG_BYTES, SegmentHeader, SegmentKeys, decode_header

Tail = Literal["sealed", "zeros", "torn", "none"]
_ZEROS: Final = bytes(64 * 1024)


@attrs.frozen(kw_only=True)
class Scan:
    """The contents of a segment."""

    header: SegmentHeader
    keys: SegmentKeys
    #: The bytes of the segment, with encrypted batches decrypted.
    data: Buffer = attrs.field(repr=False)
    batches: list[BatchHeader]
    #: The end of the last good batch, and the last position up to there (base - 1: none).
    end: int
    last: int
    #: The kind of bytes behind the last good batch.
    tail: Tail

    def proven(self, entry: SegmentEntry) -> int:
        """Return how many of the batches are known to have been synced by their writer."""
        if entry.sealed:
            return len(self.batches)
        length = max([entry.length, *(batch.durable_length for batch in self.batches)])
        return sum(batch.end <= length for batch in self.batches)


def is_zero(data: memoryview) -> bool:
    """Whether all bytes are zero."""
    # Bytes are compared many times faster than a view of them.
    return all(
        bytes(data[at : at + len(_ZEROS)]) == _ZEROS[: len(data) - at] for at in range(0, len(data), len(_ZEROS))
    )


def scan(
    data: bytes,
    file: str,
    entry: SegmentEntry,
    *,
    identity: tuple[bytes, bytes] | None = None,
    keyring: Keyring = NO_KEYS,
) -> Scan:
    """Scan a segment; of a sealed segment, ``data`` may end with the seal.

    Raises:
        DamagedError: durable bytes are missing or changed.
        SettingsError: the segment is of a newer version, or encrypted with a missing key.
    """
    header = decode_header(data, file)
    check_header(header, file, entry, identity)
    keys = SegmentKeys(header, keyring, file)
    found = bytearray(data) if keys.encrypted else data
    view = memoryview(found)[: entry.length] if entry.sealed else memoryview(found)
    batches, end, problem = good_batches(view, header, keys)
    last = _last_position(view, header, batches)
    if entry.sealed:
        _check_seal(file, entry, batches, end, problem, keys)
        if last != entry.last:
            raise DamagedError(file, end, f"records up to {entry.last}, as the manifest says", f"up to {last}")
        return Scan(header=header, keys=keys, data=found, batches=batches, end=end, last=last, tail="sealed")
    if end < entry.length:
        raise DamagedError(file, end, f"batches up to {entry.length}, as the manifest says", problem)
    tail = _tail_of(view[end:])
    # Zeros hold no header, and are compared faster than searched: most of a segment is zeros when a node starts.
    later = _later_header(data, end, keys) if tail == "torn" else None
    if later is not None:
        expected = f"a batch that was durable when the one at {later.offset} was written"
        raise DamagedError(file, end, expected, problem)
    return Scan(header=header, keys=keys, data=found, batches=batches, end=end, last=last, tail=tail)


def _tail_of(rest: memoryview) -> Tail:
    if not rest:
        return "none"
    return "zeros" if is_zero(rest) else "torn"


def _last_position(view: memoryview, header: SegmentHeader, batches: list[BatchHeader]) -> int:
    for batch in reversed(batches):
        if batch.records:
            return positions_of(view, batch)[-1]
    return header.base - 1


def check_header(header: SegmentHeader, file: str, entry: SegmentEntry, identity: tuple[bytes, bytes] | None) -> None:
    """Raise ``DamagedError`` if a segment is not the one that the manifest lists."""
    if (header.number, header.base) != (entry.number, entry.base):
        expected = f"segment {entry.number} from position {entry.base} on"
        raise DamagedError(file, 16, expected, f"segment {header.number} from position {header.base} on")
    if identity is not None and (header.node_id, header.journal_id) != identity:
        expected = f"node {identity[0].hex()}, journal {identity[1].hex()}"
        raise DamagedError(file, 40, expected, f"node {header.node_id.hex()}, journal {header.journal_id.hex()}")


def _check_seal(
    file: str, entry: SegmentEntry, batches: list[BatchHeader], end: int, problem: str, keys: SegmentKeys
) -> None:
    if end != entry.length:
        raise DamagedError(file, end, f"batches up to the seal at {entry.length}", problem)
    tag = batches[-1].tag if batches else keys.genesis
    if tag != entry.tag:
        raise DamagedError(file, end - TAG_BYTES, f"the seal's tag {entry.tag.hex()}", tag.hex())


def good_batches(view: memoryview, header: SegmentHeader, keys: SegmentKeys) -> tuple[list[BatchHeader], int, str]:
    """Return the unbroken chain of batches from the start, its end, and a text for the bytes found there."""
    batches: list[BatchHeader] = []
    offset, previous, position = SEGMENT_HEADER_BYTES, keys.genesis, header.base
    while True:
        batch = decode_head(keys, view, offset)
        if batch is None:
            return batches, offset, _found_instead(view, offset)
        problem = _batch_problem(view, keys, batch, len(batches) + 1, previous, position)
        if problem is not None:
            return batches, offset, problem
        batches.append(batch)
        offset, previous = batch.end, batch.tag
        if batch.records:
            position = positions_of(view, batch)[-1] + 1


def _batch_problem(
    view: memoryview, keys: SegmentKeys, batch: BatchHeader, number: int, previous: bytes, position: int
) -> str | None:
    if batch.end > len(view):
        return f"a batch that ends at {batch.end}, beyond the {len(view)} bytes here"
    if batch.number != number or batch.previous != previous:
        return f"batch {batch.number} after {batch.previous.hex()}, not {number} after {previous.hex()}"
    if batch.first < position or (batch.first > position and not batch.flags & TABLE):
        return f"a batch from position {batch.first} on, not {position}"
    if not open_batch(keys, view, batch):
        return f"a batch with tag {batch.tag.hex()} whose bytes have another"
    return content_problem(view, batch)


def _found_instead(view: memoryview, offset: int) -> str:
    found = bytes(view[offset : offset + HEAD_BYTES])
    if not found:
        return "the end of the file"
    if not any(found):
        return "zeros"
    return f"{found[:16].hex()}…, no header of a batch"


def _later_header(data: bytes, bad: int, keys: SegmentKeys) -> BatchHeader | None:
    """Find a header behind ``bad`` that was written after the bytes at ``bad`` were synced."""
    at = data.find(keys.mark, bad + 1)
    while at >= 0:
        later = decode_head(keys, data, at)
        if later is not None and later.durable_length > bad:
            return later
        at = data.find(keys.mark, at + 1)
    return None
