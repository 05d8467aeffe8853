"""The content of recovered runs: in memory as far as there is room, and on the disk beyond that."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from meshq import limits
from meshq.broker import records
from meshq.broker.catalog._router import Router
from meshq.broker.paging._pager import Pager
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import GONE, QueueRun, StoredRun
from meshq.errors import invariant

#: Gets the payloads of living records, by position.
ReadPayloads = Callable[[Sequence[int]], Mapping[int, bytes]]
#: A run, and its views in each queue by the queue's number.
RecoveredRun = tuple[StoredRun, dict[int, list[QueueRun]]]


class RecoveredContent:
    """Decides which recovered runs have their content in memory.

    ``read`` gets whole what records were left without.
    """

    __slots__ = ("_free_bytes", "_left", "_pager", "_read", "_router", "_taken")

    def __init__(self, pager: Pager, router: Router, read: ReadPayloads | None) -> None:
        self._pager = pager
        self._router = router
        self._read = read
        # Runs whose content the journal has left on the disk.
        self._left: list[StoredRun] = []
        # Bytes of memory that runs may take, and do.
        self._free_bytes = pager.free_bytes_at_start
        self._taken = 0

    def leave(self, run: StoredRun, missing: int) -> None:
        """Note a run whose content, of so many bytes, the journal has left on the disk."""
        run.paged = missing
        self._left.append(run)

    def keep(self, run: StoredRun, views: dict[int, list[QueueRun]]) -> None:
        """Keep a run in memory, or leave it on the disk if memory is full."""
        if run.paged:
            self._pager.note_evicted(run, self._own(run, views))
        elif self._taken + run.size_bytes > self._free_bytes and any(map(self._pager.pages, views)):
            for parts in views.values():
                for view in parts:
                    if not view.run.paged:
                        view.run.forget()
            self._pager.note_evicted(run, self._own(run, views))
            if not run.paged:
                # Only shares of it were needed.
                run.strip()
        self._taken += run.size_bytes

    def _own(self, run: StoredRun, views: dict[int, list[QueueRun]]) -> dict[QueueRun, Queue]:
        """The views of a whole run, and their queues."""
        by_number = self._router.by_number
        return {
            view: by_number[number]
            for number, parts in views.items()
            if number in by_number
            for view in parts
            if view.run is run
        }

    def read_left(self, runs: Mapping[int, RecoveredRun]) -> None:
        """Get the content of runs that no queue pages: it belongs in memory."""
        wanted: dict[int, StoredRun] = {}
        size = 0
        for run in self._left:
            views = runs[run.position][1]
            queues = {number: parts for number, parts in views.items() if number in self._router.by_number}
            alive = any(len(view.states) > view.states.count(GONE) for parts in queues.values() for view in parts)
            if alive and not any(map(self._pager.pages, queues)):
                wanted[run.position] = run
                size += run.paged
                if size >= limits.PAGE_READ_BYTES:
                    self._restore(wanted)
                    wanted, size = {}, 0
        self._restore(wanted)

    def _restore(self, wanted: Mapping[int, StoredRun]) -> None:
        if not wanted:
            return
        invariant(self._read is not None, "who leaves content out can read it")
        payloads = self._read(list(wanted)) if self._read is not None else {}
        for position, run in wanted.items():
            run.restore(records.decode_run(payloads[position]).content)
