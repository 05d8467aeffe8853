"""The paging task: faults messages in for queues, and writes messages out that are in no journal."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import trio

from meshq import abc
from meshq.broker import Core, StoredRun, run_contents
from meshq.errors import ClosedError, DamagedError, JournalBrokenError, MeshqError, caused, invariant
from meshq.store import Journal, Page, SpillFiles
from meshq.wire import RunBytes

#: The threads in which pages are read and written.
POOL: Final = "pages"


class PageRequests:
    """Requests of a core to its paging task, also before the task runs."""

    def __init__(self) -> None:
        self._files: SpillFiles | None = None
        self._work = trio.Event()

    def serve(self, files: SpillFiles) -> None:
        """Begin to serve, with the files of this life.  What was found at the start may be too much already."""
        self._files = files
        self._work.set()

    def wake(self) -> None:
        """Have the task look for work."""
        self._work.set()

    def forget(self, spill: Page) -> None:
        """Forget the bytes of a run in a file."""
        files = self._files
        invariant(files is not None, "what is in a file was written by the task")
        if files is not None and files.forget(spill):
            self._work.set()

    async def work(self) -> None:
        """Wait until there is work.

        Checkpoint: always.
        Cancellation: the work is still there.
        """
        await self._work.wait()
        self._work = trio.Event()


class PagingTask:
    """The paging task of one node."""

    def __init__(
        self,
        core: Core,
        journal: Journal,
        env: abc.Env,
        requests: PageRequests,
        *,
        failed: Callable[[MeshqError], None],
    ) -> None:
        self._core = core
        self._journal = journal
        self._threads = env.threads
        # Called when the disk has failed.
        self._failed = failed
        self._requests = requests
        self._files = SpillFiles(env.disk, journal.paging_directory, env.entropy)
        requests.serve(self._files)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Page until cancelled; report started once the files of an earlier run are removed.

        Checkpoint: always.
        Cancellation: what is being read is read again by whoever needs it.
        """
        try:
            await self._threads.run(self._files.open, pool=POOL)
            self._core.pager.spills = True
            task_status.started()
            await self._page()
        except (OSError, DamagedError) as error:
            self._failed(caused(JournalBrokenError(f"what was paged is lost: {error}"), error))
        finally:
            self._core.pager.spills = False
            # The next start removes them.
            self._files.close()

    async def _page(self) -> None:
        core, pager = self._core, self._core.pager
        while core.closing.stopping is None:
            await self._requests.work()
            if not pager.relieve():
                # What was placed just now can be paged as soon as it is durable.
                if not await self._durable():
                    return
                pager.relieve()
            await self._spill()
            core.pending.run()
            while runs := pager.next_reads():
                found = await self._read(runs)
                if found is None:
                    return
                pager.arrived(found)
                core.pending.run()
                if pager.crowded and not await self._durable():
                    return
                pager.relieve()
            # Waits for messages that have gone meanwhile were answered.
            core.pending.run()
            await self._threads.run(self._files.remove_unused, pool=POOL)

    async def _spill(self) -> None:
        """Write messages out that are in no journal."""
        pager = self._core.pager
        while going := pager.next_spills():
            runs = [(content.rows, content.table, content.body) for _, content in going]
            pages = await self._threads.run(self._files.write, runs, pool=POOL)
            if pages is None:
                # The disk is full: they stay, and producers wait.
                pager.unspilled()
                return
            pager.spilled({run: page for (run, _), page in zip(going, pages, strict=True)})

    async def _durable(self) -> bool:
        """Wait until the placed records are durable and can be paged out; False if the journal has failed."""
        try:
            await self._journal.wait_durable(self._journal.last)
        except JournalBrokenError:
            return False
        return True

    async def _read(self, runs: Sequence[StoredRun]) -> dict[StoredRun, RunBytes] | None:
        """The content of runs; None: the journal has failed, and says so to everybody itself."""
        # Runs that are no longer needed have no page.
        spilled = [(run, run.spill) for run in runs if run.spill is not None]
        positions = dict.fromkeys((run.origin or run).position for run in runs if run.spill is None)
        try:
            records = await self._journal.read(list(positions))
        except (JournalBrokenError, ClosedError):
            return None
        found: dict[StoredRun, RunBytes] = {}
        if spilled:
            pages = [page for _, page in spilled]
            contents = await self._threads.run(self._files.read, pages, pool=POOL)
            for (run, _), (rows, table, body) in zip(spilled, contents, strict=True):
                found[run] = RunBytes(rows, table, 0, body)
        return found | run_contents([run for run in runs if run not in found], records)
