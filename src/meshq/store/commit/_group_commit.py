"""Group commit: the task that writes the placed records in batches.

The task takes the pending batch, writes it, syncs, and wakes the tasks that wait; the next batch collects records
meanwhile.  So all records that were placed during a sync share the next one, and only lazy records ever wait for
others to join.

Before it takes a batch the task yields to the loop once, so that tasks which were woken together share a batch.
"""

from __future__ import annotations

from meshq.limits import SECTOR_BYTES
from meshq.store.allocation._batch_space import stays_in_segment
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.commit._active_segment import ActiveSegment
from meshq.store.commit._checkpoints import Checkpoints
from meshq.store.commit._commit_log import CommitLog
from meshq.store.commit._journal_life import JournalLife
from meshq.store.commit._journal_owner import OwnerLink
from meshq.store.commit._journal_state import JournalState
from meshq.store.commit._maintenance_wakeup import MaintenanceWakeup
from meshq.store.commit._replication import Replication
from meshq.store.segments._segment_writer import SegmentWriter


class GroupCommit:
    """The writing task of one journal."""

    __slots__ = (
        "_checkpoints",
        "_life",
        "_link",
        "_log",
        "_maintenance",
        "_replication",
        "_segment",
        "_state",
        "_watermark_wanted",
        "batch_count",
    )

    def __init__(
        self,
        state: JournalState,
        segment: ActiveSegment,
        log: CommitLog,
        *,
        checkpoints: Checkpoints,
        link: OwnerLink,
        life: JournalLife,
        maintenance: MaintenanceWakeup,
        replication: Replication | None,
    ) -> None:
        self._state = state
        self._segment = segment
        self._log = log
        self._checkpoints = checkpoints
        self._link = link
        self._life = life
        self._maintenance = maintenance
        self._replication = replication
        self._watermark_wanted = False
        self.batch_count = 0

    def request_watermark(self) -> None:
        """Ask for a watermark behind the last batch; new records go first."""
        self._watermark_wanted = True
        self._log.wake()

    async def run(self) -> None:
        """Write the pending batches until the journal's tasks are to end; all of them if the journal is being closed.

        Checkpoint: always, unless there is nothing to write at the end.
        Cancellation: the batch under way is finished.
        Raises:
            DiskFullError: the disk is full, and the journal is being closed.
            OSError: the disk failed.
        """
        log, life = self._log, self._life
        while life.failure is None:
            pending = log.pending
            if life.ending and not (pending and life.flushing):
                return
            if self._watermark_wanted and not pending:
                self._watermark_wanted = False
                await self._segment.write_watermark(log.last + 1, log.synced)
                continue
            batch = await log.next_batch()
            if batch is not None:
                await self._commit(batch)

    async def _commit(self, batch: PendingBatch) -> None:
        state, segment, log = self._state, self._segment, self._log
        writer = segment.writer
        # One sector is always left for a watermark.
        size = batch.bytes + SECTOR_BYTES
        early = writer is not None and writer.batches and state.env.failpoint("journal.roll_early")
        if writer is None or early or not stays_in_segment(writer, batch, log.behind()):
            writer = await segment.roll(batch, size, log.synced)
            if self._life.failure is not None:
                return
            self._maintenance.wake()
            if batch.checkpoint is None and not self._checkpoints.placed:
                log.place_checkpoint()
        state.allocator.release(batch)
        offset = writer.end
        if self._replication is not None:
            self._replication.place(batch)
        # All records before the batch are on this disk.
        seconds = await segment.write(writer, batch.batch_data(), size, batch.first - 1)
        if self._life.failure is not None:
            # Another task of the journal has failed meanwhile: nothing is acknowledged after that.
            return
        self._record_batch(batch, writer, offset)
        segment.observe(seconds)
        if log.settle(batch):
            self._link.report(log.durable)
        log.resume_waiting()

    def _record_batch(self, batch: PendingBatch, writer: SegmentWriter, offset: int) -> None:
        """Enter a durable batch into the segment usage."""
        usage = self._state.usage
        segment = usage.segments[writer.number]
        segment.add_batch(batch.first, offset, batch.rows, None)
        for size, deletes, refs in batch.targets:
            usage.add_targets(segment, size, deletes, refs)
        if batch.checkpoint is not None:
            self._checkpoints.settle(batch)
        self.batch_count += 1
        self._state.allocator.report_used(writer.end, writer.capacity)
        self._maintenance.batch_written()
