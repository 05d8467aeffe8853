"""The parts of an open journal, and the tasks that run them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Final

import trio
from trio import TaskStatus

from meshq.abc import Env, ReplicationSink, ReplicationStart
from meshq.concurrency import first_error
from meshq.errors import DamagedError, SettingsError
from meshq.ids import NodeId, Position
from meshq.limits import SEGMENT_BYTES
from meshq.logs import logger
from meshq.statistics import JournalStatistics
from meshq.store.allocation._segment_allocator import SegmentAllocator
from meshq.store.commit._active_segment import ActiveSegment
from meshq.store.commit._checkpoints import Checkpoints
from meshq.store.commit._commit_log import CommitLog
from meshq.store.commit._group_commit import GroupCommit
from meshq.store.commit._journal_life import JournalLife
from meshq.store.commit._journal_owner import OwnerLink
from meshq.store.commit._journal_state import JournalState
from meshq.store.commit._maintenance_wakeup import MaintenanceWakeup
from meshq.store.commit._replication import Replication, SinkFailedError
from meshq.store.directory._ping_pong_file import DiskFullError
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._record_prefix import NO_PREFIX, RecordPrefix
from meshq.store.maintenance._compactor import Compactor
from meshq.store.maintenance._maintenance import Maintenance
from meshq.store.maintenance._segment_indexer import SegmentIndexer
from meshq.store.reading._segment_source import SegmentSource
from meshq.store.recovery._recovery import Recovery

_log = logger("store")
#: The errors of the disk, which end a journal in order.
DISK_ERRORS: Final = (OSError, DamagedError, SettingsError)


class OpenJournal:
    """The parts of one open journal: commit log, group commit, segment allocator, maintenance and indexer.

    The allocator, the commit task, maintenance and the indexer run as tasks, which end together: the first error of
    the disk fails the journal's life, and is the error of all.
    """

    def __init__(
        self,
        env: Env,
        layout: Layout,
        recovery: Recovery,
        *,
        life: JournalLife,
        link: OwnerLink,
        segment_bytes: int = SEGMENT_BYTES,
        record_prefix: RecordPrefix = NO_PREFIX,
        sink: ReplicationSink | None = None,
    ) -> None:
        self._life = life
        self._link = link
        manifest = recovery.manifest
        self._allocator = SegmentAllocator(env, layout, segment_bytes, manifest.next_segment, self._full_changed)
        self.state = JournalState(env, layout, recovery.usage, manifest, self._allocator)
        self.segment = ActiveSegment(self.state)
        self.checkpoints = Checkpoints(link, recovery.checkpoint, recovery.covered)
        self.source = SegmentSource(self.state, self.segment, last=manifest.last)
        start = ReplicationStart(
            node_id=NodeId(manifest.node_id),
            journal_id=manifest.journal_id,
            last=Position(manifest.last),
            source=self.source,
        )
        self._replication = None if sink is None else Replication(sink, start)
        self.log = CommitLog(
            self.state, self.segment, self.checkpoints, life, segment_bytes, replication=self._replication
        )
        self.compactor = Compactor(self.state, segment_bytes)
        self.indexer = SegmentIndexer(self.state, self.log, record_prefix, recovery.forms, self._segment_damaged)
        self._maintenance_wakeup = MaintenanceWakeup()
        self._commits = GroupCommit(
            self.state,
            self.segment,
            self.log,
            checkpoints=self.checkpoints,
            link=link,
            life=life,
            maintenance=self._maintenance_wakeup,
            replication=self._replication,
        )
        self._maintenance = Maintenance(
            self.state,
            self.compactor,
            segment=self.segment,
            log=self.log,
            commits=self._commits,
            checkpoints=self.checkpoints,
            life=life,
            wakeup=self._maintenance_wakeup,
        )
        self._torn_bytes = recovery.torn_bytes
        self._refused_indexes = len(recovery.refused)
        self._run_scope = trio.CancelScope()
        #: Set when the tasks have ended; None: the tasks were never started.
        self._tasks_ended: trio.Event | None = None

    # -- what the parts report -----------------------------------------------------------------------------------

    def _full_changed(self) -> None:
        if self._life.taking:
            self.log.set_full(self._allocator.full)
            self._maintenance_wakeup.wake()
            self.log.resume_waiting()
            if self._link.owner is not None:
                self._link.owner.full_changed()

    def _segment_damaged(self, error: DamagedError) -> None:
        _log.error("%s; the next start will refuse this store", error, extra={"event": "store_damaged"})
        if self._link.owner is not None:
            self._link.owner.damaged(error)

    def _sink_advanced(self) -> None:
        if self._life.failure is None and self.log.settle_replicated():
            self._link.report(self.log.durable)

    # -- the tasks -----------------------------------------------------------------------------------------------

    def begin(self) -> bool:
        """Enter the state in which the tasks run, if the journal takes records; ``run`` follows.

        Return False if the tasks have begun before.
        """
        if self._tasks_ended is not None:
            return False
        if self._life.state == "open":
            self._life.on("run")
        self._tasks_ended = trio.Event()
        return True

    async def run(self, task_status: TaskStatus[None]) -> None:
        """Run the tasks until they are cancelled, or ``finish`` is called, or the disk fails.

        Checkpoint: always.
        Cancellation: the batch under way is finished.
        Raises:
            JournalBrokenError: the disk failed.
        """
        if self._life.closing:
            if not self._life.flushing:
                self.halt()
            # Otherwise ``finish`` has begun without tasks, and writes the rest itself.
            self._set_ended()
            task_status.started()
            return
        if self._link.checkpoint is not None or self._link.follows:
            self._allocator.request_spare()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_task, "commit")
                nursery.start_soon(self._run_task, "allocator")
                nursery.start_soon(self._run_task, "maintenance")
                nursery.start_soon(self._run_task, "index")
                if self._replication is not None:
                    nursery.start_soon(self._run_task, "replication")
                task_status.started()
                try:
                    with self._run_scope:
                        await trio.sleep_forever()
                finally:
                    self.halt()
        except BaseExceptionGroup as group:
            raise (first := first_error(group)) from first.__cause__
        finally:
            self._set_ended()
        if self._life.failure is not None:
            raise self._life.broken()

    async def _run_task(self, name: str) -> None:
        """Run one of the tasks; an error of the disk ends all of them, and leaves ``run`` as one error."""
        with trio.CancelScope(shield=True), self._errors_fail():
            if name == "commit":
                await self._commits.run()
            elif name == "allocator":
                await self._allocator.run(self.state.truncate_sealed)
            elif name == "maintenance":
                await self._maintenance.run()
            elif name == "index":
                await self.indexer.run()
            elif self._replication is not None:
                await self._replication.run(self._sink_advanced)

    @contextlib.contextmanager
    def _errors_fail(self) -> Iterator[None]:
        """Fail the journal for an error; an error of neither the disk nor the sink is raised, too."""
        try:
            yield
        except DISK_ERRORS as error:
            self.fail(error)
        except SinkFailedError as error:
            self.fail(error.__cause__ or error, "replication")
        except BaseException as error:
            self.fail(error)
            raise

    def _set_ended(self) -> None:
        if self._tasks_ended is not None:
            self._tasks_ended.set()

    # -- the end -------------------------------------------------------------------------------------------------

    def fail(self, error: BaseException, part: str = "disk") -> None:
        """Stop for good: nothing is written, synced or acknowledged after this."""
        if not self._life.fail(error, part):
            return
        self.log.fail()
        self.halt()
        if self._replication is not None:
            self._replication.fail()
        if self._link.owner is not None and self._life.failure is not None:
            self._link.owner.failed(self._life.failure)
        self._run_scope.cancel()

    def halt(self) -> None:
        """Tell the tasks to end."""
        if self._life.state in ("running", "draining"):
            self._life.on("halt")
        self.log.wake()
        self._maintenance_wakeup.wake()
        self._allocator.stop()
        self.indexer.stop()
        if self._replication is not None:
            self._replication.stop()
        self.log.resume_waiting()

    async def finish(self, sink_timeout_s: float) -> None:
        """Write the placed records, end the tasks, seal the segment and remove the preallocated segments.

        ``sink_timeout_s``: seconds for which the sink is waited for.

        Checkpoint: not always.
        Cancellation: the caller shields it.
        """
        self.log.refuse_all()
        if self._tasks_ended is not None and not self._tasks_ended.is_set():
            self._run_scope.cancel()
            await self._tasks_ended.wait()
        try:
            with self._errors_fail():
                if self._life.flushing:
                    await self._commits.run()
        finally:
            with self._errors_fail():
                await self._finish_replication(sink_timeout_s)
        with self._errors_fail():
            if self._life.flushing:
                # On a full disk the last segment stays open, as after a crash.
                with contextlib.suppress(DiskFullError):
                    await self.segment.seal(self.log.synced)
                    await self.indexer.finish()
                await self.state.run_in_background(self._allocator.remove_unused)

    async def _finish_replication(self, timeout_s: float) -> None:
        if self._replication is not None:
            # A sink that waits for nothing more is told so, too: no batch follows a failure.
            self._replication.end()
            if self._life.flushing:
                try:
                    await self._replication.finish(self._sink_advanced, timeout_s)
                except SinkFailedError as error:
                    text = "the records after position %d are not confirmed: %s"
                    _log.error(text, self.log.durable, error, extra={"event": "replication_unfinished"})
                    raise

    def close(self) -> None:
        """Close the files."""
        self._allocator.close()
        self.log.close()
        self.segment.close()

    # -- statistics ----------------------------------------------------------------------------------------------

    def statistics(self) -> JournalStatistics:
        """Return a snapshot of counts, sizes and the disk's speed."""
        log, segments, entries = self.log, self.state.usage.segments.values(), self.segment.entries()
        return JournalStatistics(
            state=self._life.shown,
            full=self._allocator.full,
            segments=len(entries),
            bytes=sum(entry.length for entry in entries.values()),
            live_bytes=sum(segment.live_bytes for segment in segments),
            live_records=sum(segment.live_records for segment in segments),
            last=log.last,
            durable=log.durable,
            lag_records=log.last - log.durable,
            batches=self._commits.batch_count,
            syncs=self.segment.sync_count,
            inline_syncs=self.segment.inline_count,
            sync_p50_s=self.segment.sync_percentile(0.5),
            sync_p99_s=self.segment.sync_percentile(0.99),
            compactions=self.compactor.count,
            torn_bytes=self._torn_bytes,
            indexed=self.indexer.indexed,
            refused_indexes=self._refused_indexes,
            unproven_segments=self.indexer.unproven_segments,
            damaged_segments=self.indexer.damaged_segments,
        )
