"""Entering: a run gets its numbers in its queues, and its record is written.

The log may refuse before anything has changed; once it has taken the record, nothing here can fail.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.catalog._router import Address
from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._delivery_options import DeliveryOptions, divide, of_forwarded
from meshq.broker.queue._message_counts import keep_rows, skip_rows
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun, share_of
from meshq.broker.queue._timers import DueTime
from meshq.broker.records import (
    COUNT_MAX,
    PLACED,
    ROUTED,
    ROUTED_TARGETS_MAX,
    RUN,
    CountedRow,
    PlacedRecord,
    RoutedRecord,
    RoutedTarget,
    RunRecord,
    RunTarget,
    SettledRow,
    encode_placed_head,
    encode_routed_head,
    encode_run_head,
)
from meshq.broker.records._row_options import RowOptions
from meshq.errors import AddressFullError


class _Part(NamedTuple):
    """A share whose messages have the same options; ``options`` None: no options, or no queue here needs these."""

    queue: Queue
    rows: range
    remote: tuple[int, ...]
    options: DeliveryOptions | None

    @property
    def waits(self) -> bool:
        """Whether its messages are not due yet."""
        return self.options is not None and self.options.due > 0


class RecordWriter:
    """Writes runs into the journal and gives them their places in queues."""

    def __init__(
        self, release_queue: ReleaseQueue, watermarks: HighWatermarks, time_of_day: Callable[[DueTime], int]
    ) -> None:
        self._release_queue = release_queue
        self._watermarks = watermarks
        self._time_of_day = time_of_day

    def enter(
        self, run: StoredRun, address: Address, queues: list[Queue], skipped: tuple[int, ...]
    ) -> tuple[int, list[tuple[Queue, QueueRun]]]:
        """Number the run in its queues and write its record; the log may refuse before anything has changed."""
        rows = run.content.rows
        stride, shares = 1, [(0, queues[0])]
        if len(queues) > 1:
            stride, shares = _shares(address, queues, rows)
        logged = False
        if run.durable and self._release_queue.log is not None:
            logged = any(queue.durable for _, queue in shares)
        position = self._write(run, address, shares, (stride, skipped)) if logged else 0
        run.position = position
        views = []
        for start, queue in shares:
            view = QueueRun(run, queue.number_rows(rows))
            if stride > 1:
                keep_rows(view, start, stride)
            if skipped:
                skip_rows(view, skipped)
            if not (logged and queue.durable):
                if (covered := self._watermarks.cover_volatile(queue)) > position:
                    position = covered
            elif queue.roster.consumers:
                self._watermarks.keep_ahead(queue, queue.list_for(run))
            views.append((queue, view))
        if stride > 1 or skipped:
            address.next_index = (address.next_index + rows) % stride
            views = [(queue, view) for queue, view in views if view.live]
        run.views = len(views)
        return position, views

    def _write(
        self, run: StoredRun, address: Address, shares: list[tuple[int, Queue]], rows: tuple[int, tuple[int, ...]]
    ) -> int:
        stride, skipped = rows
        targets = tuple(
            RunTarget(queue.number, queue.last + 1, start, stride) for start, queue in shares if queue.durable
        )
        content = run.content
        record = RunRecord(run.producer, run.number, run.stamp, address.name, targets, skipped, content)
        return self._release_queue.write(RUN, [encode_run_head(record), content.table, content.body])

    def enter_shares(
        self,
        run: StoredRun,
        shares: Sequence[Share],
        link: tuple[bytes, int],
        asked: list[RowOptions] | None,
        gone: tuple[SettledRow, ...] = (),
    ) -> tuple[int, list[tuple[Queue, QueueRun]]]:
        """As ``enter``, for shares that are runs of their own; the log may refuse before anything has changed."""
        parts = _parts(run, shares, asked)
        logged = run.durable and self._release_queue.log is not None and any(part.queue.durable for part in parts)
        position = self._write_parts(run, parts, link, gone) if logged else 0
        run.position = position
        views = []
        for queue, rows, remote, options in parts:
            share = share_of(run, rows)
            if options is not None:
                share.options = options
                if options.due:
                    run.share_views += share is not run
                    views.append((queue, QueueRun(share, 0, remote)))
                    continue
            run.share_views += share is not run
            view = QueueRun(share, queue.number_rows(len(rows)), remote)
            if not (logged and queue.durable):
                position = max(position, self._watermarks.cover_volatile(queue))
            elif queue.roster.consumers:
                self._watermarks.keep_ahead(queue, queue.list_for(share))
            views.append((queue, view))
        run.views = len(views)
        if run.body is not None:
            run.body.refs += 1
        return position, views

    def count_parts(self, run: StoredRun, shares: Sequence[Share], asked: list[RowOptions] | None) -> dict[Queue, int]:
        """In how many parts ``enter_shares`` would write a run, by queue.

        Raises:
            AddressFullError: in too many.
        """
        counts: dict[Queue, int] = {}
        for part in _parts(run, shares, asked):
            counts[part.queue] = counts.get(part.queue, 0) + 1
        _check_parts(sum(counts.values()))
        return counts

    def _write_parts(
        self, run: StoredRun, parts: Sequence[_Part], link: tuple[bytes, int], gone: tuple[SettledRow, ...]
    ) -> int:
        following: dict[Queue, int] = {}
        targets = []
        for part in parts:
            queue, rows, remote, _ = part
            first = 0
            if not part.waits:
                first = following.get(queue, queue.last + 1)
                following[queue] = first + len(rows)
            if queue.durable:
                targets.append(RoutedTarget(queue.number, first, rows, remote))
        _check_parts(len(targets))
        content = run.content
        head = RunRecord(run.producer, run.number, run.stamp, run.address, (), (), content)
        record = RoutedRecord(link[0], link[1], run.number_step, head, tuple(targets))
        options = run.options
        if options is None:
            return self._release_queue.write(ROUTED, [encode_routed_head(record), content.table, content.body])
        body = (run.body.body_id, run.body.size_bytes) if run.body is not None else None
        counts = tuple(
            CountedRow(row, min(one.deliveries, COUNT_MAX), min(one.returns, COUNT_MAX), self._due(one.due))
            for row, one in (options.former or {}).items()
        )
        there = tuple(options.there or ())
        placed = PlacedRecord(
            options.arrival,
            options.origin,
            gone,
            record,
            body,
            options.begun,
            counts,
            there,
            options.entry,
            options.held,
            options.target,
            options.holder,
            options.unstaged,
        )
        refs = list(dict.fromkeys(row.position for row in gone))
        return self._release_queue.write(PLACED, [encode_placed_head(placed), content.table, content.body], refs=refs)

    def _due(self, due: DueTime | None) -> int:
        return self._time_of_day(due) if due is not None else 0


def _check_parts(count: int) -> None:
    if count > ROUTED_TARGETS_MAX:
        raise AddressFullError(f"a run would be {count} parts in queues; at most {ROUTED_TARGETS_MAX} are kept")


def _parts(run: StoredRun, shares: Sequence[Share], asked: list[RowOptions] | None) -> list[_Part]:
    """Divide shares so that the messages of each part ask for the same."""
    options = run.options
    if asked is None or options is None:
        return [_Part(*share, None) for share in shares]
    parts = []
    for share in shares:
        if share.queue.forwards:
            parts.append(_Part(*share, of_forwarded(share.rows, asked, options)))
        else:
            divided = divide(share.rows, asked, options)
            parts += [_Part(share.queue, rows, share.remote, each) for rows, each in divided]
    return parts


def _shares(address: Address, queues: list[Queue], rows: int) -> tuple[int, list[tuple[int, Queue]]]:
    """How several queues share a run: the stride, and each one's first row.

    Multicast: each has all of it.  Anycast: each takes every n-th message, beginning where the last run ended.
    """
    stride = len(queues) if address.routing == "anycast" else 1
    next_index = address.next_index % stride
    shares = [((index - next_index) % stride, queue) for index, queue in enumerate(queues)]
    return stride, [(start, queue) for start, queue in shares if start < rows]
