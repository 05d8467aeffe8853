"""The rows that leave a queue, as the journal says it."""

from __future__ import annotations

from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.records import SettledRow


def settled_row(queue: Queue, span: RowSpan) -> SettledRow:
    """Make the part of a record that removes rows from a queue."""
    run = span.view.run
    taken = range(span.start, span.stop, span.step)
    if run.rows is not None:
        taken = run.rows[span.start : span.stop : span.step]
    # A slice may end behind the last row of the run: the record says where the rows themselves end.
    return SettledRow(queue.number, (run.origin or run).position, taken.start, taken[-1] + 1, taken.step)
