"""The delivery counts and delays of messages that leave for a queue of another node."""

from __future__ import annotations

from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._delivery_options import FormerCount, picked
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import DELAYED
from meshq.broker.queue._timers import NEVER


def former_counts(queue: Queue, span: RowSpan) -> dict[int, FormerCount] | None:
    """Return the counts of some messages, by their places among these; None: there are none.

    In a store-and-forward queue these are what was counted before: deliveries to a link count for nobody.
    """
    view = span.view
    rows = range(span.start, span.stop, span.step)
    if queue.forwards:
        return picked(view.run.options.former, rows) if view.run.options is not None else None
    if not view.counts and not view.maybe and not view.due:
        return None
    waits = view.due or {}
    found: dict[int, FormerCount] = {}
    for place, row in enumerate(rows):
        due = waits.get(row) if view.states[row] == DELAYED else None
        one = FormerCount(view.deliveries(row), view.returns(row), None if due == NEVER else due)
        if one.deliveries or one.due is not None:
            found[place] = one
    return found or None
