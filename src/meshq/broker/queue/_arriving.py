"""Runs of a queue whose content was on the disk only."""

from __future__ import annotations

from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun


def arrived(queue: Queue, view: QueueRun) -> None:
    """The content of a run is here: what could not be said of it can be, and it may be granted."""
    level = view.level
    if level is None or not view.live:
        return
    if level.absent is view:
        level.absent = None
    if view.groups is not None:
        queue.groups().arrived(view)
    if queue.last_values is not None:
        queue.last_values.arrived(view)


def views_of(queue: Queue) -> list[QueueRun]:
    """The runs of which a queue holds messages, due or not."""
    return [*queue.runs(), *queue.scheduled]


def paged_of(queue: Queue) -> tuple[int, int]:
    """How many messages are on the disk only, and the bytes of their runs."""
    views = [view for view in views_of(queue) if view.run.paged]
    return sum(view.live for view in views), sum(view.run.paged for view in views)
