"""Settling: acknowledged, removed and replaced messages leave their queues, in memory and in the journal."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from meshq import limits
from meshq.broker.bodies._bodies import Bodies
from meshq.broker.bodies._body import Body
from meshq.broker.catalog._router import Router
from meshq.broker.cursors._holes_machine import EXPIRED, Hole, merged
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.log._duplicates import IdChunk
from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._message_counts import discard
from meshq.broker.queue._queue_machine import Queue, QueueConsumer
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.queue._timers import cancel_timers
from meshq.broker.records import IDS, SETTLED, SettledRow, encode_ids, encode_settled
from meshq.broker.settlement._paged_runs import PagedRuns
from meshq.broker.settlement._settled_row import settled_row


class Acknowledger:
    """Takes settled rows out of queues, and their records out of the journal."""

    def __init__(
        self,
        release_queue: ReleaseQueue,
        router: Router,
        watermarks: HighWatermarks,
        memory: MemoryBound,
        *,
        bodies: Bodies,
        paging: PagedRuns,
    ) -> None:
        self._release_queue = release_queue
        self._router = router
        self._watermarks = watermarks
        self._memory = memory
        self._bodies = bodies
        self._paging = paging
        self._resident = paging.resident

    def settle(self, consumer: QueueConsumer, ranges: Sequence[tuple[int, int]]) -> None:
        """Acknowledge ranges of tags.

        Raises:
            RemoteProtocolError: a tag was not given or is settled already; the ranges before it are settled.
        """
        queue = consumer.queue
        done: list[RowSpan] = []
        try:
            for first, last in ranges:
                done += consumer.take(first, last)
        finally:
            ended = [queue.settled(span) for span in done]
            self._record(queue, done, ended)

    def settle_together(self, queue: Queue, spans: Sequence[RowSpan]) -> list[StoredRun]:
        """Acknowledge the rows of a transaction, within ``ReleaseQueue.atomic_batch``.

        Return runs whose duplicate ids outlive them, for ``move_ids``: the bytes of these have no bound.
        """
        later: list[StoredRun] = []
        self._record(queue, spans, [queue.settled(span) for span in spans], later=later)
        return later

    def move_ids(self, runs: Sequence[StoredRun]) -> None:
        """The records of these runs are kept for their duplicate ids only: let them go."""
        for run in runs:
            self._move_ids(run)

    def remove(self, queue: Queue, span: RowSpan, fate: str, *, logged: bool = False) -> None:
        """Rows leave for another reason; ``logged``: the journal knows already."""
        if fate == EXPIRED:
            self.note_expired(queue, span)
        self._record(queue, [span], [queue.remove(span, fate)], logged=logged)

    def note_expired(self, queue: Queue, span: RowSpan) -> None:
        """Write rows down as expired, before these leave a queue that has a cursor; others are not written down."""
        cursor = queue.roster.cursor
        if cursor is None or span.view.priority_list is None:
            return
        # Its owner may have seen these numbers, or a high mark above them: they must not be given again.
        self._watermarks.cover_given(queue)
        first = span.view.first
        numbers = merged((first + row, first + row + 1) for row in range(span.start, span.stop, span.step))
        holes = [Hole(lo, hi, EXPIRED) for lo, hi in numbers if not cursor.holes.has(EXPIRED, lo, hi)]
        self._watermarks.cursors.write_holes(cursor, holes)

    def take(self, queue: Queue, spans: Sequence[RowSpan]) -> None:
        """Acknowledge rows that no consumer has: a cursor of the queue has read them."""
        self._record(queue, spans, [queue.remove(span, "acknowledged") for span in spans])

    def settle_outdated(self, queue: Queue) -> None:
        """Write the messages that newer ones have replaced to the journal."""
        outdated = queue.pending.take_outdated()
        # A setting may have replaced nearly all of a queue: that need not fit in one record.
        for start in range(0, len(outdated), limits.STEP_MESSAGES_MAX):
            part = outdated[start : start + limits.STEP_MESSAGES_MAX]
            self._record(queue, [span for span, _ in part], [ended for _, ended in part])

    def purge(self, queue: Queue) -> int:
        """Remove all messages that are not unacked; return how many there were."""
        self.settle_outdated(queue)
        removed = self._purge_scheduled(queue)
        if not queue.counts.ready and not queue.counts.delayed:
            return removed
        # A number that was purged must not be given again, though nobody may ever have seen it.
        self._watermarks.cover_given(queue)
        while queue.counts.ready or queue.counts.delayed:
            spans, ended = queue.purge(limits.STEP_MESSAGES_MAX)
            removed += sum(span.rows for span in spans)
            self._record(queue, spans, ended)
        return removed

    def remove_purged(self, queue: Queue, spans: Sequence[RowSpan]) -> None:
        """Remove some of the messages that are not unacked, as ``purge`` removes all."""
        self._watermarks.cover_given(queue)
        for start in range(0, len(spans), limits.STEP_MESSAGES_MAX):
            part = spans[start : start + limits.STEP_MESSAGES_MAX]
            self._record(queue, part, [queue.remove(span, "purged") for span in part])

    def drop_oldest(self, queue: Queue, count: int) -> int:
        """Take out the messages that have waited longest; returns how many there were to take."""
        self._watermarks.cover_given(queue)
        spans, ended = queue.purge(count)
        self._record(queue, spans, ended)
        return sum(span.rows for span in spans)

    def _purge_scheduled(self, queue: Queue) -> int:
        scheduled = queue.scheduled.clear()
        removed = sum(view.live for view in scheduled)
        for view in scheduled:
            self.discard(queue, view)
        return removed

    def discard(self, queue: Queue, view: QueueRun) -> None:
        """A run that never became visible goes."""
        self._record(queue, [RowSpan(view, 0, len(view.states), 1)], [True])
        # Whoever is on the way to the disk with it, or for it, finds nothing left to do.
        discard(view)

    def _record(
        self,
        queue: Queue,
        spans: Sequence[RowSpan],
        ended: Sequence[bool],
        *,
        logged: bool = False,
        later: list[StoredRun] | None = None,
    ) -> None:
        """Write the settled rows of runs that live on, unless ``logged``, and delete the records of the other runs.

        ``later`` takes runs whose duplicate ids are moved later; until then these runs live on.
        """
        if queue.pending.outdated:
            # A record speaks only of runs that the ones before it have left alive.
            self.settle_outdated(queue)
        rows: list[SettledRow] = []
        deletes: list[int] = []
        refs: list[int] = []
        freed = 0
        bodies: list[Body] = []
        for span, view_ended in zip(spans, ended, strict=True):
            view = span.view
            run = view.run.origin or view.run
            position = run.position
            if view_ended:
                if view.timers:
                    cancel_timers(view)
                if view.counted_at:
                    deletes.append(view.counted_at)
                if self._resident:
                    self._resident.pop(view, None)
                run.views -= 1
                if view.run is not run:
                    run.share_views -= 1
                if view.run.spill is not None and (view.run is not run or not run.views):
                    self._paging.ended(view.run)
                if not run.views:
                    freed += run.size_bytes
                    if run.body is not None:
                        bodies.append(run.body)
                    if run.quota is not None:
                        if run.body is not None:
                            run.quota.freed_body(run.body.size_bytes)
                        run.quota.freed(run.size_bytes)
                    if later is not None and position and run.body is None and self._surviving(run) is not None:
                        later.append(run)
                    else:
                        if position and not self._move_ids(run):
                            deletes.append(position)
                        continue
                else:
                    freed += _strip(run, view.run)
            if position and queue.durable and not logged:
                rows.append(settled_row(queue, span))
                refs.append(position)
        if rows or deletes:
            self._release_queue.write(
                SETTLED,
                [encode_settled(rows)],
                tombstone=True,
                deletes=deletes,
                refs=list(dict.fromkeys(refs)),
                lazy=True,
            )
        if freed:
            self._memory.released(freed)
        for body in bodies:
            self._release_body(body)
        if self._router.quotas and (quota := self._router.quotas.get(queue.address)) is not None:
            quota.less()

    def _release_body(self, body: Body) -> None:
        """Count a run less for a large body; without runs the body is removed, once that is durable."""
        body.refs -= 1
        if not body.refs:
            self._release_queue.when_all_is_durable(partial(self._remove_body, body))

    def _remove_body(self, body: Body) -> None:
        # It may have been moved in the meantime.
        if not body.refs:
            self._bodies.remove(body)

    def _move_ids(self, run: StoredRun) -> bool:
        """Write the ids that outlive their run in the one record that deletes the run's own."""
        chunk = self._surviving(run)
        if chunk is None:
            return False
        payload = encode_ids(run.position, run.address, chunk.ids[chunk.start :])
        chunk.record = self._release_queue.write(IDS, [payload], deletes=[run.position], lazy=True, vital=True)
        chunk.shorten()
        return True

    def _surviving(self, run: StoredRun) -> IdChunk | None:
        """The ids of a run that are still in the window of its address."""
        if not run.has_ids:
            return None
        address = self._router.addresses.get(run.address)
        return address.duplicates.surviving(run.position) if address is not None else None


def _strip(run: StoredRun, part: StoredRun) -> int:
    """Drop the content that is no longer needed of a run, a part of which has ended; return the freed bytes.

    A share belongs to one queue; queues that have only shares don't need the whole run.
    """
    freed = part.strip() if part is not run else run.strip() if run.views == run.share_views else 0
    if freed and run.quota is not None:
        run.quota.freed(freed)
    return freed
