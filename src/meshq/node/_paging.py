"""Whoever has the disk for the pager: reads back what queues need, and writes what is in no journal."""

from __future__ import annotations

from collections.abc import Sequence

import trio

from meshq.broker import Core, StoredRun, run_content
from meshq.errors import ClosedError, JournalBrokenError
from meshq.store import Journal
from meshq.wire import RunBytes


class Paging:
    """The task of one node that pages."""

    def __init__(self, core: Core, journal: Journal) -> None:
        self._core = core
        self._journal = journal
        self._work = trio.Event()
        # What was found at the start may be too much already.
        self._work.set()
        core.pager.on_work = self._wake

    def _wake(self) -> None:
        self._work.set()

    async def run(self) -> None:
        """Page for ever.

        Checkpoint: always.
        Cancellation: what is being read is read again by whoever needs it.
        """
        core, pager = self._core, self._core.pager
        while core.closing is None:
            await self._work.wait()
            self._work = trio.Event()
            if not pager.relieve():
                # What was placed just now can be paged as soon as it is durable.
                if not await self._durable():
                    return
                pager.relieve()
            core.turn()
            while runs := pager.next_reads():
                found = await self._read(runs)
                if found is None:
                    return
                pager.arrived(found)
                core.turn()
                if pager.crowded and not await self._durable():
                    return
                pager.relieve()
            await trio.lowlevel.checkpoint()

    async def _durable(self) -> bool:
        """Wait until what was placed can be paged; False if the journal has failed."""
        try:
            await self._journal.wait_durable(self._journal.last)
        except JournalBrokenError:
            return False
        return True

    async def _read(self, runs: Sequence[StoredRun]) -> dict[StoredRun, RunBytes] | None:
        """The content of runs; None: the journal has failed, and says so to everybody itself."""
        positions = dict.fromkeys((run.origin or run).position for run in runs)
        try:
            records = await self._journal.read(list(positions))
        except (JournalBrokenError, ClosedError):
            return None
        found: dict[StoredRun, RunBytes] = {}
        for run in runs:
            record = records.get((run.origin or run).position)
            # What has died meanwhile has no record, and nobody who waits for it.
            found[run] = run_content(run, record.kind, record.payload) if record is not None else run.content
        return found
