"""A batch of records in a piece of the log: the header of the piece, and its bytes."""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from itertools import pairwise

from meshq.abc import ReplicatedBatch, StoredBatch
from meshq.ids import Position
from meshq.wire import Log, violation

ROW_BYTES = 8


def pack_batch(batch: StoredBatch, segment: int = 0, base: int = 0, compacted: bool = False) -> tuple[Log, bytes]:
    """Return the header and the bytes of a batch; ``segment``: the number of the one that it belongs to; 0: none."""
    header = Log(
        kind="batch",
        segment=segment,
        base=base,
        compacted=compacted,
        rows=len(batch.rows),
        flags=batch.flags,
        table=batch.positions is not None,
    )
    positions = b"" if batch.positions is None else _packed(batch.positions)
    return header, b"".join((_packed(batch.rows), positions, batch.content))


def unpack_batch(header: Log, first: int, body: bytes) -> StoredBatch:
    """Return the batch of a piece.

    Raises:
        RemoteProtocolError: it has fewer bytes than rows, or positions that do not rise.
    """
    rows_end = ROW_BYTES * header.rows
    start = rows_end * (2 if header.table else 1)
    if len(body) < start or not header.rows:
        raise violation("bad_table", f"{header.rows} records in {len(body)} bytes")
    positions: list[int] | None = None
    if header.table:
        positions = _unpacked(body[rows_end:start])
        if positions[0] != first or any(a >= b for a, b in pairwise(positions)):
            raise violation("bad_table", "positions that do not rise")
    rows = _unpacked(body[:rows_end])
    return StoredBatch(first=Position(first), flags=header.flags, rows=rows, content=body[start:], positions=positions)


def followed(batch: StoredBatch) -> ReplicatedBatch:
    """Return a batch of a log as a journal that follows takes it."""
    last = Position(batch.first + len(batch.rows) - 1)
    return ReplicatedBatch(first=batch.first, last=last, flags=batch.flags, rows=batch.rows, parts=[batch.content])


def _packed(numbers: Sequence[int]) -> bytes:
    packed = array("Q", numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _unpacked(data: bytes) -> list[int]:
    numbers = array("Q")
    numbers.frombytes(data)
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()
