"""Maintenance: reclaiming and compacting segments, and writing the watermark of an idle journal.

One task looks once after the start, and then sleeps until something is written.  While the journal is busy the task
looks once a second and after each new segment: it removes segments without live records, and compacts when that pays.
When nothing has been written for a second it compacts the nearly empty segments, has a watermark written and sleeps.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from meshq.store.commit._group_commit import GroupCommit
from meshq.store.directory._ping_pong_file import DiskFullError
from meshq.store.maintenance._compactor import Compactor
from meshq.store.segments._reclaim_plan import removable

#: Seconds without a write after which a journal is idle; also the period of maintenance while it is busy.
IDLE_S: Final = 1.0


class Maintenance(GroupCommit):
    """The maintenance part of a journal."""

    _compactor: Compactor

    @property
    def _active(self) -> int:
        """The number of the segment being written; 0 without one."""
        return 0 if self._writer is None else self._writer.number

    async def _begin(self) -> None:
        """Reclaim and compact the segments of earlier lives, if the disk has space for the checkpoint that this takes.

        A checkpoint is written only if it frees a segment: a start that adds a segment each time fills the disk.
        """
        await self._journal_state.allocator.space_known.wait()
        if self._writer is not None or self._checkpoint_queued or self.full or self._stopping:
            return
        covered = math.inf if self.checkpoint is None else self._covered
        if self._compactor.choose(0, covered, idle=True):
            await self._maintain(idle=True)
        elif removable(self._journal_state.usage.segments, active=0, covered=math.inf) or (
            self._compactor.choose(0, math.inf, idle=True)
        ):
            self._append_checkpoint()
            self._wake()

    async def _maintenance_loop(self) -> None:
        """Reclaim, compact and write watermarks until the journal stops."""
        try:
            await self._begin()
        except DiskFullError:
            return
        seen = 0
        while not self._stopping:
            if self._batch_count == seen and not self._journal_state.allocator.short_of_reserve:
                self._maintenance_asleep = True
                await self._maintenance_wakeup.wait()
                self._maintenance_asleep = False
                if self._batch_count == seen and not self._journal_state.allocator.short_of_reserve:
                    continue
            seen_now = self._batch_count
            with trio.move_on_after(IDLE_S):
                await self._maintenance_wakeup.wait()
            if self._stopping:
                return
            try:
                await self._maintain(idle=self._batch_count == seen_now)
            except DiskFullError:
                # Only a journal that is being closed doesn't wait for space; the next life does the maintenance.
                return
            if self._batch_count == seen_now != seen:
                seen = seen_now
                self._want_watermark = True
                self._wake()

    async def _maintain(self, *, idle: bool) -> None:
        """Remove the segments without live records, and compact if that pays.  Raises: OSError, DamagedError."""
        state = self._journal_state
        covered = math.inf if self.checkpoint is None else self._covered
        gone = removable(state.usage.segments, active=self._active, covered=covered)
        if gone:
            async with state.manifest_lock:
                await state.change_manifest(without=gone, last=self.durable)
                state.usage.remove(gone)
            await state.remove_segments(gone)
        # Another segment may have begun meanwhile.
        active = self._active
        chosen = self._compactor.choose(active, covered, idle=idle)
        if state.allocator.short_of_reserve and not chosen:
            chosen = self._compactor.choose_on_full_disk(active, covered, state.allocator.reserve_bytes)
            if chosen:
                await state.allocator.remove_ballast_for_space()
        if chosen:
            await self._compactor.compact(chosen, self.durable)
            state.allocator.manifest_written()
