"""Giving room back, and closing the one doubt that a crash could leave.

One task, which looks once after the start, and then sleeps until something is written.  While the journal is busy it
looks once a second and after each new segment: it drops the segments that are dead and compacts when that pays.  When
nothing has been written for a second it empties those of which hardly anything is left, has a watermark written and
goes to sleep.
"""

from __future__ import annotations

import math
from typing import Final

import trio

from meshq.store._compactor import Compactor
from meshq.store._group_commit import GroupCommit
from meshq.store._ping_pong_file import NoRoomError
from meshq.store._reclaim_plan import removable

#: How long nothing is written before a journal counts as idle, and how often a busy one is tidied.
IDLE_S: Final = 1.0


class Tidying(GroupCommit):
    """The tidying half of a journal."""

    _compactor: Compactor

    @property
    def _active(self) -> int:
        """The number of the segment being written; 0 without one."""
        return 0 if self._writer is None else self._writer.number

    async def _begin(self) -> None:
        """Give back what the last life left, if the disk has room for what that takes.

        Nothing is written that does not: a start that leaves a segment behind each time fills the disk.
        """
        await self._books.room.settled.wait()
        if self._writer is not None or self._checkpoint_queued or self.full or self._stopping:
            return
        covered = math.inf if self.checkpoint is None else self._covered
        if self._compactor.choose(0, covered, idle=True):
            await self._tidy(idle=True)
        elif removable(self._books.ledger.books, active=0, covered=math.inf) or (
            self._compactor.choose(0, math.inf, idle=True)
        ):
            self._ask_checkpoint()
            self._wake()

    async def _tidy_loop(self) -> None:
        """Reclaim, compact and watermark until the journal stops."""
        try:
            await self._begin()
        except NoRoomError:
            return
        seen = 0
        while not self._stopping:
            if self._batch_count == seen and not self._books.room.pressed:
                self._tidy_asleep = True
                await self._tidy_bell.wait()
                self._tidy_asleep = False
                if self._batch_count == seen and not self._books.room.pressed:
                    continue
            seen_now = self._batch_count
            with trio.move_on_after(IDLE_S):
                await self._tidy_bell.wait()
            if self._stopping:
                return
            try:
                await self._tidy(idle=self._batch_count == seen_now)
            except NoRoomError:
                # Only a journal that is being closed doesn't wait for room; the next life tidies.
                return
            if self._batch_count == seen_now != seen:
                seen = seen_now
                self._want_watermark = True
                self._wake()

    async def _tidy(self, *, idle: bool) -> None:
        """Drop dead segments, and compact if that pays.  Raises: OSError, DamagedError."""
        books = self._books
        covered = math.inf if self.checkpoint is None else self._covered
        gone = removable(books.ledger.books, active=self._active, covered=covered)
        if gone:
            async with books.turn:
                await books.switch(without=gone, last=self.durable)
                books.ledger.remove(gone)
            await books.unlink(gone)
        # Another segment may have begun meanwhile.
        active = self._active
        chosen = self._compactor.choose(active, covered, idle=idle)
        if books.room.pressed and not chosen:
            chosen = self._compactor.squeeze(active, covered, books.room.reserve_bytes)
            if chosen:
                await books.room.lend_ballast()
        if chosen:
            await self._compactor.compact(chosen, self.durable)
            books.room.manifest_written()
