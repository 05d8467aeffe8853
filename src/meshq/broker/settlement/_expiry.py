"""Messages whose time to live is over: they leave their queue, for the expiry address if there is one.

A message that a consumer holds stays with it; if it comes back too late, it goes then.  One that can't be moved yet,
since the disk is full, waits where it is: it is of no use to anybody.

What was given to a link and not answered may be stored, and delivered, by the other node: it becomes nothing else here
before that node has said how far it has come.  Without an expiry address it goes at its time: nobody gets it then.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from meshq.address import Target
from meshq.broker.catalog._router import Router
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import DELAYED, ENQUEUED, QueueRun
from meshq.broker.queue._timers import NEVER, DueTime, TimerService
from meshq.broker.records._row_ranges import pieces
from meshq.broker.settlement._message_mover import MessageMover
from meshq.broker.settlement._paged_runs import ContentLoader

#: On a full disk nothing can be moved: try again after so many ms.
RETRY_MS: Final = 1_000


class Expiry:
    """Removes expired messages from their queues."""

    def __init__(
        self,
        mover: MessageMover,
        timers: TimerService,
        router: Router,
        *,
        loader: ContentLoader,
        schedule_dispatch: Callable[[Queue], None],
    ) -> None:
        """``schedule_dispatch`` is called when a queue may dispatch messages that it could not dispatch before."""
        self._mover = mover
        self._timers = timers
        self._router = router
        self._loader = loader
        self._schedule_dispatch = schedule_dispatch

    def watch(self, queue: Queue, view: QueueRun) -> None:
        """Set a timer for the messages of a visible run that expire."""
        options = view.run.options
        if options is None or options.expires is None:
            return
        queue.expires = True
        times = [options.expires[row] for row in self._alone(queue, view, options.expires)]
        if times:
            self._arm(queue, view, min(times))

    def answered(self, queue: Queue, number: int) -> None:
        """Note that the other node has stored exactly the messages up to a number: no message is in doubt."""
        queue.branch().answered = number
        if queue.expires:
            for view in queue.runs():
                self.watch(queue, view)

    def _alone(self, queue: Queue, view: QueueRun, expires: Sequence[int]) -> list[int]:
        """The rows with a time to live that are not unacked and not in doubt."""
        states, cursor = view.states, queue.roster.cursor
        rows = [row for row, time in enumerate(expires) if time and states[row] in ENQUEUED]
        if cursor is not None:
            # The owner of the cursor knows of these messages, and has said that it will read them.
            rows = [row for row in rows if not cursor.keeps(view.first + row)]
        if not queue.forwards or self._target(queue, view) is None:
            return rows
        return [row for row in rows if not _in_doubt(queue, view, row)]

    def _target(self, queue: Queue, view: QueueRun) -> Target | None:
        """The target of expired messages; in a store-and-forward queue by the address that a message was sent to."""
        address = view.run.address
        if not queue.forwards:
            return queue.target_of("expired")
        name = self._router.settings(address).expiry_address
        return Target(name, None) if name is not None and name != address else None

    def _arm(self, queue: Queue, view: QueueRun, due_ms: int) -> None:
        if not view.watched or due_ms < view.watched:
            view.watched = due_ms
            self._timers.at(DueTime(due_ms, by_wall=True), view, partial(self._due, queue, view, due_ms))

    def _due(self, queue: Queue, view: QueueRun, due_ms: int) -> None:
        if view.watched != due_ms:
            # Another one was needed earlier, and looks after the rest.
            return
        view.watched = 0
        expires = view.run.options.expires if view.run.options is not None else None
        if expires is None:
            return
        over = self._over(queue, view, expires)
        target = self._target(queue, view)
        if over and view.run.paged and target is not None:
            # It goes as soon as it is here; until then nobody can get it.
            view.watched = due_ms
            self._loader.fault_in(queue, view, partial(self._due, queue, view, due_ms))
            return
        spans = [RowSpan(view, rows.start, rows.stop, rows.step) for rows in pieces(over)]
        left = self._mover.move(queue, spans, target, "expired", partial(self._still, queue, view, expires))
        if not queue.forwards:
            # On the way to another node nothing overtakes; what goes late expires there.
            self._keep_back(queue, view, left)
        if left:
            view.watched = due_ms
            self._timers.at(DueTime(self._timers.elapsed_ms + RETRY_MS), view, partial(self._due, queue, view, due_ms))
        elif view.live:
            self.watch(queue, view)

    def _over(self, queue: Queue, view: QueueRun, expires: Sequence[int]) -> list[int]:
        """The expired rows that are not unacked and not in doubt."""
        now = self._timers.now_ms
        return [row for row in self._alone(queue, view, expires) if expires[row] <= now]

    def _still(self, queue: Queue, view: QueueRun, expires: Sequence[int], rows: Sequence[int]) -> list[int]:
        """The rows that waited for disk space and may still be moved: a link may have carried some."""
        over = set(self._over(queue, view, expires))
        return [row for row in rows if row in over]

    def _keep_back(self, queue: Queue, view: QueueRun, left: Sequence[RowSpan]) -> None:
        """Delay expired messages that could not be moved; end the delay of messages that no longer count as expired."""
        if not left and not view.due:
            return
        due = view.due = view.due or {}
        states = view.states
        kept = dict.fromkeys(row for span in left for row in range(span.start, span.stop, span.step))
        delay = [row for row in kept if states[row] != DELAYED]
        back = [row for row, time in due.items() if time is NEVER and row not in kept]
        for row in back:
            del due[row]
        due.update(dict.fromkeys(kept, NEVER))
        for rows in pieces(delay):
            queue.delay(RowSpan(view, rows.start, rows.stop, rows.step))
        for rows in pieces([row for row in back if states[row] == DELAYED]):
            queue.wake(RowSpan(view, rows.start, rows.stop, rows.step))
        if back:
            self._schedule_dispatch(queue)


def _in_doubt(queue: Queue, view: QueueRun, row: int) -> bool:
    """Whether another node may have stored a message that is not unacked here: it was sent, and not answered."""
    answered = queue.branch().stored(view)
    return view.deliveries(row) > 0 and (answered is None or view.first + row <= answered)
