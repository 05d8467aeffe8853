"""Redelivery: returned messages are ready at once, or after a delay, or are moved after too many attempts."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

from meshq import limits
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._queue_machine import Queue, QueueConsumer
from meshq.broker.queue._run import DELAYED, ENQUEUED, QueueRun
from meshq.broker.queue._timers import NEVER, DueTime, TimerService
from meshq.broker.records import COUNT_MAX, COUNTED, CountedRecord, CountedRow, encode_counted
from meshq.broker.records._row_ranges import pieces
from meshq.broker.settlement._expiry import Expiry
from meshq.broker.settlement._message_mover import MessageMover
from meshq.errors import ClosedError, JournalBrokenError
from meshq.wire import violation

#: On a full disk nothing can be moved: what should be waits for so many ms and is tried again.
RETRY_MS = 1_000
#: What is put to the filters of its target goes as soon as these have said what they say, and waits so long at most.
ASKED_MS = 60_000
#: As for users: a time that is further away could be no due time of a record.
DELAY_MS_MAX = limits.TIME_S_MAX * 1_000


class Redelivery:
    """Gives messages back to their queues."""

    def __init__(
        self,
        release_queue: ReleaseQueue,
        mover: MessageMover,
        expiry: Expiry,
        timers: TimerService,
        *,
        memory: MemoryBound,
        schedule_dispatch: Callable[[Queue], None],
    ) -> None:
        """``schedule_dispatch`` is called when a queue may dispatch messages that it could not dispatch before."""
        self._release_queue = release_queue
        self._mover = mover
        self._expiry = expiry
        self._timers = timers
        self._memory = memory
        self._schedule_dispatch = schedule_dispatch

    def give_back(
        self,
        consumer: QueueConsumer,
        ranges: Sequence[tuple[int, int]],
        delay_ms: int | None = None,
        *,
        counted: bool = True,
    ) -> None:
        """Return ranges of tags to their queue; unless ``counted`` is False, they count as delivered.  ``delay_ms``
        None: by its settings; at once if they don't count.

        Raises:
            RemoteProtocolError: a tag was not given or is settled already; the ranges before it are settled.  Or the
                delay is longer than any may be; nothing changed.
        """
        if delay_ms is not None and delay_ms > DELAY_MS_MAX:
            raise violation("too_large", f"SETTLE with a delay of {delay_ms} ms; allowed: {DELAY_MS_MAX}")
        queue = consumer.queue
        for first, last in ranges:
            spans = consumer.take(first, last)
            if counted:
                self._return(queue, spans, delay_ms)
                continue
            for span in spans:
                if delay_ms:
                    self._put_off(queue, span, delay_ms, counted=False)
                else:
                    self._give_back(queue, span, counted=False)
            self._memory.look_again()

    def return_spans(self, queue: Queue, spans: Sequence[RowSpan]) -> None:
        """Return unacked rows that belong to no consumer any more; these count as delivered."""
        self._return(queue, spans, None)

    def reject(self, consumer: QueueConsumer, ranges: Sequence[tuple[int, int]]) -> None:
        """Messages that are refused for good leave for the dead-letter address.

        Raises:
            RemoteProtocolError: as for ``give_back``.
        """
        queue = consumer.queue
        for first, last in ranges:
            spans = consumer.take(first, last)
            for span in self._mover.move(queue, spans, queue.target_of("rejected"), "rejected"):
                # The disk is full: whoever gets it next may refuse it again.
                self._put_off(queue, span, self._retry_ms(span))

    def abandon(self, consumer: QueueConsumer, handed: int | None) -> None:
        """Return the unacked messages of a consumer that is gone.

        ``handed``: messages from this tag on never reached the application; None: not known.
        """
        queue = consumer.queue
        counted: list[RowSpan] = []
        for tag, span in consumer.unsettled():
            if handed is None or tag + span.rows <= handed:
                counted.append(span)
            elif tag >= handed:
                self._give_back(queue, span, counted=False)
            else:
                middle = span.start + (handed - tag) * span.step
                counted.append(RowSpan(span.view, span.start, middle, span.step))
                self._give_back(queue, RowSpan(span.view, middle, span.stop, span.step), counted=False)
        self._return(queue, counted, None)

    # -- what becomes of them

    def _give_back(self, queue: Queue, span: RowSpan, *, counted: bool, waits: bool = False) -> None:
        queue.give_back(span, counted=counted, waits=waits)
        if span.view.run.options is not None:
            self._expiry.watch(queue, span.view)

    def _return(self, queue: Queue, spans: Sequence[RowSpan], delay_ms: int | None) -> None:
        """Messages come back that may have reached an application."""
        simple = delay_ms is None and _lenient(queue)
        views: dict[QueueRun, None] = {}
        for span in spans:
            views[span.view] = None
            options = span.view.run.options
            if simple and (options is None or options.expires is None):
                queue.give_back(span, counted=True)
            else:
                self._judge(queue, span, delay_ms)
        if not queue.forwards:
            for view in views:
                self._write(queue, view)
        self._memory.look_again()

    def _judge(self, queue: Queue, span: RowSpan, delay_ms: int | None) -> None:
        view, now = span.view, self._timers.now_ms
        options = view.run.options
        expires = options.expires if options is not None and not queue.forwards else None
        most = _most(queue)
        over: list[int] = []
        failed: list[int] = []
        by_delay: dict[int, list[int]] = {}
        for row in range(span.start, span.stop, span.step):
            count = view.returns(row) + 1
            if expires is not None and 0 < expires[row] <= now:
                over.append(row)
            elif count >= most:
                failed.append(row)
            else:
                by_delay.setdefault(_delay_ms(queue, count) if delay_ms is None else delay_ms, []).append(row)
        for wait_ms, rows in by_delay.items():
            for part in _spans(view, rows):
                if wait_ms:
                    self._put_off(queue, part, wait_ms)
                else:
                    self._give_back(queue, part, counted=True)
        for reason, rows in (("expired", over), ("attempts", failed)):
            for part in self._mover.move(queue, _spans(view, rows), queue.target_of(reason), reason):
                self._put_off(queue, part, self._retry_ms(part))

    def _retry_ms(self, span: RowSpan) -> int:
        """The delay before a message that could not be moved is tried again."""
        return ASKED_MS if span in self._mover.asked else RETRY_MS

    def _put_off(self, queue: Queue, span: RowSpan, wait_ms: float, *, counted: bool = True) -> None:
        self._give_back(queue, span, counted=counted, waits=True)
        self._wake_at(queue, span, DueTime(self._timers.elapsed_ms + wait_ms))

    def _wake_at(self, queue: Queue, span: RowSpan, due: DueTime) -> None:
        view = span.view
        if view.due is None:
            view.due = {}
        view.due.update(dict.fromkeys(range(span.start, span.stop, span.step), due))
        self._timers.at(due, view, partial(self._wake, queue, span, due))

    def _wake(self, queue: Queue, span: RowSpan, due: DueTime) -> None:
        waits = span.view.due or {}
        rows = [row for row in range(span.start, span.stop, span.step) if waits.get(row) == due]
        for row in rows:
            del waits[row]
        for part in _spans(span.view, rows):
            queue.wake(part)
        self._schedule_dispatch(queue)

    # -- over a restart

    def _write(self, queue: Queue, view: QueueRun) -> None:
        """The journal knows how often messages of a run came back, and until when they wait."""
        whole = view.run.origin or view.run
        if not whole.position or not queue.durable or not view.live:
            return
        counts, due = view.counts or {}, view.due or {}
        rows = view.run.rows if view.run.rows is not None else range(view.run.content.rows)
        record = CountedRecord(
            queue.number,
            whole.position,
            (rows.start, rows.stop, rows.step),
            tuple(
                CountedRow(
                    row,
                    min(count, COUNT_MAX),
                    min(returns, COUNT_MAX),
                    self._timers.time_of_day(due.get(row, NEVER)) if view.states[row] == DELAYED else 0,
                )
                for row, (count, returns) in counts.items()
            ),
        )
        deletes = [view.counted_at] if view.counted_at else []
        payload = encode_counted(record)
        try:
            view.counted_at = self._release_queue.write(COUNTED, [payload], deletes=deletes, lazy=True, vital=True)
        except (ClosedError, JournalBrokenError):
            # The node ends and says why; what came back is known in this life only.
            return

    def restore(self, queue: Queue, view: QueueRun, rows: Sequence[CountedRow]) -> None:
        """Restore delivery counts and delays that an earlier life has written; the run is visible."""
        view.counts = {row: (count, returns) for row, count, returns, _ in rows}
        for row, _, _, due_ms in rows:
            if due_ms and view.states[row] in ENQUEUED:
                span = RowSpan(view, row, row + 1, 1)
                queue.delay(span)
                self._wake_at(queue, span, DueTime(due_ms, by_wall=True))

    def take_up(self, queue: Queue, view: QueueRun) -> None:
        """Restore the former counts and delays of a run that has become visible."""
        options = view.run.options
        if options is None or not options.former or queue.forwards:
            return
        view.counts = {row: (one.deliveries, one.returns) for row, one in options.former.items()}
        for row, one in options.former.items():
            if one.due is not None and view.states[row] in ENQUEUED:
                span = RowSpan(view, row, row + 1, 1)
                queue.delay(span)
                self._wake_at(queue, span, one.due)


def _lenient(queue: Queue) -> bool:
    """Whether the queue lets everything come again at once, however often."""
    return queue.forwards or (not queue.settings.redelivery_delay and _most(queue) == math.inf)


def _most(queue: Queue) -> float:
    """Deliveries after which a message is taken away: never, if there is no place for it."""
    if queue.forwards or queue.target_of("attempts") is None:
        return math.inf
    return queue.settings.max_delivery_attempts


def _delay_ms(queue: Queue, count: int) -> int:
    """How long a message waits that was delivered ``count`` times."""
    settings = queue.settings
    if not settings.redelivery_delay or queue.forwards:
        return 0
    try:
        delay = settings.redelivery_delay * settings.redelivery_delay_multiplier ** (count - 1)
    except OverflowError:
        delay = math.inf
    return round(min(delay, settings.max_redelivery_delay, limits.TIME_S_MAX) * 1000)


def _spans(view: QueueRun, rows: Sequence[int]) -> list[RowSpan]:
    return [RowSpan(view, found.start, found.stop, found.step) for found in pieces(rows)]
