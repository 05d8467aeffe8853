"""Recovery from the journal: definitions first, then runs, then the settlement of their messages.

Records are read in the journal's order; nothing is written, and no message is visible, until the end.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from typing import Any, Final, Protocol

from meshq.broker import records
from meshq.broker.bodies._body import Body
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.core._recovered_content import ReadPayloads, RecoveredContent, RecoveredRun
from meshq.broker.core._recovered_options import ask, said_before
from meshq.broker.ingress._held_rows import HeldRows
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._network_copies import note_recovered
from meshq.broker.ingress._recovered_producers import RecoveredProducers
from meshq.broker.log._duplicates import IdChunk
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.paging._pager import Pager
from meshq.broker.queue._delivery_options import DeliveryOptions
from meshq.broker.queue._message_counts import drop_rows, keep_rows, skip_rows
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun, share_of
from meshq.broker.records import BranchesRecord, CountedRow, PlacedRecord, RoutedRecord, RunRecord
from meshq.broker.records._row_options import RowOptions, asked_of_moved, read_options
from meshq.broker.settlement._message_times import MessageTimes
from meshq.broker.settlement._redelivery import Redelivery
from meshq.broker.transactions import TransactionManager, TransactionRecovery
from meshq.errors import DamagedError
from meshq.message import MessageOrigin
from meshq.wire import duplicate_ids

#: Records, or runs, of one step.
STEP: Final = 64


class LogRecord(Protocol):
    """A record as the journal gives it back."""

    position: int
    kind: int
    payload: bytes
    deleted: bool
    #: Bytes behind ``payload`` that were left on the disk (``records.record_prefix``).
    missing: int


class Recovery:
    """Fills the parts of an empty core from the records of the journal.

    ``read`` gets whole what was left out of the records.
    """

    def __init__(
        self,
        definitions: Definitions,
        ingress: Ingress,
        pager: Pager,
        *,
        release_queue: ReleaseQueue,
        redelivery: Redelivery,
        times: MessageTimes,
        transactions: TransactionManager,
        held_rows: HeldRows,
        read: ReadPayloads | None,
    ) -> None:
        self._definitions = definitions
        self._router = definitions.router
        self._ingress = ingress
        self._release_queue = release_queue
        self._redelivery = redelivery
        self._times = times
        self._content = RecoveredContent(pager, definitions.router, read)
        # By position of the run: the run, and its views in each queue by the queue's number.
        self._runs: dict[int, RecoveredRun] = {}
        # By address: definitions of queues that stand before that of their address.
        self._homeless: dict[str, list[tuple[dict[str, Any], int]]] = {}
        self._chunks: list[tuple[str, IdChunk]] = []
        # By queue number: numbers given, numbers that may have been delivered, where that stands.
        self._marks: dict[int, tuple[int, dict[int, int], int]] = {}
        self._sent = RecoveredProducers()
        # The branches of links, as the last record says; None: the journal has none.
        self._branches: BranchesRecord | None = None
        # What is to be seen, and where; what was not due when it was placed comes later than its record.
        self._visible: list[tuple[Queue, QueueRun]] = []
        # What messages ask for of a queue whose definition stands behind them.
        self._asked: dict[QueueRun, list[RowOptions]] = {}
        # What came back of runs, and records that say so of runs that are gone.
        self._counts: dict[QueueRun, tuple[CountedRow, ...]] = {}
        self._useless: list[int] = []
        # What is prepared.
        self._two_phase = TransactionRecovery(transactions, release_queue, definitions.router, held_rows)
        # Bodies that some record speaks of, by id.
        self._bodies: dict[bytes, Body] = {}
        #: Messages that were taken up.
        self.messages: int = 0

    def take(self, log: Iterable[LogRecord]) -> None:
        """Read all records at once, as ``steps`` does."""
        for _ in self.steps(log):
            pass

    def steps(self, log: Iterable[LogRecord]) -> Iterator[None]:
        """Read all records; of deleted records only facts that no other record has.

        Each step takes a short time, so that a node can renew its lease between two of them.
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
            records.ROUTED: self._routed,
            records.LINKS: self._links,
            records.BRANCHES: self._branch_table,
            records.PLACED: self._placed,
            records.DUE: self._due,
            records.COUNTED: self._counted,
            records.PREPARED: self._two_phase.prepared,
            records.WAITING: self._two_phase.waiting,
            records.DECIDED: self._two_phase.decided,
            records.ELSEWHERE: self._two_phase.elsewhere,
            records.ARRIVING: self._two_phase.arriving,
            records.ARRIVED: self._two_phase.arrived,
            records.HANDED: self._two_phase.handed,
            records.USER_PRODUCERS: self._user_producers,
            records.HANDED_IDS: self._handed_ids,
        }
        for number, record in enumerate(log, 1):
            if number % STEP == 0:
                yield
            handler = handlers.get(record.kind)
            if handler is None:
                known = ", ".join(map(str, handlers))
                raise DamagedError("journal", record.position, f"a record of a kind from {known}", f"{record.kind}")
            if record.deleted:
                self._take_deleted(record)
            elif record.missing:
                self._run(record.payload, record.position, record.missing)
            else:
                handler(record.payload, record.position)
        yield from self._finish()

    def _take_deleted(self, record: LogRecord) -> None:
        """Take the facts from a deleted record that no other record has."""
        if record.kind == records.RUN:
            self._sent.run(records.decode_run(record.payload, record.missing), record.position)
        elif record.kind == records.ROUTED:
            self._note_routed(records.decode_routed(record.payload, record.missing), record.position)
        elif record.kind == records.PLACED:
            self._note_placed(records.decode_placed(record.payload, record.missing), record.position)
        elif record.kind == records.LINKS:
            self._links(record.payload, record.position)
        elif record.kind == records.BRANCHES:
            self._branches = records.decode_branches(record.payload)
        elif record.kind == records.USER_PRODUCERS:
            said = records.decode_user_producers(record.payload)
            if not said.whole:
                self._sent.of_user(said, record.position)

    @property
    def bodies(self) -> dict[bytes, int]:
        """The large bodies that are needed, by id with their sizes."""
        return {body.body_id: body.size_bytes for body in self._bodies.values() if body.refs}

    def _definition(self, payload: bytes, position: int) -> None:
        values = records.decode_definition(payload)
        if values["kind"] == "queue" and values["address"] not in self._router.addresses:
            # The address was defined anew since.
            self._homeless.setdefault(values["address"], []).append((values, position))
            return
        if values["kind"] in ("peer", "binding", "renumbered"):
            self._definitions.peers.restore(values, position)
            return
        if values["kind"] in ("pin", "introduced"):
            self._definitions.pins.restore(values, position)
            return
        self._definitions.restore(values, position)
        if values["kind"] == "address":
            for queue, place in self._homeless.pop(values["name"], ()):
                self._definitions.restore(queue, place)

    def _run(self, payload: bytes, position: int, missing: int = 0) -> None:
        record = records.decode_run(payload, missing)
        run = StoredRun(
            record.address,
            record.content,
            durable=True,
            producer=record.producer,
            number=record.number,
            stamp=record.stamp,
        )
        run.position = position
        views: dict[int, list[QueueRun]] = {}
        for target in record.targets:
            view = QueueRun(run, target.first)
            if target.step > 1:
                keep_rows(view, target.start, target.step)
            if record.skipped:
                skip_rows(view, record.skipped)
            views[target.queue] = [view]
        self._runs[position] = (run, views)
        self._sent.run(record, position)
        if missing:
            self._content.leave(run, missing)
        else:
            self._take_ids(record, run)
        self._content.keep(run, views)

    def _stored(self, record: RoutedRecord, position: int) -> StoredRun:
        """The run of a record that divides it, without its shares."""
        sent = record.run
        run = StoredRun(
            sent.address,
            sent.content,
            durable=True,
            producer=sent.producer,
            number=sent.number,
            stamp=sent.stamp,
            number_step=record.number_step,
        )
        run.position = position
        self._runs[position] = (run, {})
        return run

    def _routed(self, payload: bytes, position: int) -> None:
        record = records.decode_routed(payload)
        run = self._stored(record, position)
        for target in record.targets:
            view = QueueRun(share_of(run, target.rows), target.first, target.remote)
            self._runs[position][1].setdefault(target.queue, []).append(view)
        self._note_routed(record, position)
        if not record.link:
            self._take_ids(_with_skipped(record), run)
        self._content.keep(run, self._runs[position][1])

    def _placed(self, payload: bytes, position: int) -> None:
        record = records.decode_placed(payload)
        self._note_placed(record, position)
        if record.holder:
            self._two_phase.holds(record.holder, position, [target.queue for target in record.routed.targets])
        sent = record.routed.run
        run = self._stored(record.routed, position)
        origin = MessageOrigin(*record.origin) if record.origin is not None else None
        asked = (read_options if origin is None else asked_of_moved)(sent.content, record.arrival)
        run.options = DeliveryOptions(record.arrival, origin=origin, begun=record.begun, **said_before(record))
        if record.body is not None:
            body_id, size = record.body
            run.body = self._bodies.setdefault(body_id, Body(body_id, size))
        for target in record.routed.targets:
            share = share_of(run, target.rows)
            view = QueueRun(share, target.first, target.remote)
            queue = self._router.by_number.get(target.queue)
            if queue is not None:
                ask(queue, view, asked)
            else:
                # It may have been defined anew since.
                self._asked[view] = asked
            self._runs[position][1].setdefault(target.queue, []).append(view)
        if not record.routed.link and (record.unstaged or not record.moved):
            self._take_ids(_with_skipped(record.routed), run)
        self._content.keep(run, self._runs[position][1])

    def _note_placed(self, record: PlacedRecord, position: int) -> None:
        self._settle(record.settled, position)
        if not record.moved:
            self._note_routed(record.routed, position)

    def _due(self, payload: bytes, position: int) -> None:
        row = records.decode_due(payload)
        found = self._runs.get(row.position)
        for view in found[1].get(row.queue, ()) if found is not None else ():
            rows = view.run.rows or range(view.run.content.rows)
            if rows == range(row.start, row.stop, row.step):
                view.first = row.first

    def _counted(self, payload: bytes, position: int) -> None:
        record = records.decode_counted(payload)
        found = self._runs.get(record.position)
        for view in found[1].get(record.queue, ()) if found is not None else ():
            rows = view.run.rows if view.run.rows is not None else range(view.run.content.rows)
            if rows == range(*record.share):
                view.counted_at = position
                self._counts[view] = record.rows
                return
        self._useless.append(position)

    def _note_routed(self, record: RoutedRecord, position: int) -> None:
        if record.link:
            self._raise_link(record.link, record.link_last)
        else:
            self._sent.run(record.run, position)

    def _raise_link(self, link: bytes, number: int) -> None:
        marks = self._ingress.links
        marks[link] = max(marks.get(link, 0), number)

    def _links(self, payload: bytes, position: int) -> None:
        for link, number in records.decode_links(payload).items():
            self._raise_link(link, number)

    def _branch_table(self, payload: bytes, position: int) -> None:
        self._branches = records.decode_branches(payload)
        if not self._branches.checkpoint:
            self._useless.append(position)

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
        self._settle(records.decode_settled(payload), position)

    def _settle(self, rows: Iterable[records.SettledRow], position: int) -> None:
        for row in rows:
            found = self._runs.get(row.position)
            for view in found[1].get(row.queue, ()) if found is not None else ():
                settled = range(row.start, row.stop, row.step)
                share = view.run.rows
                if share is not None:
                    skip_rows(view, [share.index(number) for number in settled if number in share])
                    continue
                if row.stop > len(view.states):
                    raise DamagedError("journal", position, f"rows of {len(view.states)} messages", f"row {row.stop}")
                drop_rows(view, settled)

    def _ids(self, payload: bytes, position: int) -> None:
        record = records.decode_ids(payload)
        self._chunks.append((record.address, IdChunk(record.origin, record.ids, position)))

    def _handed_ids(self, payload: bytes, position: int) -> None:
        newer, record = records.decode_handed_ids(payload)
        self._chunks.append((record.address, IdChunk(position, record.ids, position, newer)))

    def _mark(self, payload: bytes, position: int) -> None:
        queue, given, delivered = records.decode_marks(payload)
        self._marks[queue] = (given, delivered, position)

    def _producers(self, payload: bytes, position: int) -> None:
        self._sent.everybody(records.decode_producers(payload), position)

    def _user_producers(self, payload: bytes, position: int) -> None:
        record = records.decode_user_producers(payload)
        self._sent.of_user(record, position)
        if not record.whole:
            # Only the runs behind it needed it.
            self._useless.append(position)

    def _finish(self) -> Iterator[None]:
        for address, queues in self._homeless.items():
            raise DamagedError("journal", queues[0][1], "the address of each queue", address)
        self._content.read_left(self._runs)
        self._definitions.peers.restored()
        self._sent.restore(self._ingress.producers)
        if self._branches is not None:
            self._ingress.branches.restore(self._branches.branches)
        for queue in self._router.by_number.values():
            given, delivered, position = self._marks.get(queue.number, (0, {}, 0))
            queue.last = max(given, *delivered.values(), 0)
            self._definitions.watermarks.open(queue, given, delivered, position)
        for queue in self._definitions.cursors.attach(self._router.by_number, self._times.timers.elapsed_ms):
            # Before its messages come: those under a cursor replace each other only when it is gone.
            self._router.rule(queue)
        self._two_phase.restore_unacked(self._views_of)
        ended: list[int] = []
        for number, (position, (run, views)) in enumerate(self._runs.items(), 1):
            if number % STEP == 0:
                yield
            found: list[tuple[Queue, QueueRun]] = []
            for queue_number, parts in views.items():
                bound = self._router.by_number.get(queue_number)
                if bound is not None:
                    found += [(bound, view) for view in parts]
            for queue, view in found:
                if view.remote:
                    self._definitions.peers.renumber(queue.number, view)
                if view in self._asked:
                    ask(queue, view, self._asked[view])
                self._append(queue, view)
            if run.views:
                self._ingress.charge(run, found)
                if run.body is not None:
                    run.body.refs += 1
            else:
                # Every message was settled, or its queue is gone.
                ended.append(position)
        if any(view.run.options is not None for _, view in self._visible):
            self._visible.sort(key=_by_number)
        for number, (queue, view) in enumerate(self._visible, 1):
            if number % STEP == 0:
                yield
            if view in self._two_phase.views:
                queue.append_with_unacked(view)
            else:
                queue.append(view)
            if view in self._counts:
                self._redelivery.restore(queue, view, self._counts[view])
            else:
                self._redelivery.take_up(queue, view)
            self._times.watch(queue, view)
        for queue in self._router.by_number.values():
            queue.counts.high = queue.last + 1
        self._definitions.cursors.restored(self._router.by_number)
        self._two_phase.finish()
        self._release_queue.doom(self._useless)
        gone = yield from self._restore_ids(dict.fromkeys(ended))
        self._release_queue.doom(gone)

    def _views_of(self, position: int, queue: int) -> list[QueueRun]:
        """The parts of a run in a queue that is there, as far as they have numbers."""
        found = self._runs.get(position)
        if found is None or queue not in self._router.by_number:
            return []
        return [view for view in found[1].get(queue, ()) if view.first]

    def _restore_ids(self, ended: dict[int, None]) -> Generator[None, None, list[int]]:
        """Fill the windows of duplicate ids; return the positions of records that are no longer needed."""
        dead: dict[int, None] = dict(ended)
        for _, chunk in self._chunks:
            if chunk.origin in ended and not chunk.record:
                # Only its ids keep the run's record alive.
                chunk.record = chunk.origin
                del dead[chunk.origin]
        newest_first = sorted(self._chunks, key=lambda item: item[1].origin, reverse=True)
        seen: dict[str, set[bytes]] = {}
        for number, (name, chunk) in enumerate(newest_first, 1):
            if number % STEP == 0:
                yield
            # An id that had left the window and came again may stand in two records: the later one counts.
            known = seen.setdefault(name, set())
            chunk.ids = [duplicate_id for duplicate_id in chunk.ids if duplicate_id not in known]
            known.update(chunk.ids)
        gone: list[int] = []
        for number, (name, chunk) in enumerate(reversed(newest_first), 1):
            if number % STEP == 0:
                yield
            address = self._router.addresses.get(name)
            if address is not None and chunk.ids:
                gone += address.duplicates.add(chunk)
                note_recovered(address, chunk.ids)
            elif chunk.record:
                gone.append(chunk.record)
        return [*dead, *gone]

    def _append(self, queue: Queue, view: QueueRun) -> None:
        if view.first:
            queue.last = max(queue.last, view.first + len(view.states) - 1)
        if not view.live:
            if view.counted_at:
                self._useless.append(view.counted_at)
            return
        whole = view.run.origin or view.run
        whole.views += 1
        whole.share_views += view.run is not whole
        self.messages += view.live
        if not view.first:
            self._times.hold_back(queue, view)
            return
        delivered = self._marks.get(queue.number, (0, {}, 0))[1].get(queue.list_for(view.run).priority, 0)
        view.maybe = min(max(0, delivered - view.first + 1), len(view.states))
        self._visible.append((queue, view))


def _with_skipped(record: RoutedRecord) -> RunRecord:
    """The run of a client's, with the rows that no queue got."""
    placed = dict.fromkeys(row for target in record.targets for row in target.rows)
    return record.run._replace(skipped=tuple(row for row in range(record.run.content.rows) if row not in placed))


def _by_number(item: tuple[Queue, QueueRun]) -> int:
    return item[1].first
