"""Maintenance: reclaiming and compacting segments, and writing the watermark of an idle journal.

One task looks once after the start, and then sleeps until something is written.  While the journal is busy the task
looks once a second and after each new segment: it removes segments without live records, and compacts when that pays.
When nothing has been written for a second it compacts the nearly empty segments, has a watermark written and sleeps.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from meshq.store.allocation._segment_allocator import RESERVE_BYTES_MIN
from meshq.store.commit._active_segment import ActiveSegment
from meshq.store.commit._checkpoints import Checkpoints
from meshq.store.commit._commit_log import CommitLog
from meshq.store.commit._group_commit import GroupCommit
from meshq.store.commit._journal_life import JournalLife
from meshq.store.commit._journal_state import JournalState
from meshq.store.commit._maintenance_wakeup import MaintenanceWakeup
from meshq.store.directory._ping_pong_file import DiskFullError
from meshq.store.maintenance._compactor import Compactor
from meshq.store.segments._reclaim_plan import removable

#: Seconds without a write after which a journal is idle; also the period of maintenance while it is busy.
IDLE_S: Final = 1.0


class Maintenance:
    """The maintenance task of one journal."""

    __slots__ = ("_checkpoints", "_commits", "_compactor", "_life", "_log", "_segment", "_state", "_wakeup")

    def __init__(
        self,
        state: JournalState,
        compactor: Compactor,
        *,
        segment: ActiveSegment,
        log: CommitLog,
        commits: GroupCommit,
        checkpoints: Checkpoints,
        life: JournalLife,
        wakeup: MaintenanceWakeup,
    ) -> None:
        self._state = state
        self._compactor = compactor
        self._segment = segment
        self._log = log
        self._commits = commits
        self._checkpoints = checkpoints
        self._life = life
        self._wakeup = wakeup

    async def _begin(self) -> None:
        """Reclaim and compact the segments of earlier lives, if the disk has space for the checkpoint that this takes.

        A checkpoint is written only if it frees a segment: a start that adds a segment each time fills the disk.
        """
        allocator = self._state.allocator
        await allocator.space_known.wait()
        if self._segment.writer is not None or self._checkpoints.placed or allocator.full or self._life.ending:
            return
        if self._compactor.choose(0, self._checkpoints.covered, idle=True):
            await self._maintain(idle=True)
        elif removable(self._state.usage.segments, active=0, covered=math.inf) or (
            self._compactor.choose(0, math.inf, idle=True)
        ):
            self._log.place_checkpoint()
            self._log.wake()

    async def run(self) -> None:
        """Reclaim, compact and ask for watermarks until the journal's tasks are to end.

        Checkpoint: always.
        Cancellation: the segment under way is finished.
        Raises:
            DamagedError: a segment is not what was written.
            OSError: the disk failed.
        """
        try:
            await self._begin()
        except DiskFullError:
            return
        commits, life, seen = self._commits, self._life, 0
        while not life.ending:
            if commits.batch_count == seen and not self._state.allocator.short_of_reserve:
                await self._wakeup.wait_for_batch()
                if commits.batch_count == seen and not self._state.allocator.short_of_reserve:
                    continue
            seen_now = commits.batch_count
            with trio.move_on_after(IDLE_S):
                await self._wakeup.wait()
            if life.ending:
                return
            try:
                await self._maintain(idle=commits.batch_count == seen_now)
            except DiskFullError:
                # Only a journal that is being closed doesn't wait for space; the next life does the maintenance.
                return
            if commits.batch_count == seen_now != seen:
                seen = seen_now
                commits.request_watermark()

    async def _maintain(self, *, idle: bool) -> None:
        """Remove the segments without live records, and compact if that pays.

        Not while the segments are being copied, unless the disk is full.  Raises: OSError, DamagedError.
        """
        state = self._state
        if state.copies and not state.allocator.short_of_reserve:
            return
        with state.maintaining():
            await self._maintain_now(idle=idle)

    async def _maintain_now(self, *, idle: bool) -> None:
        state = self._state
        covered = self._checkpoints.covered
        gone = removable(state.usage.segments, active=self._segment.number, covered=covered)
        if gone:
            await state.change_manifest(without=gone, last=self._log.synced)
            state.usage.remove(gone)
            await state.remove_segments(gone)
        # Another segment may have begun meanwhile.
        active = self._segment.number
        chosen = self._compactor.choose(active, covered, idle=idle)
        done = bool(chosen) and await self._compactor.compact(chosen, self._log.synced)
        if state.allocator.short_of_reserve and not done:
            await self._compact_on_full_disk(covered)

    async def _compact_on_full_disk(self, covered: float) -> None:
        """Compact the segments that free most, in the room of the ballast; fewer while there is no space for copies."""
        allocator, budget_bytes = self._state.allocator, self._state.allocator.reserve_bytes
        while budget_bytes >= RESERVE_BYTES_MIN:
            chosen = self._compactor.choose_on_full_disk(self._segment.number, covered, budget_bytes)
            if not chosen:
                return
            await allocator.remove_ballast_for_space()
            if await self._compactor.compact(chosen, self._log.synced):
                return
            budget_bytes //= 2
