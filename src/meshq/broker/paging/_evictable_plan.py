"""The evictable runs of a queue: all but those at its head, the farthest first.

Paged runs stand between the head and the runs that came later, so the search goes from the tail back to the first paged
run.  The pager knows the resident runs in between: runs that were read for a filter, or could not be paged earlier.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import UNACKED, QueueRun


def size_of(view: QueueRun) -> int:
    """Bytes of a run's content, wherever that is."""
    content = view.run.content
    return view.run.paged or len(content.table) + len(content.body)


def head_of(queue: Queue, reserve_bytes: int) -> dict[QueueRun, None]:
    """Return the runs that are dispatched next: at least one, and as many as fit into the reserve."""
    kept: dict[QueueRun, None] = {}
    left = reserve_bytes
    for priority_list in queue.lists.all:
        view = priority_list.head
        while view is not None:
            if kept and left <= 0:
                return kept
            kept[view] = None
            left -= size_of(view)
            view = view.next
    return kept


def evictable(queue: Queue, reserve_bytes: int, resident: Iterable[QueueRun]) -> list[QueueRun]:
    """Return the runs of a queue that may be evicted; ``resident``: runs in memory between paged ones."""
    kept = head_of(queue, reserve_bytes)
    found: dict[QueueRun, None] = {}
    for view in reversed(queue.scheduled):
        if view.run.paged:
            break
        found[view] = None
    for priority_list in reversed(queue.lists.all):
        view_or_none = priority_list.tail
        while view_or_none is not None and view_or_none not in kept and not view_or_none.run.paged:
            found[view_or_none] = None
            view_or_none = view_or_none.previous
    for view in resident:
        if view not in kept:
            found[view] = None
    return list(found)


def pinned(view: QueueRun) -> bool:
    """Whether a run has unacked messages, which may be returned, or have to be moved, at any time."""
    return view.states.find(UNACKED) >= 0
