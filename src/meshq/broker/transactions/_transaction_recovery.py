"""Restoring prepared transactions from the journal: acknowledged rows, waiting runs and decisions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshq.address import Target
from meshq.broker.catalog._router import Router
from meshq.broker.ingress._held_rows import HeldRows
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._message_counts import mark_unacked
from meshq.broker.queue._run import GONE, QueueRun, StoredRun
from meshq.broker.records import (
    PreparedRecord,
    SettledRow,
    WaitingRecord,
    decode_arrived,
    decode_arriving,
    decode_decided,
    decode_elsewhere,
    decode_handed,
    decode_prepared,
    decode_waiting,
)
from meshq.broker.records._row_ranges import pieces
from meshq.broker.transactions._decisions import Decision
from meshq.broker.transactions._prepared import ServerPreparedTransaction
from meshq.broker.transactions._transaction import ServerTransaction, Work
from meshq.broker.transactions._transaction_manager import TransactionManager
from meshq.errors import DamagedError, RemoteProtocolError
from meshq.wire import check_run

#: The parts of a run that a queue has, by the run's position and the queue's number.
Find = Callable[[int, int], Sequence[QueueRun]]


class TransactionRecovery:
    """Gathers the records; when all are read, everything is held that was."""

    def __init__(
        self, transactions: TransactionManager, release_queue: ReleaseQueue, router: Router, held_rows: HeldRows
    ) -> None:
        """``held_rows``: the rows of transactions that are being handed over."""
        self._two_phase = transactions.two_phase
        self._stages = transactions.stages
        self._held_rows = held_rows
        self._release_queue = release_queue
        self._router = router
        # By position of the prepared record.
        self._prepared: dict[int, tuple[PreparedRecord, ServerPreparedTransaction]] = {}
        # What each holds.
        self._spans: dict[ServerPreparedTransaction, dict[int, list[RowSpan]]] = {}
        # Of those that other nodes hand over, by the same: the links over which they come until all has come; and the
        # runs that they hold, with the queues of these.
        self._links: dict[int, bytes] = {}
        self._came: dict[int, None] = {}
        self._held: dict[int, list[tuple[int, int]]] = {}
        #: Runs of which some messages are held.
        self.views: dict[QueueRun, None] = {}

    def prepared(self, payload: bytes, position: int) -> None:
        """A transaction is prepared."""
        self._take_up(decode_prepared(payload), position)

    def _take_up(self, record: PreparedRecord, position: int) -> ServerPreparedTransaction:
        made = ServerPreparedTransaction(record.xid, record.user, record.prepared_ms, ServerTransaction())
        made.positions.append(position)
        self._prepared[position] = record, made
        return made

    def arriving(self, payload: bytes, position: int) -> None:
        """Another node hands a transaction over."""
        record = decode_arriving(payload)
        self._take_up(record.prepared, position)
        self._links[position] = record.link

    def holds(self, holder: int, position: int, queues: Sequence[int]) -> None:
        """A run came that a transaction of another node holds, if that is still prepared."""
        self._held.setdefault(holder, []).extend((position, queue) for queue in queues)

    def arrived(self, payload: bytes, position: int) -> None:
        """All of a transaction has come."""
        begun = decode_arrived(payload)
        known = self._prepared.get(begun)
        if known is None:
            raise DamagedError("journal", position, "the end of a transaction of another node", f"one of {begun}")
        known[1].positions.append(position)
        self._came[begun] = None

    def handed(self, payload: bytes, position: int) -> None:
        """A transaction is being handed over to another node."""
        record = decode_handed(payload)
        self._take_up(record.prepared, position).forward = record.queue

    def elsewhere(self, payload: bytes, position: int) -> None:
        """A transaction was handed over to another node."""
        record = decode_elsewhere(payload)
        decision = Decision(record.user, False, position, record.where)
        self._release_queue.doom(self._two_phase.decisions.add(record.xid, decision))

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
            if len(transaction.work) != record.runs and position not in self._links:
                raise DamagedError("journal", position, f"{record.runs} runs that wait", f"{len(transaction.work)}")
            spans = self._spans[prepared] = {}
            for row in record.acked:
                spans.setdefault(row.queue, []).extend(self._find_rows(row, find(row.position, row.queue), position))
            for place, queue in self._held.get(position, ()):
                for view in find(place, queue):
                    rows = [row for row, state in enumerate(view.states) if state != GONE]
                    if rows:
                        spans.setdefault(queue, []).extend(self._hold(view, rows))

    def _find_rows(self, row: SettledRow, views: Sequence[QueueRun], position: int) -> list[RowSpan]:
        # Of a transaction that is on its way to another node some rows have gone.
        some = self._prepared[position][1].forward > 0
        named = range(row.start, row.stop, row.step)
        found: list[RowSpan] = []
        for view in views:
            share = view.run.rows
            rows = [share.index(one) for one in named if one in share] if share is not None else list(named)
            rows = [one for one in rows if one < len(view.states) and view.states[one] != GONE]
            found += self._hold(view, rows) if rows else []
        if sum(span.rows for span in found) != len(named) and not some:
            raise DamagedError("journal", position, "messages that a prepared transaction holds", "none")
        return found

    def _hold(self, view: QueueRun, rows: Sequence[int]) -> list[RowSpan]:
        found = [RowSpan(view, part.start, part.stop, part.step) for part in pieces(rows)]
        mark_unacked(found)
        self.views[view] = None
        return found

    def finish(self) -> None:
        """Hand the prepared transactions and the stages over, after all runs are visible."""
        self._stages.restored()
        for prepared, spans in self._spans.items():
            for number, acked in spans.items():
                if acked:
                    prepared.transaction.add_spans(self._router.by_number[number], acked)
            begun = prepared.positions[0]
            if begun in self._links and begun not in self._came:
                self._two_phase.take_up_arriving(prepared, self._links[begun])
                continue
            self._two_phase.take_up(prepared)
            if prepared.forward:
                self._held_rows.hold(prepared.xid, prepared.forward, prepared.transaction.acked_in_transaction)


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
