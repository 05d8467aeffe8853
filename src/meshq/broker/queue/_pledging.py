"""Messages that a prepared transaction holds, when a queue is filled anew: they are there, and nobody gets them."""

from __future__ import annotations

from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._priority_list import level_of
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import HELD, HELD_ROWS, QueueRun


def pledge(spans: list[RowSpan]) -> None:
    """These rows are held, before their run becomes visible."""
    for span in spans:
        span.view.states[span.start : span.stop : span.step] = HELD_ROWS[: span.rows]


def append_pledged(queue: Queue, view: QueueRun) -> None:
    """A run becomes visible of which some rows are held already."""
    held = view.states.count(HELD)
    queue.append(view)
    queue.ready -= held
    queue.held += held
    level_of(view).ready -= held
    if view.groups is not None:
        queue.groups().held_again(view)
