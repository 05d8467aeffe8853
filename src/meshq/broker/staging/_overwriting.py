"""Overwriting: a committed batch takes the place of the messages that wait at an address, by one decision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from meshq.address import parse_target
from meshq.broker.catalog._names import check_open
from meshq.broker.catalog._router import Router
from meshq.broker.cursors._cursor_machine import refuse_if_held
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import ENQUEUED, QueueRun
from meshq.broker.records._row_ranges import pieces
from meshq.broker.settlement._acknowledger import Acknowledger

_REFUSED: Final = "nothing is overwritten before its owner"


class Overwriting:
    """Removes the messages of an address that a committed batch replaces."""

    def __init__(self, router: Router, acknowledger: Acknowledger, schedule_dispatch: Callable[[Queue], None]) -> None:
        self._router = router
        self._acknowledger = acknowledger
        self._schedule_dispatch = schedule_dispatch

    def check(self, place: str) -> None:
        """See that the messages at an address, or in an ``address::queue``, may be purged; there may be none.

        Raises:
            SettingsError: it is no such name.
            UsageError: it is the broker's own.
            CursorHeldError: a cursor has one of the queues.
        """
        target = parse_target(place, "purge")
        check_open(target.address, target.queue)
        for queue in self._queues(place):
            refuse_if_held(queue.roster.cursor, _REFUSED)

    def purge(self, place: str) -> None:
        """Remove all messages that wait there now.

        Raises:
            JournalBrokenError: the disk has failed.
        """
        for queue in self._queues(place):
            self._acknowledger.purge(queue)
            # It may have been what kept the queue.
            self._schedule_dispatch(queue)

    def finish(self, place: str, decided_at: int) -> None:
        """Remove the messages that were placed before a position of the journal, where a life has not ended its purge.

        Raises:
            CursorHeldError: a cursor has one of the queues meanwhile.
            JournalBrokenError: the disk has failed.
        """
        for queue in self._queues(place):
            old = [view for view in queue.all_runs() if (view.run.origin or view.run).position < decided_at]
            if spans := [span for view in old for span in _waiting(view)]:
                refuse_if_held(queue.roster.cursor, _REFUSED)
                self._acknowledger.remove_purged(queue, spans)
                self._schedule_dispatch(queue)

    def _queues(self, place: str) -> list[Queue]:
        target = parse_target(place)
        address = self._router.addresses.get(target.address)
        found = address.queues if address is not None else ()
        return [queue for queue in found if target.queue in (None, queue.name)]


def _waiting(view: QueueRun) -> list[RowSpan]:
    rows = [row for row, state in enumerate(view.states) if state in ENQUEUED]
    return [RowSpan(view, part.start, part.stop, part.step) for part in pieces(rows)]
