"""The owner's checkpoints: soft state that is asked for when a segment begins, and deletes the state before it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Final

from meshq.errors import invariant
from meshq.limits import BATCH_BYTES_MAX
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.commit._journal_owner import OwnerLink
from meshq.store.formats._batch_format import (
    CHECKPOINT,
    CHECKPOINT_BATCH,
    DATA_RECORD,
    KIND_SHIFT,
    TARGETS,
    pack_targets,
)
from meshq.store.formats._record import INTERNAL, KIND_MAX, CheckpointRecord

#: On a full disk a checkpoint takes at most such a share of the reserve.
CHECKPOINT_SHARE: Final = 8


class Checkpoints:
    """The checkpoints of one journal: the last that was placed, and the last that is durable."""

    __slots__ = ("_covered", "_link", "_positions", "placed")

    def __init__(self, link: OwnerLink, positions: Sequence[int], covered: int) -> None:
        self._link = link
        #: Positions of the last checkpoint that was placed.
        self._positions = tuple(positions)
        #: The last position that the durable checkpoint covers.
        self._covered = covered
        #: Whether a checkpoint was placed that is not durable yet.
        self.placed: bool = False

    @property
    def covered(self) -> float:
        """The last position whose soft state is in a durable checkpoint; infinite if the owner has no soft state."""
        soft = self._link.checkpoint is not None or self._link.follows
        return self._covered if soft else math.inf

    def ask(self, bytes_max: float) -> list[CheckpointRecord] | None:
        """Ask the owner for its soft state; None if there is no owner, or the state is larger than ``bytes_max``."""
        checkpoint = self._link.checkpoint
        if checkpoint is None:
            return None
        records = checkpoint()
        return records if sum(len(record.payload) for record in records) <= bytes_max else None

    def fill(self, batch: PendingBatch, records: Sequence[CheckpointRecord]) -> None:
        """Make an empty batch the next checkpoint, which deletes the one before."""
        batch.flags = CHECKPOINT_BATCH
        old = self._positions
        for number, record in enumerate(records):
            invariant(0 < record.kind <= KIND_MAX, "a checkpoint record has a kind")
            head = pack_targets(old, ()) if old and not number else b""
            row = record.kind << KIND_SHIFT | DATA_RECORD | CHECKPOINT | len(head) + len(record.payload)
            if head:
                row |= TARGETS
                batch.targets.append((len(head) + len(record.payload), old, ()))
            batch.rows.append(row)
            batch.parts += [head, record.payload]
        positions = range(batch.first, batch.first + len(records))
        if old and not records:
            head = pack_targets(old, ())
            batch.targets.append((len(head), old, ()))
            batch.rows.append(INTERNAL << KIND_SHIFT | TARGETS | len(head))
            batch.parts.append(head)
        invariant(batch.bytes <= BATCH_BYTES_MAX, "a checkpoint fits in a batch")
        batch.checkpoint = self._positions = tuple(positions)
        self.placed = True

    def follow(self, batch: PendingBatch, positions: Sequence[int]) -> None:
        """Note a batch that is the checkpoint of another journal's owner, with the positions of its records."""
        batch.checkpoint = self._positions = tuple(positions)
        self.placed = True

    def settle(self, batch: PendingBatch) -> None:
        """Note that a checkpoint is durable."""
        self._covered = batch.first - 1
        self.placed = False
