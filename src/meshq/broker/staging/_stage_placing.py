"""Placing and emptying stages in steps, so that a stage of millions of messages delays no other work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from meshq import limits
from meshq.address import Target
from meshq.broker.paging._pager import Pager
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.records._row_ranges import pieces
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.settlement._message_mover import MessageMover
from meshq.broker.work._fair_scheduler import NODE
from meshq.broker.work._long_operations import DiskSpaceWait, FairTurnWait, FaultInWait, Needs
from meshq.errors import AddressFullError

#: Why messages leave a stage.
COMMITTED: Final = "committed"


class StagePlacing:
    """Moves the messages of committed stages to their addresses, and removes the messages of dropped stages."""

    def __init__(
        self, mover: MessageMover, acknowledger: Acknowledger, pager: Pager, failpoint: Callable[[str], bool]
    ) -> None:
        self._mover = mover
        self._acknowledger = acknowledger
        self._pager = pager
        self._failpoint = failpoint

    @property
    def spills(self) -> bool:
        """Whether messages that are in no journal can be paged."""
        return self._pager.spills

    def place(self, queue: Queue) -> Iterator[Needs | None]:
        """Move all messages of a committed stage, in their order, in steps.

        Raises:
            AddressFullError: the disk or an address is full; the rest is still in the stage.
            JournalBrokenError, ClosedError: the disk has failed, or the node ends.
        """
        looks, need = limits.STEP_MESSAGES_MAX, 0
        # What filters have said of the run at the head; and whether room was made for that.
        known: tuple[QueueRun, StoredRun] | None = None
        asked: QueueRun | None = None
        while (view := head_of_stage(queue)) is not None:
            if view.run.paged:
                # Meanwhile others may take the room that was there.
                known, asked, need = None, None, 0
                yield FaultInWait(queue, view)
                continue
            wanted = need or (self._mover.room_for(view) if asked is not view else 0)
            asked = view
            if wanted:
                # Paged meanwhile, it would be read and wait again, and so for ever.
                with self._pager.holding(view.run):
                    yield DiskSpaceWait(wanted)
            rows = view.enqueued_rows()
            if self._failpoint("broker.stage_piece"):
                # One message at a time, and others have their turn in between.
                rows, looks = rows[:1], 0
            target = target_of(view.run)
            if known is None or known[0] is not view:
                known = view, self._mover.as_moved(queue, view.run, target, COMMITTED)
            costly = self._mover.costly(NODE, known[1], target, COMMITTED, rows)
            if costly is not None:
                yield FairTurnWait(NODE, queue, costly)
                asked = None
                continue
            before = view.live
            spans = [RowSpan(view, part.start, part.stop, part.step) for part in pieces(rows)]
            left = self._mover.move(queue, spans, target, COMMITTED, known=known[1])
            gone = before - view.live
            if left and not gone and self._mover.waits_for in (0, need):
                raise self._mover.refused or AddressFullError("the messages of a stage find no room")
            need = self._mover.waits_for if not gone else 0
            looks -= gone + view.run.size_bytes // limits.STEP_MESSAGE_BYTES
            if looks <= 0:
                looks = limits.STEP_MESSAGES_MAX
                yield None

    def empty(self, queue: Queue) -> Iterator[None]:
        """Remove all messages of a stage that does not count, in steps.

        Raises:
            JournalBrokenError, ClosedError: the disk has failed, or the node ends.
        """
        while queue.counts.ready:
            self._acknowledger.drop_oldest(queue, limits.STEP_MESSAGES_MAX)
            if queue.counts.ready:
                yield None


def head_of_stage(queue: Queue) -> QueueRun | None:
    """Return the first run of a stage; None: it is empty."""
    return next((view for view in queue.lists.walk() if view.live), None)


def target_of(run: StoredRun) -> Target:
    """Return where the messages of a staged run go."""
    return Target(run.address, (run.options.target or None) if run.options is not None else None)
