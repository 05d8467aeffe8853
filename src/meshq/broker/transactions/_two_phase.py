"""Two-phase transactions: prepared here, and decided later, perhaps by another session and in another life.

What is prepared is in the journal: which rows it holds, and the runs that it sends.  Everything that could refuse it
was asked before; what has changed since makes a commit wait, and never undoes it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final, Protocol

from meshq import limits
from meshq.address import TEMPORARY, Target
from meshq.broker.access._access import Asker, permit_making
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._diverts import DivertRule
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._timers import TimerService
from meshq.broker.records import (
    DECIDED,
    PREPARED,
    WAITING,
    DecidedRecord,
    PreparedRecord,
    WaitingRecord,
    encode_decided,
    encode_prepared,
    encode_waiting_head,
)
from meshq.broker.settlement._settled_row import settled_row
from meshq.broker.transactions._decisions import Decision, Decisions
from meshq.broker.transactions._prepared import ServerPreparedTransaction
from meshq.broker.transactions._prepared_sends import PreparedSends
from meshq.broker.transactions._transaction import ServerTransaction, Work
from meshq.broker.work._long_operations import FaultInWait, Steps
from meshq.errors import AddressFullError, MeshqError, NotFoundError, SecurityError, UsageError
from meshq.notifications import TransactionDecided, TransactionPrepared
from meshq.wire import decline

#: Bytes of the records of a transaction and its decision, beside their names, rows and runs; and for each run.
_RECORDS_BYTES: Final = 256
_RUN_BYTES: Final = 128
#: Bytes of xids in one answer: well under what the header of a frame may have.
_XIDS_BYTES_MAX: Final = 3_000


class OpenTransactions(Protocol):
    """All transactions of a node."""

    committed: int

    def check_ids(self, transaction: ServerTransaction) -> None:
        """Whether a duplicate id is known where that rejects it.  Raises: DuplicateError."""

    def weigh(self, transaction: ServerTransaction) -> int:
        """Bytes that its records may take."""

    def apply(self, transaction: ServerTransaction) -> list[StoredRun]:
        """Place and settle all of it; returns the runs for ``move_ids``."""

    def move_ids(self, runs: Sequence[StoredRun]) -> None:
        """Keep the duplicate ids of runs in records of their own."""

    def roll_back(self, transaction: ServerTransaction) -> None:
        """Drop the sends, and return the acknowledged messages to their queues."""

    def keep(self, transaction: ServerTransaction) -> None:
        """Keep a prepared transaction: it has no timeout."""

    def forget_verdicts(self, transaction: ServerTransaction) -> None:
        """Drop the verdicts about the transaction's messages."""

    def take_up(self, transaction: ServerTransaction) -> None:
        """Restore a transaction that was prepared in an earlier life."""


class TwoPhaseCommit:
    """The prepared transactions of a node, and the latest decisions."""

    def __init__(
        self,
        transactions: OpenTransactions,
        ingress: Ingress,
        definitions: Definitions,
        release_queue: ReleaseQueue,
        *,
        timers: TimerService,
        event_bus: EventBus,
        schedule_dispatch: Callable[[Queue], None],
    ) -> None:
        self._transactions = transactions
        self._ingress = ingress
        self._definitions = definitions
        self._router = definitions.router
        self._release_queue = release_queue
        self._timers = timers
        self._event_bus = event_bus
        self._schedule_dispatch = schedule_dispatch
        # The oldest first.
        self._by_xid: dict[bytes, ServerPreparedTransaction] = {}
        # Those that are rolled back as soon as that is durable; an ordered set.
        self._leaving: dict[ServerPreparedTransaction, None] = {}
        #: By link and xid: transactions that other nodes hand over, of which not all has come yet.
        self.arriving: dict[tuple[bytes, bytes], ServerPreparedTransaction] = {}
        self._sends = PreparedSends(definitions.router.diverts)
        self.decisions: Decisions = Decisions()

    def __len__(self) -> int:
        return len(self._by_xid)

    def __iter__(self) -> Iterator[ServerPreparedTransaction]:
        return iter(self._by_xid.values())

    def prepared_by(self, xid: bytes, user: str) -> ServerTransaction | None:
        """Return a user's prepared transaction of this id; an in-process client, without a name, may see any."""
        found = self._by_xid.get(xid)
        if found is None or found.forward:
            return None
        return found.transaction if user in ("", found.user) else None

    def holder(self, queue: Queue) -> ServerPreparedTransaction | None:
        """Return a prepared transaction that has unacked messages of a queue, or None."""
        if not queue.counts.acked_in_transaction:
            return None
        known = (*self, *self._leaving, *self.arriving.values())
        return next((one for one in known if queue in one.transaction.acked_in_transaction), None)

    def check_free(self, queue: Queue) -> None:
        """See that nothing in a queue waits for a decision, and nothing that is to come there.

        Raises:
            BusyError: something does.
        """
        if (holder := self.holder(queue)) is not None:
            raise _undecided(f"the queue {queue.name!r} has messages of", holder)
        if (sender := self._sends.for_queue(queue)) is not None:
            raise _undecided(f"the queue {queue.name!r} is to get messages of", sender)

    def check_divert(self, rule: DivertRule) -> None:
        """See that nothing waits for a decision that a divert may take.

        Raises:
            BusyError: something does.
        """
        if (sender := self._sends.for_divert(rule)) is not None:
            raise _undecided(f"the divert {rule.name!r} is to get messages of", sender)

    def keeps(self, queue: Queue) -> bool:
        """Whether a queue without consumers, which would go by itself, stays until a decision."""
        # A temporary queue, or a subscription that isn't durable, is of no use to anybody else.
        return self.holder(queue) is not None or (queue.spec.auto_created and self._sends.for_queue(queue) is not None)

    def xids(self, user: str, after: bytes) -> tuple[list[bytes], bool]:
        """Some of the xids that wait for this user, in order, behind ``after``; and whether there are more."""
        known = sorted(one.xid for one in self if one.xid > after and user in ("", one.user) and not one.forward)
        found: list[bytes] = []
        size = 0
        for xid in known:
            size += len(xid) + 16
            if size > _XIDS_BYTES_MAX:
                break
            found.append(xid)
        return found, len(found) < len(known)

    # -- preparing

    def prepare(self, transaction: ServerTransaction, xid: bytes, user: str) -> None:
        """From here on it waits for its decision.

        Raises:
            UsageError: the xid is in use; it was rolled back.
            SecurityError: the xid is another user's; it was rolled back.
            DuplicateError, NotFoundError, AddressFullError: it could not be committed; it was rolled back.
            JournalBrokenError: the disk has failed.
        """
        try:
            self._check_unused(xid, user)
            self._transactions.check_ids(transaction)
            prepared = ServerPreparedTransaction(xid, user, self._timers.now_ms, transaction)
            with self._release_queue.atomic_batch(self._weigh(prepared)):
                self._write(prepared)
        except MeshqError:
            self._transactions.roll_back(transaction)
            raise
        self._transactions.keep(transaction)
        self._transactions.forget_verdicts(transaction)
        self._by_xid[xid] = prepared
        self._sends.add(prepared)
        about = {"sent": transaction.sent, "acked": transaction.acked}
        self._event_bus.emit(TransactionPrepared, xid=xid, user=user, **about)

    def _check_unused(self, xid: bytes, user: str) -> None:
        known = self._find(xid, user)
        if any(one == xid for _, one in self.arriving):
            raise UsageError(f"a node that leaves hands over a transaction {xid!r}: take another xid")
        if isinstance(known, ServerPreparedTransaction):
            raise UsageError(f"a transaction is prepared as {xid!r}: decide it first, or take another xid")
        if len(self) >= limits.PREPARED_MAX:
            raise decline("too_many", f"the node has its {limits.PREPARED_MAX} prepared transactions")

    def _weigh(self, prepared: ServerPreparedTransaction) -> int:
        """The bytes that the records of a prepared transaction, and of its commit, may take."""
        names = len(prepared.xid) + len(prepared.user.encode())
        more = _RECORDS_BYTES + names + _RUN_BYTES * len(prepared.transaction.work)
        return self._transactions.weigh(prepared.transaction) + more

    def _write(self, prepared: ServerPreparedTransaction) -> None:
        transaction = prepared.transaction
        acked = tuple(
            settled_row(queue, span)
            for queue, spans in transaction.acked_in_transaction.items()
            for span in spans
            if queue.durable and (span.view.run.origin or span.view.run).position
        )
        waiting = [work for work in transaction.work if work.run.durable]
        record = PreparedRecord(prepared.xid, prepared.user, prepared.prepared_ms, acked, len(waiting))
        # The xid may be used again: what was decided of it before is over.
        older = self.decisions.forget(prepared.xid)
        position = self._release_queue.write(PREPARED, [encode_prepared(record)], deletes=older)
        prepared.positions.append(position)
        for run, target, _ in waiting:
            content = run.content
            said = WaitingRecord(position, run.producer, run.number, run.stamp, target.address, target.queue, content)
            parts = [encode_waiting_head(said), content.table, content.body]
            prepared.positions.append(self._release_queue.write(WAITING, parts))

    # -- deciding

    def commit(self, xid: bytes, asker: Asker) -> None:
        """All of it counts.

        One that nobody knows is taken for committed, and that is remembered as if it were decided.

        Raises:
            RetryTransactionError: it can't be done now, and is prepared still; or nobody knows it, and the disk has no
                room to remember it.
            TransactionRolledBackError: it was rolled back.
            SecurityError: it is another user's.
            JournalBrokenError: the disk has failed.
        """
        found = self._find(xid, asker.owner[1])
        self._check_here(xid, found)
        if isinstance(found, Decision) and not found.committed:
            raise decline("rolled_back", f"somebody has decided so of {xid!r}")
        if not isinstance(found, ServerPreparedTransaction):
            if found is None:
                try:
                    self._remember(xid, asker.owner[1], committed=True)
                except AddressFullError as error:
                    raise decline("retry_transaction", _unknown(xid)) from error
            return
        self._leave_out_temporary(found)
        targets = [target for _, target, _ in found.transaction.work]
        try:
            for _, target, _ in found.transaction.work:
                permit_making(asker, target)
            with self._release_queue.atomic_batch(self._weigh(found)):
                later = self._transactions.apply(found.transaction)
                self._decide(found, targets, committed=True)
        except (AddressFullError, NotFoundError, UsageError, SecurityError) as error:
            self._transactions.forget_verdicts(found.transaction)
            raise decline("retry_transaction", str(error)) from error
        self._transactions.move_ids(later)
        self._transactions.committed += 1
        self._tell(found, committed=True)

    def roll_back(self, xid: bytes, asker: Asker) -> Steps:
        """Roll back a prepared transaction, in steps: returned messages must be read back first.

        An unknown transaction counts as rolled back, and that is remembered as a decision.

        Raises:
            UsageError: it was committed.
            RetryTransactionError: it is at another node, or on its way there or here.
            SecurityError: it is another user's.
            AddressFullError: it is unknown, and the disk has no space to remember the decision.
            JournalBrokenError: the disk has failed.
        """
        found = self._find(xid, asker.owner[1])
        while (
            isinstance(found, ServerPreparedTransaction)
            and not found.forward
            and (absent := found.transaction.absent()) is not None
        ):
            yield FaultInWait(*absent)
            found = self._find(xid, asker.owner[1])
        self._check_here(xid, found)
        if isinstance(found, Decision) and found.committed:
            raise UsageError(f"the transaction {xid!r} was committed")
        if isinstance(found, ServerPreparedTransaction):
            self._decide(found, [target for _, target, _ in found.transaction.work], committed=False)
            # Nobody gets what a crash could still bring back as prepared.
            self._leaving[found] = None
            self._release_queue.when_all_is_durable(partial(self._let_go, found))
            self._tell(found, committed=False)
        elif found is None:
            try:
                self._remember(xid, asker.owner[1], committed=False)
            except AddressFullError as error:
                raise AddressFullError(_unknown(xid)) from error
        yield {}

    def _tell(self, prepared: ServerPreparedTransaction, *, committed: bool) -> None:
        self._event_bus.emit(TransactionDecided, xid=prepared.xid, user=prepared.user, committed=committed)

    def _let_go(self, prepared: ServerPreparedTransaction) -> None:
        del self._leaving[prepared]
        self._transactions.roll_back(prepared.transaction)

    def _find(self, xid: bytes, user: str) -> ServerPreparedTransaction | Decision | None:
        """Find a prepared transaction or its decision; an in-process client, without a name, may see any.

        Raises:
            SecurityError: it is another user's.
        """
        found = self._by_xid.get(xid) or self.decisions.get(xid)
        if found is not None and user and found.user != user:
            raise decline("forbidden", f"the transaction {xid!r} is another user's")
        return found

    def _check_here(self, xid: bytes, found: ServerPreparedTransaction | Decision | None) -> None:
        """See that a transaction can be decided here.

        Raises:
            RetryTransactionError: it is at another node, or on its way there or here.
        """
        if isinstance(found, Decision) and found.where:
            raise decline("retry_transaction", f"it was handed over, and is decided at the node {found.where}")
        if isinstance(found, ServerPreparedTransaction) and found.forward:
            raise decline("retry_transaction", "this node leaves: it is on its way to another one")
        if any(known == xid for _, known in self.arriving):
            raise decline("retry_transaction", "a node that leaves hands it over: not all of it is here yet")

    def _decide(self, prepared: ServerPreparedTransaction, targets: list[Target], *, committed: bool) -> None:
        self._remember(prepared.xid, prepared.user, committed=committed, deletes=prepared.positions, vital=True)
        del self._by_xid[prepared.xid]
        self._sends.remove(prepared, targets)
        for target in targets:
            # It may have been what kept queues that go by themselves.
            for name in self._router.diverts.order(target.address):
                address = self._router.addresses.get(name)
                for queue in address.queues if address is not None else ():
                    self._schedule_dispatch(queue)

    def _leave_out_temporary(self, prepared: ServerPreparedTransaction) -> None:
        """Drop the sends to temporary queues that are gone: otherwise the transaction could never be committed."""
        if any(peer.gone == "away" for peer in self._definitions.peers.peers.values()):
            # They may be there.
            return
        kept: list[Work] = []
        gone: list[Target] = []
        for work in prepared.transaction.work:
            name = work.target.address
            if name.startswith(TEMPORARY) and name not in self._router.addresses and not self._router.bindings(name):
                self._ingress.unrouted += work.run.content.rows
                gone.append(work.target)
            else:
                kept.append(work)
        prepared.transaction.work = kept
        # The commit may still be refused; the next one doesn't know of them.
        self._sends.remove(prepared, gone)

    def _remember(
        self, xid: bytes, user: str, *, committed: bool, deletes: Sequence[int] = (), vital: bool = False
    ) -> None:
        """Remember a decision, also for later lives.

        Raises:
            AddressFullError: the disk is full, and the record is not vital; nothing changed.
            JournalBrokenError: the disk has failed.
        """
        record = encode_decided(DecidedRecord(xid, user, committed))
        deletes = [position for position in deletes if position]
        # Vital if it ends something: on a full disk, too, may be given back what is held.  Of what nobody knows there
        # may be any number, and the reserve is for those who drain.
        position = self._release_queue.write(DECIDED, [record], deletes=deletes, vital=vital)
        self._release_queue.doom(self.decisions.add(xid, Decision(user, committed, position)))

    # -- between nodes

    def known(self, xid: bytes) -> ServerPreparedTransaction | None:
        """Return the transaction that is prepared here under an xid, or None."""
        return self._by_xid.get(xid)

    def leave(self, prepared: ServerPreparedTransaction, forward: int) -> None:
        """Note that a transaction goes to the node of a store-and-forward queue: it is not decided here any more."""
        self._sends.remove(prepared, [target for _, target, _ in prepared.transaction.work])
        prepared.forward = forward

    def gone(self, prepared: ServerPreparedTransaction, decision: Decision) -> None:
        """Note that all of a transaction is on its way, and who decides it."""
        del self._by_xid[prepared.xid]
        self._release_queue.doom(self.decisions.add(prepared.xid, decision))

    def sends(self, prepared: ServerPreparedTransaction) -> None:
        """Note the targets of a transaction that is still arriving: their queues stay."""
        self._sends.add(prepared)

    def arrived(self, prepared: ServerPreparedTransaction) -> None:
        """Have a transaction decided here of which all has come.

        If one of the same user is prepared here under its xid, both are decided as one.
        """
        for key in [key for key, one in self.arriving.items() if one is prepared]:
            del self.arriving[key]
        self._release_queue.doom(self.decisions.forget(prepared.xid))
        known = self._by_xid.get(prepared.xid)
        if known is None:
            self._by_xid[prepared.xid] = prepared
            return
        targets = [target for _, target, _ in prepared.transaction.work]
        self._sends.remove(prepared, targets)
        known.join(prepared)
        self._sends.add(known)

    def decided_without(self, xid: bytes, user: str) -> None:
        """Remember the rollback of a transaction that was lost on its way with an older store of this node."""
        if self._by_xid.get(xid) is None:
            self._remember(xid, user, committed=False, vital=True)

    # -- over a restart

    def take_up(self, prepared: ServerPreparedTransaction) -> None:
        """Restore a transaction that was prepared in an earlier life."""
        self._sends.add(prepared)
        self._transactions.take_up(prepared.transaction)
        self.arrived(prepared)

    def take_up_arriving(self, prepared: ServerPreparedTransaction, link: bytes) -> None:
        """Restore a transaction of another node of which not all has come."""
        self._transactions.take_up(prepared.transaction)
        self._sends.add(prepared)
        self.arriving[link, prepared.xid] = prepared

    def statistics(self) -> list[dict[str, Any]]:
        """A row for each that is prepared, the oldest first."""
        now = self._timers.now_ms
        return [
            {
                "xid": one.xid.hex(),
                "user": one.user,
                "age": max(now - one.prepared_ms, 0) / 1000,
                "sent": one.transaction.sent,
                "acked": one.transaction.acked,
            }
            for one in self
        ]


def _undecided(what: str, prepared: ServerPreparedTransaction) -> MeshqError:
    return decline("undecided", f"{what} the transaction {prepared.xid!r}: commit it or roll it back")


def _unknown(xid: bytes) -> str:
    return f"the node does not know the transaction {xid!r}, and its disk has no room to remember what it is told of it"
