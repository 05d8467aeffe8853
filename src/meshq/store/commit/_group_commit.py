"""Group commit: records get their positions at once, and are written together.

``append_nowait`` places a record: it gives the record its position and does nothing else.  One task takes the pending
batch, writes it, syncs, and wakes the tasks that wait; the next batch collects records meanwhile.  So all records
that were placed during a sync share the next one, and only lazy records ever wait for others to join.

Before it takes a batch the task yields to the loop once, so that tasks which were woken together share a batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from meshq.abc import Buffer, Env
from meshq.errors import AddressFullError, ClosedError, JournalBrokenError, MeshqError, UsageError, caused, invariant
from meshq.ids import Position
from meshq.limits import BATCH_BYTES_MAX, LAZY_COMMIT_S, RECORD_BYTES_MAX, SECTOR_BYTES, SEGMENT_HEADER_BYTES
from meshq.store.allocation._batch_space import (
    batch_bytes_for,
    free_bytes_behind,
    has_space_behind,
    large_bytes,
    stays_in_segment,
)
from meshq.store.allocation._disk_space_wait import DiskSpaceWait
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.allocation._wakeup import Wakeup
from meshq.store.commit._inline_sync_plan import InlineSync
from meshq.store.commit._journal_state import JournalState
from meshq.store.formats._batch_format import (
    CHECKPOINT,
    CHECKPOINT_BATCH,
    DATA_RECORD,
    KIND_SHIFT,
    ROW_BYTES,
    TARGETS,
    BatchData,
    batch_bytes,
    encode_targets_head,
    pack_targets,
)
from meshq.store.formats._record import INTERNAL, KIND_MAX, CheckpointRecord
from meshq.store.formats._segment_format import SALT_BYTES, SegmentHeader
from meshq.store.segments._segment_writer import SegmentWriter, write_segment_header

#: One batch fills at most such a share of a segment, but for a larger record.
BATCH_SHARE: Final = 8
#: On a full disk a checkpoint takes at most such a share of the reserve.
CHECKPOINT_SHARE: Final = 8
#: With its failpoint, lazy records wait so many times longer.
LAZY_LONG: Final = 20

AWAKE, LINGERING, IDLE = 0, 1, 2
NOTHING, RECORDS, ALL = 0, 1, 2


class GroupCommit:
    """The writing part of a journal."""

    def __init__(self, env: Env | None, segment_bytes: int) -> None:
        self._env_given = env
        self._segment_bytes = segment_bytes
        self._batch_bytes_max = min(segment_bytes // BATCH_SHARE, BATCH_BYTES_MAX)
        #: New records of more bytes than this, alone or in an atomic batch, need ``request_space`` first.
        self.large_bytes: int = large_bytes(segment_bytes)
        #: ``new``, ``opening``, ``open``, ``failed`` or ``closed``.
        self.state: str = "new"
        #: All records up to here are on disk.
        self.durable: Position = Position(0)
        #: The highest position given to a record.
        self.last: Position = Position(0)
        #: Called each time ``durable`` has moved, in the commit task.
        self.on_durable: Callable[[Position], None] | None = None
        #: Called once, when the disk has failed.
        self.on_failed: Callable[[MeshqError], None] | None = None
        #: Called each time ``full`` has changed.
        self.on_full_changed: Callable[[], None] | None = None
        #: Called for the owner's soft state whenever a segment begins.
        self.checkpoint: Callable[[], list[CheckpointRecord]] | None = None
        self._journal_state_or_none: JournalState | None = None
        self._failure: JournalBrokenError | None = None
        #: The records that ``append_nowait`` refuses: NOTHING, new RECORDS on a full disk, or ALL.
        self._refusing = ALL
        #: Closed batches that are not written yet: while there are any, all new records need ``request_space``.
        self.queued: deque[PendingBatch] = deque()
        self._space_wait = DiskSpaceWait()
        self._open = PendingBatch(1, self._batch_bytes_max)
        self._in_flight: PendingBatch | None = None
        #: A task waits for a placed record.
        self._urgent = False
        #: The commit task is AWAKE, LINGERING for more records, or IDLE.
        self._asleep = AWAKE
        self._wakeup = Wakeup()
        self._writer: SegmentWriter | None = None
        self._inline = InlineSync()
        self._stopping = False
        self._flushing = False
        #: Positions of the last checkpoint that was placed.
        self._checkpoint_positions: tuple[int, ...] = ()
        self._checkpoint_queued = False
        #: Every placed record joins the open batch, whatever its size.
        self._in_atomic_batch = False
        #: The last position that the durable checkpoint covers.
        self._covered = 0
        self._want_watermark = False
        #: Wakes maintenance: after the first batch in a while, after a roll, when the disk is full, at the end.
        self._maintenance_wakeup = Wakeup()
        self._maintenance_asleep = False
        self._batch_count = 0
        self._sync_count = 0
        self._inline_count = 0

    @property
    def _journal_state(self) -> JournalState:
        invariant(self._journal_state_or_none is not None, "the journal has been opened")
        assert self._journal_state_or_none is not None
        return self._journal_state_or_none

    @property
    def full(self) -> bool:
        """Whether the disk has no space for new records."""
        return self._journal_state_or_none is not None and self._journal_state_or_none.allocator.full

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
                self._wake()
        elif not self._urgent:
            self._urgent = True
            if self._asleep:
                self._wake()
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
                self._journal_state.allocator.release(self._open)
            invariant(self._open.bytes <= BATCH_BYTES_MAX, "an atomic batch fits in a batch")

    def _fits(self, need: int) -> bool:
        return need <= free_bytes_behind(self._writer, (self._in_flight, *self.queued, self._open))

    def _has_space_behind(self, need: int) -> bool:
        # The reserve has space for a batch; a record that is refused needs none.
        if not self.queued or self._refusing != NOTHING:
            return True
        spare_bytes = self._journal_state.allocator.spare_bytes
        return has_space_behind(self._writer, (self._in_flight, *self.queued, self._open), spare_bytes, need)

    def _claim_preallocated(self, size_bytes: int) -> None:
        """Take the preallocated segment for the records that are placed next in the empty open batch."""
        if size_bytes > self.large_bytes and not self._fits(need := batch_bytes_for(size_bytes)):
            self._open.preallocated = self._journal_state.allocator.claim(SEGMENT_HEADER_BYTES + need)

    def request_commit(self) -> None:
        """Commit the placed records without waiting for more."""
        if not self._urgent and (self._open.rows or self.queued):
            self._urgent = True
            if self._asleep:
                self._wake()

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
        if self._failure is None:
            batch = self._batch_with(position)
            if batch.settled is None:
                batch.settled = trio.Event()
            self.request_commit()
            await batch.settled.wait()
        if position > self.durable:
            raise self._broken()

    def _batch_with(self, position: int) -> PendingBatch:
        for batch in (self._in_flight, *self.queued):
            if batch is not None and position <= batch.last:
                return batch
        return self._open

    def _refuse(self, live: bool) -> None:
        if self._failure is not None:
            raise self._broken(outcome_not_done=True)
        if self._refusing == ALL:
            raise ClosedError(f"the journal is {self.state}")
        if live:
            raise AddressFullError("the disk has no room for new messages")

    def _broken(self, *, outcome_not_done: bool = False) -> JournalBrokenError:
        invariant(self._failure is not None, "something failed")
        error = JournalBrokenError(str(self._failure), outcome="not_done" if outcome_not_done else "unknown")
        return caused(error, self._failure.__cause__ if self._failure is not None else None)

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
                self._wake()
        self._open = PendingBatch(self.last + 1, self._batch_capacity())
        return self._open

    def _batch_capacity(self) -> int:
        env = self._env_given
        if env is not None and env.failpoint("journal.batch_of_one"):
            return -1
        return self._batch_bytes_max

    def _wake(self) -> None:
        self._asleep = AWAKE
        self._wakeup.wake()

    # -- the commit task -----------------------------------------------------------------------------------------

    async def _commit_loop(self) -> None:
        """Write the pending batches until the journal stops; with ``_flushing``, until no batch is left."""
        while self._failure is None:
            pending = self.queued or self._open.rows
            if self._stopping and not (pending and self._flushing):
                return
            if pending and (self._urgent or self._stopping):
                await trio.lowlevel.checkpoint()
                await self._commit(self._take_batch())
            elif pending:
                await self._linger()
            elif self._want_watermark:
                self._want_watermark = False
                await self._write_watermark()
            else:
                self._asleep = IDLE
                await self._wakeup.wait()
                self._asleep = AWAKE

    async def _linger(self) -> None:
        long = self._journal_state.env.failpoint("journal.lazy_long")
        self._asleep = LINGERING
        with trio.move_on_after(LAZY_COMMIT_S * LAZY_LONG if long else LAZY_COMMIT_S):
            while not (self._urgent or self._stopping):
                await self._wakeup.wait()
                self._asleep = LINGERING
        self._asleep = AWAKE
        self._urgent = True

    def _take_batch(self) -> PendingBatch:
        if not self.queued:
            self._begin_batch()
        batch = self.queued.popleft()
        self._urgent = bool(self.queued or self._open.rows)
        return batch

    async def _commit(self, batch: PendingBatch) -> None:
        self._in_flight = batch
        writer = self._writer
        # One sector is always left for a watermark.
        size = batch.bytes + SECTOR_BYTES
        early = writer is not None and writer.batches and self._journal_state.env.failpoint("journal.roll_early")
        if writer is None or early or not stays_in_segment(writer, batch, (*self.queued, self._open)):
            writer = await self._roll(batch, size)
            if batch.checkpoint is None and not self._checkpoint_queued:
                self._append_checkpoint()
        self._journal_state.allocator.release(batch)
        offset = writer.end
        seconds = await self._write(writer, batch.batch_data(), size)
        if self._failure is not None:
            # Another task of the journal has failed meanwhile: nothing is acknowledged after that.
            return
        self._in_flight = None
        self._record_batch(batch, writer, offset)
        self._inline.observe(seconds, trio.current_time())
        self._notify_durable(batch)
        self._space_wait.resume(self._has_space_behind)

    async def _write(self, writer: SegmentWriter, batch_data: BatchData, size: int) -> float:
        env = self._journal_state.env
        self._sync_count += 1
        allowed = self._inline.allows(size, trio.current_time()) and env.threads.idle()
        if allowed and not env.failpoint("journal.thread_always"):
            self._inline_count += 1
            return writer.write(batch_data, self.durable)
        return await env.threads.run(writer.write, batch_data, self.durable, pool="journal")

    def _record_batch(self, batch: PendingBatch, writer: SegmentWriter, offset: int) -> None:
        """Enter a durable batch into the segment usage."""
        usage = self._journal_state.usage
        segment = usage.segments[writer.number]
        segment.add_batch(batch.first, offset, batch.rows, None)
        for size, deletes, refs in batch.targets:
            usage.add_targets(segment, size, deletes, refs)
        if batch.checkpoint is not None:
            self._covered = batch.first - 1
            self._checkpoint_queued = False
        self._batch_count += 1
        self._journal_state.allocator.report_used(writer.end, writer.capacity)
        if self._maintenance_asleep:
            self._maintenance_asleep = False
            self._maintenance_wakeup.wake()

    def _notify_durable(self, batch: PendingBatch) -> None:
        if batch.rows:
            self.durable = Position(batch.last)
        if batch.settled is not None:
            batch.settled.set()
        if batch.rows and self.on_durable is not None:
            self.on_durable(self.durable)

    async def _roll(self, batch: PendingBatch, size: int) -> SegmentWriter:
        state, first = self._journal_state, batch.first
        preallocated = batch.take_preallocated(SEGMENT_HEADER_BYTES + size) or await state.allocator.allocate(
            SEGMENT_HEADER_BYTES + size
        )
        manifest = state.manifest
        header = SegmentHeader(
            number=preallocated.number,
            base=first,
            epoch=0,
            node_id=manifest.node_id,
            journal_id=manifest.journal_id,
            salt=state.env.entropy.token(SALT_BYTES),
            key_id=state.layout.keyring.current_id,
        )
        writer = SegmentWriter(preallocated, header, state.layout.keyring)
        await state.env.threads.run(write_segment_header, preallocated, header, pool="journal")
        old = self._writer
        async with state.manifest_lock:
            sealed = [] if old is None else [old.entry(sealed=True)]
            await state.change_manifest(entries=[*sealed, writer.entry()], last=self.durable)
        if old is not None:
            old.close()
        state.usage.add_segment(writer.number, first)
        self._writer = writer
        self._maintenance_wakeup.wake()
        return writer

    async def _write_watermark(self) -> None:
        """Write an empty batch behind the last one, which shows that the last one was synced."""
        writer = self._writer
        if writer is not None and writer.batches and writer.end + SECTOR_BYTES <= writer.capacity:
            await self._write(writer, BatchData(self.last + 1, [], []), SECTOR_BYTES)

    # -- the owner's soft state ------------------------------------------------------------------------------------

    def _append_checkpoint(self) -> None:
        """Place the owner's checkpoint as a batch of its own, behind all placed records."""
        records = self.checkpoint() if self.checkpoint is not None else []
        size = sum(len(record.payload) for record in records)
        if self.checkpoint is None or (self.full and size > self.large_bytes // CHECKPOINT_SHARE):
            # The reserve of a full disk is for draining; the last checkpoint still covers most of the state.
            return
        self._begin_batch()
        batch = self._open
        batch.flags = CHECKPOINT_BATCH
        old, positions = self._checkpoint_positions, []
        for number, record in enumerate(records):
            invariant(0 < record.kind <= KIND_MAX, "a checkpoint record has a kind")
            head = pack_targets(old, ()) if old and not number else b""
            row = record.kind << KIND_SHIFT | DATA_RECORD | CHECKPOINT | len(head) + len(record.payload)
            if head:
                row |= TARGETS
                batch.targets.append((len(head) + len(record.payload), old, ()))
            batch.rows.append(row)
            batch.parts += [head, record.payload]
            self.last = Position(self.last + 1)
            positions.append(self.last)
        if old and not records:
            head = pack_targets(old, ())
            batch.targets.append((len(head), old, ()))
            batch.rows.append(INTERNAL << KIND_SHIFT | TARGETS | len(head))
            batch.parts.append(head)
            self.last = Position(self.last + 1)
        invariant(batch.bytes <= BATCH_BYTES_MAX, "a checkpoint fits in a batch")
        batch.checkpoint = self._checkpoint_positions = tuple(positions)
        self._checkpoint_queued = True
        self.queued.append(batch)
        self._urgent = True
        self._open = PendingBatch(self.last + 1, self._batch_capacity())

    # -- the end ---------------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """Stop for good: nothing is written, synced or acknowledged after this."""
        if self._failure is not None or self.state == "closed":
            return
        self.state = "failed"
        self._refusing = ALL
        self._failure = caused(JournalBrokenError(f"the journal's disk failed: {error}"), error)
        for batch in (self._in_flight, *self.queued, self._open):
            if batch is not None and batch.settled is not None:
                batch.settled.set()
        self._halt()
        if self.on_failed is not None:
            self.on_failed(self._failure)

    def _halt(self) -> None:
        self._stopping = True
        self._wake()
        self._maintenance_wakeup.wake()
        self._journal_state.allocator.stop()
