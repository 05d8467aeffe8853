"""Restoring prepared transactions from the journal: acknowledged rows, waiting runs and decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshq.address import Target
from meshq.broker.catalog._router import Router
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._message_counts import mark_unacked
from meshq.broker.queue._run import GONE, QueueRun, StoredRun
from meshq.broker.records import (
    PreparedRecord,
    SettledRow,
    WaitingRecord,
    decode_decided,
    decode_prepared,
    decode_waiting,
)
from meshq.broker.records._row_ranges import pieces
from meshq.broker.transactions._decisions import Decision
from meshq.broker.transactions._prepared import ServerPreparedTransaction
from meshq.broker.transactions._transaction import ServerTransaction, Work
from meshq.broker.transactions._two_phase import TwoPhaseCommit
from meshq.errors import DamagedError, RemoteProtocolError
from meshq.wire import check_run

#: The parts of a run that a queue has, by the run's position and the queue's number.
Find = Callable[[int, int], Sequence[QueueRun]]


class TransactionRecovery:
    """Gathers the records; when all are read, everything is held that was."""

    def __init__(self, two_phase: TwoPhaseCommit, release_queue: ReleaseQueue, router: Router) -> None:
        self._two_phase = two_phase
        self._release_queue = release_queue
        self._router = router
        # By position of the prepared record.
        self._prepared: dict[int, tuple[PreparedRecord, ServerPreparedTransaction]] = {}
        # What each holds.
        self._spans: dict[ServerPreparedTransaction, dict[int, list[RowSpan]]] = {}
        #: Runs of which some messages are held.
        self.views: dict[QueueRun, None] = {}

    def prepared(self, payload: bytes, position: int) -> None:
        """A transaction is prepared."""
        record = decode_prepared(payload)
        made = ServerPreparedTransaction(record.xid, record.user, record.prepared_ms, ServerTransaction())
        made.positions.append(position)
        self._prepared[position] = record, made

    def waiting(self, payload: bytes, position: int) -> None:
        """A run waits with it."""
        record = decode_waiting(payload)
        known = self._prepared.get(record.prepared)
        if known is None:
            raise DamagedError("journal", position, "a run of a prepared transaction", f"one of {record.prepared}")
        known[1].positions.append(position)
        work = _work(record, position)
        work.run.user = known[1].user
        known[1].transaction.add_run(work)

    def decided(self, payload: bytes, position: int) -> None:
        """A transaction was decided."""
        record = decode_decided(payload)
        decision = Decision(record.user, record.committed, position)
        self._release_queue.doom(self._two_phase.decisions.add(record.xid, decision))

    def restore_unacked(self, find: Find) -> None:
        """Mark the rows that prepared transactions have acknowledged as unacked, before any run is visible."""
        for position, (record, prepared) in self._prepared.items():
            transaction = prepared.transaction
            if len(transaction.work) != record.runs:
                raise DamagedError("journal", position, f"{record.runs} runs that wait", f"{len(transaction.work)}")
            spans = self._spans[prepared] = {}
            for row in record.acked:
                spans.setdefault(row.queue, []).extend(self._find_rows(row, find(row.position, row.queue), position))

    def _find_rows(self, row: SettledRow, views: Sequence[QueueRun], position: int) -> list[RowSpan]:
        named = range(row.start, row.stop, row.step)
        found: list[RowSpan] = []
        for view in views:
            share = view.run.rows
            rows = [share.index(one) for one in named if one in share] if share is not None else list(named)
            rows = [one for one in rows if one < len(view.states) and view.states[one] != GONE]
            found += [RowSpan(view, part.start, part.stop, part.step) for part in pieces(rows)]
        if sum(span.rows for span in found) != len(named):
            raise DamagedError("journal", position, "messages that a prepared transaction holds", "none")
        mark_unacked(found)
        self.views.update((span.view, None) for span in found)
        return found

    def finish(self) -> None:
        """Hand the prepared transactions over, after all runs are visible."""
        for prepared, spans in self._spans.items():
            for number, acked in spans.items():
                prepared.transaction.add_spans(self._router.by_number[number], acked)
            self._two_phase.take_up(prepared)


def _work(record: WaitingRecord, position: int) -> Work:
    run = StoredRun(
        record.address,
        record.content,
        durable=True,
        producer=record.producer,
        number=record.number,
        stamp=record.stamp,
    )
    try:
        kinds = check_run(record.content)
    except RemoteProtocolError as error:
        raise DamagedError("journal", position, "a run that can be sent", str(error)) from error
    return Work(run, Target(record.address, record.queue), kinds)
