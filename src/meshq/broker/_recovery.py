"""Taking up what the journal kept: definitions first, then runs, then what became of their messages.

A step at a time, in the journal's order; nothing is written and nothing is visible to anybody until the end.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from meshq.broker import _records as records
from meshq.broker._core import Core
from meshq.broker._duplicates import IdChunk
from meshq.broker._placing import keep_rows, skip_rows
from meshq.broker._queue_machine import Queue
from meshq.broker._records import RunRecord
from meshq.broker._run import GONE, GONE_ROWS, QueueRun, StoredRun
from meshq.wire import duplicate_ids


class LogRecord(Protocol):
    """A record as the journal gives it back."""

    position: int
    kind: int
    payload: bytes
    dead: bool


class Recovery:
    """Fills an empty core from the records of its journal."""

    def __init__(self, core: Core) -> None:
        self._core = core
        # By position of the run: the run, and its view in each queue by the queue's number.
        self._runs: dict[int, tuple[StoredRun, dict[int, QueueRun]]] = {}
        self._chunks: list[tuple[str, IdChunk]] = []
        # By queue number: numbers given, numbers that may have been delivered, where that stands.
        self._marks: dict[int, tuple[int, int, int]] = {}
        #: Messages that were taken up.
        self.messages = 0

    def take(self, log: Iterable[LogRecord]) -> None:
        """Take up all records; of the dead ones, what only they still say.

        Raises:
            DamagedError: a record can't be read.
        """
        handlers = {
            records.RUN: self._run,
            records.SETTLED: self._settled,
            records.IDS: self._ids,
            records.DEFINITION: self._definition,
            records.MARKS: self._mark,
            records.PRODUCERS: self._producers,
        }
        for record in log:
            if not record.dead:
                handlers[record.kind](record.payload, record.position)
            elif record.kind == records.RUN:
                self._raise_producer(records.decode_run(record.payload))
        self._finish()

    def _definition(self, payload: bytes, position: int) -> None:
        self._core.definitions.restore(records.decode_definition(payload), position)

    def _run(self, payload: bytes, position: int) -> None:
        record = records.decode_run(payload)
        run = StoredRun(
            record.address,
            record.content,
            durable=True,
            producer=record.producer,
            number=record.number,
            stamp=record.stamp,
        )
        run.position = position
        views: dict[int, QueueRun] = {}
        for target in record.targets:
            view = QueueRun(run, target.first)
            if target.step > 1:
                keep_rows(view, target.start, target.step)
            if record.skipped:
                skip_rows(view, record.skipped)
            views[target.queue] = view
        self._runs[position] = (run, views)
        self._raise_producer(record)
        self._take_ids(record, run)

    def _raise_producer(self, record: RunRecord) -> None:
        self._core.producers.raise_to(record.producer, record.number + record.content.rows - 1)

    def _take_ids(self, record: RunRecord, run: StoredRun) -> None:
        skipped = dict.fromkeys(record.skipped)
        ids = [
            duplicate_id
            for row, duplicate_id in enumerate(duplicate_ids(record.content))
            if duplicate_id and row not in skipped
        ]
        if ids:
            run.has_ids = True
            self._chunks.append((record.address, IdChunk(run.position, ids)))

    def _settled(self, payload: bytes, position: int) -> None:
        for row in records.decode_settled(payload):
            found = self._runs.get(row.position)
            view = found[1].get(row.queue) if found is not None else None
            if view is not None:
                rows = len(range(row.start, row.stop, row.step))
                view.states[row.start : row.stop : row.step] = GONE_ROWS[:rows]

    def _ids(self, payload: bytes, position: int) -> None:
        record = records.decode_ids(payload)
        self._chunks.append((record.address, IdChunk(record.origin, record.ids, position)))

    def _mark(self, payload: bytes, position: int) -> None:
        queue, given, delivered = records.decode_marks(payload)
        self._marks[queue] = (given, delivered, position)

    def _producers(self, payload: bytes, position: int) -> None:
        forgotten, marks = records.decode_producers(payload)
        self._core.producers.forgotten |= forgotten
        for producer, number in marks:
            self._core.producers.raise_to(producer, number)

    def _finish(self) -> None:
        core = self._core
        for queue in core.router.by_number.values():
            given, delivered, position = self._marks.get(queue.number, (0, 0, 0))
            queue.last = max(given, delivered)
            core.marks.open(queue, given, delivered, position)
        dead: list[int] = []
        for position, (run, views) in self._runs.items():
            for number, view in views.items():
                bound = core.router.by_number.get(number)
                if bound is not None:
                    self._append(bound, view)
            if run.views:
                core.memory.used_bytes += run.size_bytes
            elif not run.has_ids:
                # Every message was settled, and the record that says so is kept only with this one.
                dead.append(position)
        for name, chunk in sorted(self._chunks, key=lambda item: item[1].origin):
            address = core.router.addresses.get(name)
            if address is None:
                dead += [chunk.record] if chunk.record else []
            else:
                dead += address.duplicates.add(chunk)
        core.ledger.doom(dead)

    def _append(self, queue: Queue, view: QueueRun) -> None:
        view.live = len(view.states) - view.states.count(GONE)
        queue.last = max(queue.last, view.first + len(view.states) - 1)
        if view.live:
            view.run.views += 1
            delivered = self._marks.get(queue.number, (0, 0, 0))[1]
            view.maybe = min(max(0, delivered - view.first + 1), len(view.states))
            queue.append(view)
            self.messages += view.live
