"""Delivery options of recovered messages, as their records have them."""

from __future__ import annotations

from typing import Any

from meshq.broker.queue._delivery_options import FormerCount, QueueThere, divide, of_forwarded
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun
from meshq.broker.queue._timers import DueTime
from meshq.broker.records import PlacedRecord
from meshq.broker.records._row_options import RowOptions


def ask(queue: Queue, view: QueueRun, asked: list[RowOptions]) -> None:
    """Apply the delivery options of a share; in a store-and-forward queue only the time to live."""
    share = view.run
    if share.options is not None:
        rows = share.rows or range(share.content.rows)
        if queue.forwards:
            share.options = of_forwarded(rows, asked, share.options) or share.options
            return
        if view.first:
            # What is visible waits no more, also if it had waited elsewhere.
            asked = [one._replace(due=0) for one in asked]
        # The rows of one target ask for the same.
        ((_, share.options),) = divide(rows, asked, share.options)


def said_before(record: PlacedRecord) -> dict[str, Any]:
    """Return the options that a record gives messages because of their history."""
    former = {
        row: FormerCount(deliveries, returns, DueTime(due, by_wall=True) if due else None)
        for row, deliveries, returns, due in record.counts
    }
    there = QueueThere(*record.queue) if record.queue else None
    hold = {"held": record.held, "target": record.target, "holder": record.holder}
    return {"former": former or None, "there": there, "entry": record.entry, **hold}
