"""Paging: over its limit a node, or an address, evicts the content of runs that are not needed next.

The order, the numbers and the counts of messages stay in memory; only the content of runs without unacked messages is
evicted.  A queue asks for the content of a paged run, and goes on when it is in memory.  A durable run has its content
in the journal; any other run is written to a file first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, Protocol

from meshq import limits
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.paging._evictable_plan import evictable, pinned, size_of
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.wire import RunBytes

#: Of memory, the part from which on queues are paged, and the part that is left then.
PAGE_FROM: Final = 1 / 2
PAGE_TO: Final = 3 / 8
#: The part of memory that one queue's head takes at most.
HEAD_SHARE: Final = 16
#: How much of the head of a queue is kept: all of it, then less and less, at last one run.
RESERVES: Final = (1, 1 / 8, 0)
#: When nothing more could be paged, nobody tries again before so much of the bound has come on top.
GROWTH_SHARE: Final = 16
#: But from here on it is tried each time.
PAGE_AGAIN: Final = 15 / 16
#: Runs that are gone may be remembered, but not many more than there are runs.
RESIDENT_SLACK: Final = 64


class _Fault:
    """A run that is read back: the queues that wait for it, and the functions to call when it is in memory."""

    __slots__ = ("then", "views")

    def __init__(self) -> None:
        self.views: dict[QueueRun, Queue] = {}
        self.then: list[Callable[[], None]] = []


class PageRequests(Protocol):
    """The task that reads and writes pages."""

    def wake(self) -> None:
        """Wake the task: runs are to be read or evicted."""

    def forget(self, spill: Any) -> None:
        """The bytes of a run in a file are no longer needed."""


class Pager:
    """Decides which runs are evicted and which are read back; the node's paging task does it."""

    def __init__(
        self,
        router: Router,
        memory: MemoryBound,
        schedule_dispatch: Callable[[Queue], None],
        requests: PageRequests,
    ) -> None:
        self._router = router
        self._memory = memory
        self._schedule_dispatch = schedule_dispatch
        self._requests = requests
        #: Whether there is room for what is in no journal.
        self.spills = False
        self._faults: dict[StoredRun, _Fault] = {}
        #: Runs in memory between paged ones.  A run that ends is removed from here, or its content would stay.
        self.resident: dict[QueueRun, Queue] = {}
        self._resident_limit = self._shared_limit = RESIDENT_SLACK
        # What is to be written, and what is being written.
        self._spilling: dict[StoredRun, dict[QueueRun, Queue]] = {}
        # Runs that stay in memory because somebody is about to use them, and how many do.
        self._held: dict[StoredRun, int] = {}
        # Paged runs that several queues have, with these queues.
        self._shared: dict[StoredRun, dict[QueueRun, Queue]] = {}
        #: Bytes that went to the disk and that came back, since the start.
        self.paged_bytes: int = 0
        self.read_bytes: int = 0
        if router.pages:
            memory.page_at = memory.limit_bytes * PAGE_FROM

    def pages(self, number: int) -> bool:
        """Whether the queue with this number is one that is paged."""
        queue = self._router.by_number.get(number)
        return queue is not None and _pages(queue)

    @property
    def free_bytes_at_start(self) -> float:
        """The bytes of recovered runs that are kept in memory at a start."""
        return self._memory.limit_bytes * PAGE_TO if self._router.pages else math.inf

    # -- what is needed

    @contextmanager
    def holding(self, run: StoredRun) -> Iterator[None]:
        """Keep a run that is in memory there within the block."""
        self._held[run] = self._held.get(run, 0) + 1
        try:
            yield
        finally:
            self._held[run] -= 1
            if not self._held[run]:
                del self._held[run]

    def fault_in_all(self, queue: Queue) -> None:
        """Read all runs that a queue needs in memory."""
        views = queue.pending.take_to_fault_in()
        for view in views:
            self.fault_in(queue, view)

    def fault_in(self, queue: Queue, view: QueueRun, then: Callable[[], None] | None = None) -> None:
        """Read the content of a run back, and dispatch its queue; ``then`` is called before that."""
        run = view.run
        if not run.paged:
            self._here(queue, view)
            if then is not None:
                then()
            return
        fault = self._faults.get(run)
        if fault is None:
            fault = self._faults[run] = _Fault()
            self._read_ahead(queue, view)
        fault.views[view] = queue
        if then is not None:
            fault.then.append(then)
        self._requests.wake()

    def _read_ahead(self, queue: Queue, view: QueueRun) -> None:
        """Read the runs behind ``view``, too: they are needed soon."""
        left = self._head_bytes(queue) - view.run.paged
        following = view.next
        while following is not None and following.run.paged and left > 0:
            left -= following.run.paged
            if following.run not in self._faults:
                self._faults[following.run] = fault = _Fault()
                fault.views[following] = queue
            following = following.next

    def _head_bytes(self, queue: Queue) -> int:
        return min(queue.settings.page_size_bytes, self._memory.limit_bytes // HEAD_SHARE)

    @property
    def _step_bytes(self) -> int:
        return min(limits.PAGE_READ_BYTES, self._memory.limit_bytes // HEAD_SHARE)

    @property
    def crowded(self) -> bool:
        """Whether runs should be evicted before more are read."""
        return self._memory.used_bytes > self._memory.page_at

    def next_reads(self) -> list[StoredRun]:
        """Return the runs to be read next, a bounded number of bytes."""
        found: list[StoredRun] = []
        left = self._step_bytes
        for run, fault in list(self._faults.items()):
            if not any(view.live for view in fault.views):
                # Nobody needs it any more.
                del self._faults[run]
                for then in fault.then:
                    then()
                continue
            found.append(run)
            left -= run.paged
            if left <= 0:
                break
        return found

    def arrived(self, found: Mapping[StoredRun, RunBytes]) -> None:
        """Take in the content of runs that were read."""
        for run, content in found.items():
            fault = self._faults.pop(run)
            if run.paged and any(view.live for view in fault.views):
                size = run.restore(content)
                self.read_bytes += size
                self._account(run, -size)
                self._drop_spill(run)
            for then in fault.then:
                then()
            self._add_resident(self._shared.pop(run, {}))
            for view, queue in fault.views.items():
                if view.live:
                    self.resident[view] = queue
                    self._here(queue, view)
        if len(self.resident) > self._resident_limit:
            self._trim_resident()

    def _here(self, queue: Queue, view: QueueRun) -> None:
        if queue.number in self._router.by_number:
            queue.content_loaded(view)
            self._schedule_dispatch(queue)

    def _add_resident(self, views: Mapping[QueueRun, Queue]) -> None:
        self.resident.update((view, queue) for view, queue in views.items() if view.live)

    def _trim_resident(self) -> None:
        """Forget resident runs that were evicted."""
        for view in [view for view in self.resident if view.run.paged]:
            del self.resident[view]
        self._resident_limit = 2 * len(self.resident) + RESIDENT_SLACK
        if len(self._shared) > self._shared_limit:
            self._shared = {run: views for run, views in self._shared.items() if run.views}
            self._shared_limit = 2 * len(self._shared) + RESIDENT_SLACK

    def _account(self, run: StoredRun, freed: int) -> None:
        whole = run.origin or run
        if whole.quota is not None:
            whole.quota.freed(freed)
        self._memory.released(freed)

    def ended(self, run: StoredRun) -> None:
        """Free the file bytes of a run that is gone."""
        self._drop_spill(run)

    def _drop_spill(self, run: StoredRun) -> None:
        if run.spill is not None:
            spill, run.spill = run.spill, None
            self._requests.forget(spill)

    # -- what goes

    def relieve(self) -> bool:
        """Evict as much as the limits demand; runs that are in no journal are written first (``next_spills``).

        Return whether that was possible.
        """
        memory, left = self._memory, 0
        for quota in self._router.quotas.values():
            if quota.pressed:
                queues = [queue for queue in quota.queues if _pages(queue)]
                rest = self._free(quota.excess, queues)
                quota.relieved(rest)
                left = max(left, rest)
        if memory.used_bytes > memory.page_at or (
            memory.waiting and memory.used_bytes > memory.limit_bytes * PAGE_FROM
        ):
            need = memory.used_bytes - int(memory.limit_bytes * PAGE_TO)
            queues = [queue for queue in self._router.by_number.values() if _pages(queue)]
            if queues:
                memory.reached("page")
            rest = self._free(need, queues)
            left = max(left, rest)
            step = memory.limit_bytes // GROWTH_SHARE if rest > 0 else 0
            again = min(memory.used_bytes + step, memory.limit_bytes * PAGE_AGAIN) if step else 0
            memory.page_at = max(memory.limit_bytes * PAGE_FROM, again)
        return left <= 0

    def _free(self, need: int, queues: Sequence[Queue]) -> int:
        """Evict ``need`` bytes; return how many are still to be found."""
        need -= sum(size_of(next(iter(views))) for views in self._spilling.values())
        for reserve in RESERVES:
            if need > 0:
                need -= self._evict_from(need, queues, reserve)
        return need

    def _evict_from(self, need: int, queues: Sequence[Queue], reserve: float) -> int:
        resident: dict[Queue, list[QueueRun]] = {}
        self._trim_resident()
        for view, queue in self.resident.items():
            resident.setdefault(queue, []).append(view)
        found = [
            (queue, evictable(queue, int(self._head_bytes(queue) * reserve), resident.get(queue, ())))
            for queue in queues
        ]
        # The longest backlog first.
        found.sort(key=lambda item: (-sum(map(size_of, item[1])), item[0].number))
        freed = 0
        together: dict[StoredRun, dict[QueueRun, Queue]] = {}
        for queue, views in found:
            for view in views:
                if freed >= need:
                    break
                run = view.run
                if pinned(view) or run in self._spilling or run in self._held:
                    self.resident[view] = queue
                elif run.origin is not None:
                    # A share has one queue.
                    freed += self._evict(run, {view: queue})
                else:
                    known = together.setdefault(run, {})
                    known[view] = queue
                    # It goes only when none of the queues that have it needs it next.
                    if len(known) == run.views - run.share_views:
                        freed += self._evict(run, together.pop(run))
        for known in together.values():
            self._add_resident(known)
        return freed

    def _evict(self, run: StoredRun, views: dict[QueueRun, Queue]) -> int:
        """Evict a run; ``views``: all its views."""
        whole = run.origin or run
        freed = 0
        if run is not whole and whole.views == whole.share_views:
            # Nobody needs more than shares of it.
            freed = whole.strip()
            self._account(whole, freed)
        if whole.position:
            self.note_evicted(run, views)
            return freed + self._forget(run)
        if self.spills:
            self._spilling[run] = views
            return freed + size_of(next(iter(views)))
        self._add_resident(views)
        return freed

    def note_evicted(self, run: StoredRun, views: dict[QueueRun, Queue]) -> None:
        """Note the queues of an evicted run: when one queue reads it back, the others learn of it."""
        if len(views) > 1:
            self._shared[run] = views

    def _forget(self, run: StoredRun) -> int:
        freed = run.forget()
        self.paged_bytes += freed
        self._account(run, freed)
        return freed

    # -- what is in no journal

    def next_spills(self) -> list[tuple[StoredRun, RunBytes]]:
        """Return the runs to be written next, a bounded number of bytes."""
        found: list[tuple[StoredRun, RunBytes]] = []
        left = self._step_bytes
        for run, views in list(self._spilling.items()):
            if not any(view.live for view in views):
                del self._spilling[run]
                continue
            found.append((run, run.content))
            left -= size_of(next(iter(views)))
            if left <= 0:
                break
        return found

    def unspilled(self) -> None:
        """Keep the runs in memory that were to be written: the disk has no space."""
        for views in self._spilling.values():
            self._add_resident(views)
        self._spilling.clear()

    def spilled(self, written: Mapping[StoredRun, object]) -> None:
        """Evict runs that were written to files; by run the place of its bytes."""
        for run, spill in written.items():
            views = self._spilling.pop(run)
            if run.paged or not any(view.live for view in views) or any(pinned(view) for view in views):
                # Somebody was faster.
                self._add_resident(views)
                self._requests.forget(spill)
                continue
            run.spill = spill
            self.note_evicted(run, views)
            self._forget(run)


def _pages(queue: Queue) -> bool:
    # What waits for another node waits as long as that is away, whatever its address does when it is full.
    return queue.forwards or queue.settings.full_policy == "page"
