"""Runs of a queue that are loaded: content that was on the disk only, and rows that were unacked before a restart."""

from __future__ import annotations

from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._priority_list import list_of
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import UNACKED, UNACKED_ROWS, QueueRun


def content_loaded(queue: Queue, view: QueueRun) -> None:
    """Take in the content of a paged run: its messages can be put to filters and dispatched again."""
    priority_list = view.priority_list
    if priority_list is None or not view.live:
        return
    if priority_list.absent is view:
        priority_list.absent = None
    if view.groups is not None:
        queue.groups().arrived(view)
    if queue.last_values is not None:
        queue.last_values.arrived(view)


def views_of(queue: Queue) -> list[QueueRun]:
    """Return the runs of a queue, with the runs that are not due yet."""
    return [*queue.runs(), *queue.scheduled]


def paged_of(queue: Queue) -> tuple[int, int]:
    """Return how many messages are on the disk only, and the bytes of their runs."""
    views = [view for view in views_of(queue) if view.run.paged]
    return sum(view.live for view in views), sum(view.run.paged for view in views)


def mark_unacked(spans: list[RowSpan]) -> None:
    """Mark rows as unacked before their run becomes visible: a prepared transaction has acknowledged these."""
    for span in spans:
        span.view.states[span.start : span.stop : span.step] = UNACKED_ROWS[: span.rows]


def append_with_unacked(queue: Queue, view: QueueRun) -> None:
    """Make a run visible that has unacked rows already."""
    unacked = view.states.count(UNACKED)
    queue.append(view)
    queue.ready -= unacked
    queue.unacked += unacked
    list_of(view).ready -= unacked
    if view.groups is not None:
        queue.groups().restore_unacked(view)
