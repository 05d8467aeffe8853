"""Messages that are not due yet: stored, in their queues, and not visible to consumers.

A message gets its number when it becomes visible, by a record of its own, so that the order of numbers stays the order
in which messages appear.
"""

from __future__ import annotations

from functools import partial

from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun
from meshq.broker.queue._timers import DueTime, TimerService
from meshq.broker.records import DUE, DueRow, encode_due


class DelayedDelivery:
    """Makes messages visible when they are due."""

    def __init__(self, release_queue: ReleaseQueue, watermarks: HighWatermarks, timers: TimerService) -> None:
        self._release_queue = release_queue
        self._watermarks = watermarks
        self._timers = timers

    def schedule(self, queue: Queue, view: QueueRun) -> None:
        """A run is stored that is not due yet; its queue may hold it back for longer than that, but not for less.

        What came in this life waits for as long as it was to, whatever the wall clock shows, also if another node was
        the first to take it.  What comes from an earlier one waits until its time of day, but never for longer than it
        was to in all.
        """
        queue.scheduled.add(view)
        options = view.run.options
        wait_ms, taken, call = 0, None, partial(self._due, queue, view)
        if options is not None:
            wait_ms, taken = options.wait_ms, options.taken
            if taken is None:
                self._timers.at(DueTime(options.due_here, by_wall=True), view, call)
        self._timers.at(DueTime(wait_ms + (self._timers.elapsed_ms if taken is None else taken)), view, call)

    def _due(self, queue: Queue, view: QueueRun) -> None:
        if view not in queue.scheduled:
            # The other clock has said so before.
            return
        queue.scheduled.remove(view)
        run = view.run
        whole = run.origin or run
        rows = run.rows if run.rows is not None else range(run.content.rows)
        view.first = queue.number_rows(len(view.states))
        if whole.position and queue.durable:
            row = DueRow(queue.number, whole.position, rows.start, rows.stop, rows.step, view.first)
            # A note without which the messages would come again, under other numbers: vital as an acknowledgement is.
            position = self._release_queue.write(DUE, [encode_due(row)], tombstone=True, refs=[whole.position])
            if queue.roster.consumers:
                self._watermarks.keep_ahead(queue, queue.list_for(run))
        else:
            position = self._watermarks.cover_volatile(queue)
        self._release_queue.release_after(position, [(queue, view)], _nothing)


def _nothing() -> None:
    """Do nothing: no call waits for the record."""
