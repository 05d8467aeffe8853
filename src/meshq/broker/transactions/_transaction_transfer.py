"""Prepared transactions that go from a node that leaves to another one, with all that they send and hold.

Here they are begun anew by their first part, which stands before the messages that they hold; so each message that
comes later names the transaction, and is held by it in its place.  Only the last part makes it one that can be decided.
At the node that leaves it can't be decided any more from the record on that sends the first part.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Final

from meshq.address import Target
from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.catalog._known_peers import KnownPeers
from meshq.broker.ingress._held_rows import HeldRows
from meshq.broker.ingress._ingress import (
    MARK_RECORD_BYTES,
    PART_RECORD_BYTES,
    ROW_RECORD_BYTES,
    RUN_RECORD_BYTES,
    Ingress,
)
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._delivery_options import DeliveryOptions
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import UNACKED, QueueRun, StoredRun
from meshq.broker.records import (
    ARRIVED,
    ARRIVING,
    ELSEWHERE,
    HANDED,
    LINKS,
    WAITING,
    ArrivingRecord,
    ElsewhereRecord,
    HandedRecord,
    PreparedRecord,
    WaitingRecord,
    encode_arrived,
    encode_arriving,
    encode_elsewhere,
    encode_handed,
    encode_links,
    encode_waiting_head,
)
from meshq.broker.records._row_options import RowOptions
from meshq.broker.records._row_ranges import pieces
from meshq.broker.settlement._settled_row import settled_row
from meshq.broker.transactions._decisions import Decision
from meshq.broker.transactions._prepared import ServerPreparedTransaction
from meshq.broker.transactions._transaction import ServerTransaction, Work
from meshq.broker.transactions._two_phase import TwoPhaseCommit
from meshq.errors import UsageError
from meshq.ids import IDENTITY_BYTES
from meshq.wire import (
    PREPARED_PARTS,
    PreparedHead,
    check_run,
    decode_prepared_head,
    encode_prepared_head,
    encode_run,
    violation,
)

#: Of the parts of a transaction: what begins it, what it sends, and what ends it.
BEGIN, SENDS, END = PREPARED_PARTS
#: The feature of a node that takes prepared transactions.
PREPARED_FEATURE: Final = "prepared"
#: The address of a part that is no message, which is never looked up.
_ADDRESS: Final = "prepared"
#: Bytes of the records of a transaction that is handed over, beside its names, rows and runs; and of each row.
_RECORDS_BYTES: Final = 1_024
_ROW_BYTES: Final = 64
#: Bytes for each record that one deletes.
_TARGET_BYTES: Final = 16


class TransactionTransfer:
    """Hands prepared transactions over to another node, and takes the prepared transactions of other nodes."""

    def __init__(
        self,
        two_phase: TwoPhaseCommit,
        ingress: Ingress,
        release_queue: ReleaseQueue,
        peers: KnownPeers,
        *,
        held: HeldRows,
        charge: Callable[[int], None],
        warn: Callable[[str, str], None],
    ) -> None:
        """``held``: the rows that go to other nodes; ``charge`` counts bytes of transactions in the used memory."""
        self._two_phase = two_phase
        self._ingress = ingress
        self._release_queue = release_queue
        self._peers = peers
        self._held = held
        self._charge = charge
        self._warn = warn

    # -- at the node that leaves

    def hand_over(self, prepared: ServerPreparedTransaction, forward: Queue) -> bool:
        """Take the next step of a transaction's way to the node of a store-and-forward queue; return whether there was
        one.

        Raises:
            AddressFullError, JournalBrokenError: nothing changed.
        """
        if not prepared.forward:
            self._begin(prepared, forward)
            return True
        if prepared.forward != forward.number or self._held.queues(prepared.xid):
            return False
        self._end(prepared, forward)
        return True

    def weigh(self, prepared: ServerPreparedTransaction) -> int:
        """Return the bytes that the records of the next step may take.

        No more than those of its prepare for what it sends: together they fit in one batch again.
        """
        transaction, names = prepared.transaction, len(prepared.xid) + len(prepared.user.encode())
        size = _RECORDS_BYTES + 3 * names + _TARGET_BYTES * len(prepared.positions)
        if prepared.forward:
            return size
        size += _ROW_BYTES * (sum(map(len, transaction.acked_in_transaction.values())))
        for run, target, _ in transaction.work:
            content = run.content
            size += len(content.table) + len(content.body) + RUN_RECORD_BYTES + ROW_RECORD_BYTES * content.rows
            size += PART_RECORD_BYTES + MARK_RECORD_BYTES + len(prepared.xid)
            size += len(target.address.encode()) + len((target.queue or "").encode())
        return size

    def _begin(self, prepared: ServerPreparedTransaction, forward: Queue) -> None:
        transaction = prepared.transaction
        acked = tuple(
            settled_row(queue, span)
            for queue, spans in transaction.acked_in_transaction.items()
            for span in spans
            if queue.durable and (span.view.run.origin or span.view.run).position
        )
        with self._release_queue.atomic_batch(self.weigh(prepared)):
            self._place_head(prepared, forward, BEGIN)
            for run, target, _ in transaction.work:
                self._place(self._sent_part(prepared, run, target), forward)
            kept = PreparedRecord(prepared.xid, prepared.user, prepared.prepared_ms, acked, 0)
            deletes = [position for position in prepared.positions if position]
            record = encode_handed(HandedRecord(forward.number, kept))
            prepared.positions = [self._release_queue.write(HANDED, [record], deletes=deletes, vital=True)]
        self._two_phase.leave(prepared, forward.number)
        self._charge(-transaction.size_bytes)
        transaction.work, transaction.size_bytes = [], 0
        self._held.hold(prepared.xid, forward.number, transaction.acked_in_transaction)

    def _end(self, prepared: ServerPreparedTransaction, forward: Queue) -> None:
        known = self._peers.peers.get(forward.number)
        where = known.connector if known is not None else forward.name
        record = encode_elsewhere(ElsewhereRecord(prepared.xid, prepared.user, where))
        deletes = [position for position in prepared.positions if position]
        with self._release_queue.atomic_batch(self.weigh(prepared)):
            self._place_head(prepared, forward, END)
            position = self._release_queue.write(ELSEWHERE, [record], deletes=deletes, vital=True)
        self._held.forget(prepared.xid)
        self._two_phase.gone(prepared, Decision(prepared.user, False, position, where))

    def _place_head(self, prepared: ServerPreparedTransaction, forward: Queue, part: str) -> None:
        content = encode_run([encode_prepared_head(PreparedHead(prepared.prepared_ms, prepared.user))])
        durable = self._release_queue.durable
        run = StoredRun(_ADDRESS, content, durable=durable, producer=bytes(IDENTITY_BYTES), number=1, stamp=0)
        run.options = DeliveryOptions(0, entry=part, held=prepared.xid)
        self._place(run, forward)

    def _sent_part(self, prepared: ServerPreparedTransaction, run: StoredRun, target: Target) -> StoredRun:
        part = StoredRun(
            target.address,
            run.content,
            durable=run.durable,
            producer=run.producer,
            number=run.number,
            stamp=run.stamp,
        )
        part.options = DeliveryOptions(0, entry=SENDS, held=prepared.xid, target=target.queue or "")
        return part

    def _place(self, run: StoredRun, forward: Queue) -> None:
        rows = run.content.rows
        self._ingress.place_shares(run, [Share(forward, range(rows), ())], [RowOptions()] * rows, ())

    # -- at the node that takes over

    def holder(self, link: bytes, xid: bytes) -> ServerPreparedTransaction | None:
        """Return the transaction of which parts come over a link; None: its beginning was lost with an older store, and
        all of it is rolled back."""
        found = self._two_phase.arriving.get((link, xid))
        if found is None:
            found = next((one for (_, known), one in self._two_phase.arriving.items() if known == xid), None)
        return found

    def take(self, part: str, xid: bytes, run: StoredRun, target: Target, link: tuple[bytes, int]) -> None:
        """Take a part of a transaction; ``link``: whose number.

        Raises:
            RemoteProtocolError: it is begun a second time; nothing changed.
            UsageError: another user's transaction is prepared here under this id; nothing changed.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        size = _RECORDS_BYTES + self._ingress.weigh_moved(run.content)
        if part == BEGIN:
            head = decode_prepared_head(run.content)
            earlier = self._two_phase.arriving.get((link[0], xid))
            if earlier is not None and not earlier.whole:
                # Nobody could ever end the earlier one, nor decide what it holds.
                raise violation("bad_header", f"the transaction {xid!r} is begun again before its end")
            self._check_user(xid, head.user)
            with self._release_queue.atomic_batch(size):
                self._begin_here(xid, head, link)
        elif (found := self.holder(link[0], xid)) is None:
            self._lost(part, xid, run, link)
        elif part == SENDS:
            with self._release_queue.atomic_batch(size):
                self._send_here(found, run, target, link)
        else:
            with self._release_queue.atomic_batch(size):
                position = self._release_queue.write(ARRIVED, [encode_arrived(found.positions[0])], vital=True)
                found.positions.append(position)
                found.whole = True
                self._raise_link(link)
                # Not before the messages that it holds are visible.
                self._release_queue.release_after(position, (), partial(self._two_phase.arrived, found))
        self._ingress.links[link[0]] = link[1]

    def _check_user(self, xid: bytes, user: str) -> None:
        known = self._two_phase.known(xid)
        if known is not None and known.user != user:
            raise UsageError(f"the transaction {xid!r} of another node has the id of another user's, which is prepared")

    def _begin_here(self, xid: bytes, head: PreparedHead, link: tuple[bytes, int]) -> None:
        made = ServerPreparedTransaction(xid, head.user, head.prepared_ms, ServerTransaction())
        record = ArrivingRecord(link[0], PreparedRecord(xid, head.user, head.prepared_ms, (), 0))
        made.positions.append(self._release_queue.write(ARRIVING, [encode_arriving(record)]))
        self._raise_link(link)
        self._two_phase.arriving[link[0], xid] = made

    def _send_here(
        self, found: ServerPreparedTransaction, run: StoredRun, target: Target, link: tuple[bytes, int]
    ) -> None:
        kinds = check_run(run.content)
        run.user = found.user
        if run.durable:
            content = run.content
            head = WaitingRecord(
                found.positions[0], run.producer, run.number, run.stamp, target.address, target.queue, content
            )
            parts = [encode_waiting_head(head), content.table, content.body]
            found.positions.append(self._release_queue.write(WAITING, parts))
            self._raise_link(link)
        found.transaction.add_run(Work(run, target, kinds))
        self._charge(run.size_bytes)
        self._two_phase.sends(found)

    def _lost(self, part: str, xid: bytes, run: StoredRun, link: tuple[bytes, int]) -> None:
        """Take a part of a transaction whose beginning was lost with an older store of this node."""
        text = f"the transaction {xid!r} of a node that leaves was begun in a store that is lost: it is rolled back"
        self._warn("transaction_lost", text)
        if part == END:
            self._two_phase.decided_without(xid, decode_prepared_head(run.content).user)
        self._raise_link(link)

    def _raise_link(self, link: tuple[bytes, int]) -> None:
        """Write a link's number beside a part, so that no part is taken twice."""
        position = self._release_queue.write(LINKS, [encode_links({link[0]: link[1]})], vital=True)
        # Only a start from before the next checkpoint reads it, and gets deleted records from there on, too.
        self._release_queue.doom([position])


def hold_views(found: ServerPreparedTransaction, views: list[tuple[Queue, QueueRun]]) -> None:
    """Have a transaction hold messages that have become visible, and that no consumer gets."""
    for queue, view in views:
        rows = [row for row, state in enumerate(view.states) if state == UNACKED]
        if rows:
            spans = [RowSpan(view, part.start, part.stop, part.step) for part in pieces(rows)]
            found.transaction.add_spans(queue, spans)
