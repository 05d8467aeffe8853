"""The commit log: records get their positions at once, and wait in batches until a batch is written and durable.

``append_nowait`` places a record: it gives the record its position and does nothing else.  The commit task takes the
pending batches one by one; the open batch collects records meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from meshq.abc import Buffer, ReplicatedBatch
from meshq.concurrency import Wakeup
from meshq.errors import AddressFullError, UsageError, invariant
from meshq.ids import Position
from meshq.limits import BATCH_BYTES_MAX, LAZY_COMMIT_S, RECORD_BYTES_MAX, SEGMENT_HEADER_BYTES
from meshq.store.allocation._batch_space import batch_bytes_for, free_bytes_behind, has_space_behind, large_bytes
from meshq.store.allocation._disk_space_wait import DiskSpaceWait
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.commit._active_segment import ActiveSegment
from meshq.store.commit._checkpoints import CHECKPOINT_SHARE, Checkpoints
from meshq.store.commit._followed_batch import followed_batch
from meshq.store.commit._journal_life import JournalLife
from meshq.store.commit._journal_state import JournalState
from meshq.store.commit._replication import Replication
from meshq.store.formats._batch_format import (
    CHECKPOINT_BATCH,
    DATA_RECORD,
    KIND_SHIFT,
    ROW_BYTES,
    TARGETS,
    batch_bytes,
    encode_targets_head,
)
from meshq.store.formats._record import KIND_MAX

#: One batch fills at most such a share of a segment (but for a larger record): less than that is left empty at the
#: end of a segment.
BATCH_SHARE: Final = 8
#: With its failpoint, lazy records wait so many times longer.
LAZY_LONG: Final = 20

AWAKE, LINGERING, IDLE = 0, 1, 2
NOTHING, RECORDS, ALL = 0, 1, 2


class CommitLog:
    """The records of an open journal that are placed, from their positions to their durability."""

    __slots__ = (
        "_allocator",
        "_asleep",
        "_batch_bytes_max",
        "_checkpoints",
        "_failpoint",
        "_in_atomic_batch",
        "_in_flight",
        "_life",
        "_open",
        "_refusing",
        "_replication",
        "_segment",
        "_space_wait",
        "_urgent",
        "_wakeup",
        "durable",
        "journal_id",
        "large_bytes",
        "last",
        "queued",
    )

    def __init__(
        self,
        state: JournalState,
        segment: ActiveSegment,
        checkpoints: Checkpoints,
        life: JournalLife,
        segment_bytes: int,
        *,
        replication: Replication | None,
    ) -> None:
        self._allocator = state.allocator
        self._failpoint = state.env.failpoint
        self._segment = segment
        self._checkpoints = checkpoints
        self._life = life
        self._batch_bytes_max = min(segment_bytes // BATCH_SHARE, BATCH_BYTES_MAX)
        #: The id of the journal: a new journal in the same directory has another one.
        self.journal_id: bytes = state.manifest.journal_id
        #: New records of more bytes than this, alone or in an atomic batch, need ``request_space`` first.
        self.large_bytes: int = large_bytes(segment_bytes)
        #: The highest position given to a record.
        self.last: Position = Position(state.manifest.last)
        #: All records up to here are on disk, and wherever the sink says.
        self.durable: Position = self.last
        #: The records that ``append_nowait`` refuses: NOTHING, new RECORDS on a full disk, or ALL.
        self._refusing = NOTHING
        #: Closed batches that are not written yet: while there are any, all new records need ``request_space``.
        self.queued: deque[PendingBatch] = deque()
        self._open = PendingBatch(self.last + 1, self._batch_capacity())
        #: The batch that the commit task has taken.
        self._in_flight: PendingBatch | None = None
        #: The batches that wait for a sink; None: there is no sink.
        self._replication = replication
        self._space_wait = DiskSpaceWait()
        #: A task waits for a placed record.
        self._urgent = False
        #: The commit task is AWAKE, LINGERING for more records, or IDLE.
        self._asleep = AWAKE
        self._wakeup = Wakeup()
        #: Every placed record joins the open batch, whatever its size.
        self._in_atomic_batch = False

    # -- placing: no I/O, no checkpoint --------------------------------------------------------------------------

    def append_nowait(
        self,
        kind: int,
        parts: Sequence[Buffer],
        *,
        tombstone: bool = False,
        deletes: Sequence[int] = (),
        refs: Sequence[int] = (),
        lazy: bool = False,
        vital: bool = False,
    ) -> Position:
        """Place a record: give it a position, which is durable once ``durable`` has reached it.

        ``parts`` are joined only when they are written and must not change until then.  A record is live until another
        record deletes it; a tombstone is kept while a record that it deletes or refers to is.  ``lazy``: not worth
        a sync of its own for ``limits.LAZY_COMMIT_S``.  ``vital``: a small record that is needed to drain the journal;
        a full disk accepts it, as it accepts tombstones.  A record is atomic; two records are not.

        Raises:
            UsageError: the record is too large, its kind is out of range, or a tombstone has no target.
            AddressFullError: the disk has no space for new records; nothing was placed.
            JournalBrokenError, ClosedError: nothing was placed.
        """
        if self._refusing:
            self._refuse(live=not (tombstone or vital))
        size = 0
        for part in parts:
            size += len(part)
        row = kind << KIND_SHIFT
        batch = self._open
        if deletes or refs or tombstone or size > batch.free_bytes or not 0 < kind <= KIND_MAX:
            size, row, batch, parts = self._append_rare(size, row, parts, tombstone, (tuple(deletes), tuple(refs)))
        if not tombstone:
            row |= DATA_RECORD
        batch.free_bytes -= size + ROW_BYTES
        batch.rows.append(row | size)
        batch.parts += parts
        position = Position(self.last + 1)
        self.last = position
        if lazy:
            if self._asleep == IDLE:
                self.wake()
        elif not self._urgent:
            self._urgent = True
            if self._asleep:
                self.wake()
        return position

    @contextmanager
    def atomic_batch(self, size_bytes: int) -> Iterator[None]:
        """Place records in one batch: after a crash all of them are there, or none is.

        The records are placed in one step, without a checkpoint, and have ``size_bytes`` at most.  The disk space is
        checked at the start; no record inside is refused for it.

        Raises:
            UsageError: no batch holds so many bytes; nothing was placed.
            AddressFullError: the disk has no space for new records; nothing was placed.
            JournalBrokenError, ClosedError: nothing was placed.
        """
        invariant(not self._in_atomic_batch, "one atomic batch at a time")
        if self._refusing:
            self._refuse(live=True)
        if batch_bytes(size_bytes) > BATCH_BYTES_MAX:
            raise UsageError(f"an atomic batch has at most {BATCH_BYTES_MAX} bytes, not {size_bytes}")
        if size_bytes > self._open.free_bytes and self._open.rows:
            self._begin_batch()
        self._claim_preallocated(size_bytes)
        self._in_atomic_batch = True
        try:
            yield
        finally:
            self._in_atomic_batch = False
            if not self._open.rows:
                self._allocator.release(self._open)
            invariant(self._open.bytes <= BATCH_BYTES_MAX, "an atomic batch fits in a batch")

    # -- space before placing ------------------------------------------------------------------------------------

    def request_space(self, size_bytes: int, then: Callable[[], None]) -> bool:
        """Ask for disk space for a record, or an atomic batch, that is about to be placed; True: place it now.

        Otherwise ``then`` is called once: when there is space, and ``has_space`` is true during that call; or when the
        disk is known to be full.
        """
        need = batch_bytes_for(size_bytes)
        if size_bytes <= self.large_bytes:
            return self._has_space_behind(need) or self._space_wait.wait(need, then)
        if self._refusing != NOTHING or self._fits(need):
            return True
        return self._allocator.request(SEGMENT_HEADER_BYTES + need, then)

    def has_space(self, size_bytes: int) -> bool:
        """Whether a record that is placed now is certain to fit on the disk."""
        need = batch_bytes_for(size_bytes)
        if size_bytes <= self.large_bytes or self._fits(need):
            return True
        return self._allocator.has_segment(SEGMENT_HEADER_BYTES + need)

    def resume_waiting(self) -> None:
        """Call the requests for space whose answer is known now."""
        self._space_wait.resume(self._has_space_behind)

    def _fits(self, need: int) -> bool:
        return need <= free_bytes_behind(self._segment.writer, (self._in_flight, *self.queued, self._open))

    def _has_space_behind(self, need: int) -> bool:
        # The reserve has space for a batch; a record that is refused needs none.
        if not self.queued or self._refusing != NOTHING:
            return True
        spare_bytes = self._allocator.spare_bytes
        return has_space_behind(self._segment.writer, (self._in_flight, *self.queued, self._open), spare_bytes, need)

    def _claim_preallocated(self, size_bytes: int) -> None:
        """Take the preallocated segment for the records that are placed next in the empty open batch."""
        if size_bytes > self.large_bytes and not self._fits(need := batch_bytes_for(size_bytes)):
            self._open.preallocated = self._allocator.claim(SEGMENT_HEADER_BYTES + need)

    def request_commit(self) -> None:
        """Commit the placed records without waiting for more."""
        if not self._urgent and (self._open.rows or self.queued):
            self._urgent = True
            if self._asleep:
                self.wake()

    def _append_rare(
        self,
        size: int,
        row: int,
        parts: Sequence[Buffer],
        tombstone: bool,
        targets: tuple[tuple[int, ...], tuple[int, ...]],
    ) -> tuple[int, int, PendingBatch, Sequence[Buffer]]:
        """Place a record that has targets or begins a batch."""
        deletes, refs = targets
        if not 0 < row >> KIND_SHIFT <= KIND_MAX:
            raise UsageError(f"the kind of a record is 1 to {KIND_MAX}, not {row >> KIND_SHIFT}")
        head = encode_targets_head(deletes, refs, self.last, tombstone=tombstone)
        if head:
            parts = [head, *parts]
            size += len(head)
            row |= TARGETS
        if size > RECORD_BYTES_MAX:
            raise UsageError(f"a record has at most {RECORD_BYTES_MAX} bytes, not {size}")
        batch = self._open
        if size > batch.free_bytes and batch.rows and not self._in_atomic_batch:
            batch = self._begin_batch()
        if not (tombstone or batch.rows or self._in_atomic_batch):
            self._claim_preallocated(size)
        if deletes or refs:
            batch.targets.append((size, deletes, refs))
        return size, row, batch, parts

    def _begin_batch(self) -> PendingBatch:
        if self._open.rows:
            self.queued.append(self._open)
            self._urgent = True
            if self._asleep:
                self.wake()
        self._open = PendingBatch(self.last + 1, self._batch_capacity())
        return self._open

    def _batch_capacity(self) -> int:
        return -1 if self._failpoint("journal.batch_of_one") else self._batch_bytes_max

    # -- waiting -------------------------------------------------------------------------------------------------

    async def wait_durable(self, position: int) -> None:
        """Return when the record at ``position`` is on disk.

        Checkpoint: when it is not there yet.
        Cancellation: the record stays placed.
        Raises:
            JournalBrokenError: the disk failed; whether the record was written is unknown.
        """
        if position <= self.durable:
            return
        invariant(position <= self.last, "only what was placed can be waited for")
        if self._life.failure is None:
            batch = self._batch_with(position)
            if batch.settled is None:
                batch.settled = trio.Event()
            self.request_commit()
            await batch.settled.wait()
        if position > self.durable:
            raise self._life.broken()

    def _batch_with(self, position: int) -> PendingBatch:
        elsewhere = () if self._replication is None else self._replication.waiting
        for batch in (*elsewhere, self._in_flight, *self.queued):
            if batch is not None and position <= batch.last:
                return batch
        return self._open

    # -- for the commit task -------------------------------------------------------------------------------------

    @property
    def pending(self) -> bool:
        """Whether records wait for the commit task."""
        return bool(self.queued or self._open.rows)

    def behind(self) -> tuple[PendingBatch, ...]:
        """Return the batches behind the batch that the commit task has taken."""
        return (*self.queued, self._open)

    def wake(self) -> None:
        """Wake the commit task."""
        self._asleep = AWAKE
        self._wakeup.wake()

    async def next_batch(self) -> PendingBatch | None:
        """Wait until a batch is due, and take that batch; None: the task was woken for something else, or to end.

        Checkpoint: always.
        Cancellation: nothing is taken.
        """
        if not (self.queued or self._open.rows):
            self._asleep = IDLE
            await self._wakeup.wait()
            self._asleep = AWAKE
            return None
        if not (self._urgent or self._life.ending):
            await self._linger()
            return None
        await trio.lowlevel.checkpoint()
        if self._life.failure is not None:
            # Another task of the journal has failed during the checkpoint: nothing is written after that.
            return None
        if not self.queued:
            self._begin_batch()
        self._in_flight = batch = self.queued.popleft()
        self._urgent = bool(self.queued or self._open.rows)
        return batch

    async def _linger(self) -> None:
        long = self._failpoint("journal.lazy_long")
        self._asleep = LINGERING
        with trio.move_on_after(LAZY_COMMIT_S * LAZY_LONG if long else LAZY_COMMIT_S):
            while not (self._urgent or self._life.ending):
                await self._wakeup.wait()
                self._asleep = LINGERING
        self._asleep = AWAKE
        self._urgent = True

    def place_checkpoint(self) -> None:
        """Place the owner's checkpoint as a batch of its own, behind all placed records.

        On a full disk only a small one: the reserve is for draining, and the last checkpoint still covers most of the
        owner's state.  Raises: InvariantError: no batch holds the checkpoint.
        """
        full = self._allocator.full
        records = self._checkpoints.ask(self.large_bytes // CHECKPOINT_SHARE if full else math.inf)
        if records is None:
            return
        batch = self._begin_batch()
        self._checkpoints.fill(batch, records)
        self.last = Position(batch.last)
        self.queued.append(batch)
        self._urgent = True
        self._open = PendingBatch(self.last + 1, self._batch_capacity())

    def follow(self, followed: ReplicatedBatch) -> None:
        """Place a batch of another journal, with the positions that it has there; its bytes are not copied.

        Raises:
            UsageError: it does not follow the last record, or its records contradict each other; nothing was placed.
            JournalBrokenError, ClosedError: nothing was placed.
        """
        if self._refusing == ALL:
            self._refuse(live=True)
        if followed.first != self.last + 1:
            raise UsageError(f"the batch from position {followed.first} does not follow position {self.last}")
        batch, checkpoint = followed_batch(followed)
        if self._open.rows:
            self._begin_batch()
        if batch.flags & CHECKPOINT_BATCH:
            self._checkpoints.follow(batch, checkpoint)
        if not batch.rows:
            return
        self.last = Position(batch.last)
        self.queued.append(batch)
        self._open = PendingBatch(self.last + 1, self._batch_capacity())
        self._urgent = True
        if self._asleep:
            self.wake()

    @property
    def synced(self) -> Position:
        """All records up to here are on this disk; a sink may not have them yet."""
        return self.durable if self._replication is None else self._replication.synced

    def settle(self, batch: PendingBatch) -> bool:
        """Note that the taken batch is on disk; return whether the durable position has moved.

        The tasks that wait for a durable record are woken.
        """
        self._in_flight = None
        if self._replication is not None:
            self._replication.sync(batch)
            return self.settle_replicated()
        if batch.rows:
            self.durable = Position(batch.last)
        if batch.settled is not None:
            batch.settled.set()
        return bool(batch.rows)

    def settle_replicated(self) -> bool:
        """Settle the batches that have become durable; return whether the durable position has moved."""
        if self._replication is None:
            return False
        before, self.durable = self.durable, self._replication.durable
        for batch in self._replication.settled():
            if batch.settled is not None:
                batch.settled.set()
        return self.durable > before

    # -- refusing, and the end -----------------------------------------------------------------------------------

    def set_full(self, full: bool) -> None:
        """Refuse new records from now on, because the disk is full, or take them again."""
        self._refusing = RECORDS if full else NOTHING

    def refuse_all(self) -> None:
        """Refuse every record from now on: the journal is being closed, or has failed."""
        self._refusing = ALL

    def fail(self) -> None:
        """Refuse every record, and wake all tasks that wait for a record: the disk has failed."""
        self._refusing = ALL
        elsewhere = () if self._replication is None else self._replication.waiting
        for batch in (*elsewhere, self._in_flight, *self.queued, self._open):
            if batch is not None and batch.settled is not None:
                batch.settled.set()

    def close(self) -> None:
        """Close the files that were preallocated for batches."""
        for batch in (self._in_flight, *self.queued, self._open):
            if batch is not None and batch.preallocated is not None:
                batch.preallocated.file.close()

    def _refuse(self, live: bool) -> None:
        if self._refusing == ALL:
            raise self._life.refusal()
        if live:
            raise AddressFullError("the disk has no room for new messages")
