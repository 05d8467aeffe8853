"""A batch of another journal, as a journal that follows it writes it."""

from __future__ import annotations

from meshq.abc import ReplicatedBatch
from meshq.errors import UsageError
from meshq.limits import BATCH_BYTES_MAX
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.formats._batch_format import (
    CHECKPOINT,
    CHECKPOINT_BATCH,
    ROW_BYTES,
    SIZE_MASK,
    TARGETS,
    batch_bytes,
    unpack_targets,
)


def followed_batch(followed: ReplicatedBatch) -> tuple[PendingBatch, list[int]]:
    """Return the batch to be written, and the positions of the checkpoint records in it.

    Raises:
        UsageError: the records contradict each other.
    """
    rows = list(followed.rows)
    content = b"".join(followed.parts)
    size = sum(row & SIZE_MASK for row in rows)
    if followed.flags & ~CHECKPOINT_BATCH or followed.last != followed.first + len(rows) - 1 or size != len(content):
        raise UsageError(f"the batch from position {followed.first} contradicts itself")
    if batch_bytes(size + ROW_BYTES * len(rows)) > BATCH_BYTES_MAX:
        raise UsageError(f"the batch from position {followed.first} is larger than a batch may be")
    batch = PendingBatch(followed.first, 0, rows=rows, parts=[content], flags=followed.flags)
    checkpoint: list[int] = []
    start = 0
    for position, row in enumerate(rows, followed.first):
        if row & TARGETS:
            deletes, refs, _ = unpack_targets(content, start)
            batch.targets.append((row & SIZE_MASK, deletes, refs))
        if row & CHECKPOINT:
            checkpoint.append(position)
        start += row & SIZE_MASK
    return batch, checkpoint
