"""Which runs of a queue are not needed for a while: all but those at its head, the farthest first.

What was paged stands between what is at the head and what came since, so a look goes from the tail back to the first
run that is on the disk only.  What is here in between (it was read for a filter, or could not be paged when the others
were) is known to the pager.
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
    """The runs that are served next: at least one, and what fits into the reserve."""
    kept: dict[QueueRun, None] = {}
    left = reserve_bytes
    for priority_list in queue.priority_lists:
        view = priority_list.head
        while view is not None:
            if kept and left <= 0:
                return kept
            kept[view] = None
            left -= size_of(view)
            view = view.next
    return kept


def evictable(queue: Queue, reserve_bytes: int, resident: Iterable[QueueRun]) -> list[QueueRun]:
    """The runs of a queue that may go to the disk; ``resident``: those that are here in the midst of others."""
    kept = head_of(queue, reserve_bytes)
    found: dict[QueueRun, None] = {}
    for view in reversed(queue.scheduled):
        if view.run.paged:
            break
        found[view] = None
    for priority_list in reversed(queue.priority_lists):
        view_or_none = priority_list.tail
        while view_or_none is not None and view_or_none not in kept and not view_or_none.run.paged:
            found[view_or_none] = None
            view_or_none = view_or_none.previous
    for view in resident:
        if view not in kept:
            found[view] = None
    return list(found)


def pinned(view: QueueRun) -> bool:
    """Whether somebody has a message of it: it may come back, or have to be moved, at once."""
    return view.states.find(UNACKED) >= 0
