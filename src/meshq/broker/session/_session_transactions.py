"""The transactions of one session, by the numbers that its client gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from meshq import limits
from meshq.address import parse_target
from meshq.broker.access._access import permit_replies, permit_sending
from meshq.broker.catalog._names import check_sendable
from meshq.broker.ingress._ingress import MARK_RECORD_BYTES, PART_RECORD_BYTES
from meshq.broker.ingress._judged_ids import check_network_ids
from meshq.broker.queue._run import StoredRun
from meshq.broker.staging._written_stages import WrittenStages
from meshq.broker.transactions._transaction import ServerTransaction, Work
from meshq.broker.work._fair_scheduler import CostlyScan
from meshq.broker.work._long_operations import DiskSpaceWait, FairTurnWait, Steps, Values
from meshq.errors import MeshqError, UsageError
from meshq.ids import check_xid
from meshq.wire import FLAG_DURABLE, Frame, RunBytes, Transact, check_run, decline, header_of, violation

if TYPE_CHECKING:
    from meshq.broker.catalog._router import Router
    from meshq.broker.log._release_queue import ReleaseQueue
    from meshq.broker.queue._queue_machine import QueueConsumer
    from meshq.broker.session._principal import Principal
    from meshq.broker.session._session_calls import SessionCalls
    from meshq.broker.settlement._redelivery import Redelivery
    from meshq.broker.transactions import TransactionManager

#: What a transaction takes in the journal beside its runs, at most: for each message that it sends or acknowledges; for
#: each run; and for each queue that a run may come to.
_ROW_BYTES: Final = 128
_RUN_BYTES: Final = limits.KIB
_QUEUE_BYTES: Final = PART_RECORD_BYTES + MARK_RECORD_BYTES
#: Bytes that the records of two phases add for each run; and what may be added while it waits.
_MORE_BYTES: Final = 256


class SessionTransactions:
    """The open transactions of one session."""

    def __init__(
        self,
        principal: Principal,
        calls: SessionCalls,
        transactions: TransactionManager,
        *,
        router: Router,
        release_queue: ReleaseQueue,
        redelivery: Redelivery,
    ) -> None:
        self._principal = principal
        self._calls = calls
        self._transactions = transactions
        self._router = router
        self._release_queue = release_queue
        self._redelivery = redelivery
        self._stages = WrittenStages(principal, transactions.stages, release_queue)
        self._open: dict[int, ServerTransaction] = {}
        # Why the node has rolled some back, by number; the oldest first.
        self._ended: dict[int, str] = {}
        #: What a client may ask for, by name, and what it gives with that.
        self.operations: dict[str, tuple[Callable[..., Values | Steps | None], dict[str, type]]] = {
            "commit": (self.commit, {"transaction": int, "sent": int, "acked": int}),
            "roll_back": (self.roll_back, {"transaction": int}),
            "look_at_transaction": (self.look_at, {"transaction": int}),
            "prepare": (self.prepare, {"transaction": int, "sent": int, "acked": int, "xid": bytes}),
            "commit_prepared": (self.commit_prepared, {"xid": bytes}),
            "roll_back_prepared": (self.roll_back_prepared, {"xid": bytes}),
            "recover": (self.recover, {"after": bytes}),
            **self._stages.operations,
        }

    def operate(self, operation: str, arguments: Values) -> Values | Steps:
        """Do an operation of a client, or return its steps.

        Raises:
            UsageError: the arguments don't fit.
            MeshqError: as the operation.
        """
        work, types = self.operations[operation]
        if {name: type(value) for name, value in arguments.items()} != types:
            wanted = ", ".join(f"{name} ({kind.__name__})" for name, kind in types.items())
            raise UsageError(f"{operation} has {wanted}")
        done = partial(work, **arguments)
        find = self._finding(operation, arguments)
        return (done() if find is None else self._when_it_can(find, done)) or {}

    def _finding(self, operation: str, arguments: Values) -> Callable[[], ServerTransaction | None] | None:
        """Return a function that finds the transaction of an operation, if its counts agree with the client.

        Raises:
            SettingsError: the id for a prepared transaction is not valid.
        """
        if operation == "commit_prepared":
            user = self._principal.owner[1]
            return lambda: self._transactions.two_phase.prepared_by(arguments["xid"], user)
        if operation not in ("commit", "prepare"):
            return None
        if operation == "prepare":
            # Else filters would be asked for nothing.
            check_xid(arguments["xid"])

        def find() -> ServerTransaction | None:
            found = self._open.get(arguments["transaction"])
            wanted = arguments["sent"], arguments["acked"]
            return found if found is not None and (found.sent, found.acked) == wanted else None

        return find

    def _when_it_can(
        self, find: Callable[[], ServerTransaction | None], work: Callable[[], Values | Steps | None]
    ) -> Values | Steps | None:
        """Do an operation after costly filters were asked about the transaction's messages, in steps, and there is
        disk space."""
        found, release_queue = find(), self._release_queue
        if found is None:
            return work()
        costly = self._costly(found)
        if costly is None and not release_queue.queued and self._most(found) <= release_queue.large_bytes:
            return work()
        return self._waiting(find, costly, work)

    def _costly(self, found: ServerTransaction) -> CostlyScan | None:
        return self._transactions.costly(self._principal.owner, found)

    def _most(self, transaction: ServerTransaction) -> int:
        """Bytes that its records don't exceed, without a look at any of them."""
        queues = min(len(self._router.by_number), limits.ALL_QUEUES_PER_ADDRESS_MAX)
        messages, runs = transaction.sent + transaction.acked, len(transaction.work) + 1
        return transaction.size_bytes + _ROW_BYTES * messages + (_RUN_BYTES + _QUEUE_BYTES * queues) * runs

    def _waiting(
        self,
        find: Callable[[], ServerTransaction | None],
        costly: CostlyScan | None,
        work: Callable[[], Values | Steps | None],
    ) -> Steps:
        found, release_queue, ready = find(), self._release_queue, False
        while found is not None:
            if self._principal.ended:
                # Nobody waits for it; what is prepared is there still.
                self._transactions.forget_verdicts(found)
                yield {}
                return
            if ready:
                break
            if costly is not None:
                yield FairTurnWait(
                    self._principal.owner, self._principal, costly, partial(self._is_wanted, found, find)
                )
            elif release_queue.queued or self._most(found) > release_queue.large_bytes:
                with suppress(MeshqError):
                    # Why it can't be weighed is told by its commit.
                    size = self._transactions.weigh(found) + _MORE_BYTES * (len(found.work) + 16)
                    yield DiskSpaceWait(size)
            before, costly, found = costly, None, find()
            if found is not None:
                # There may be others by now.
                costly = self._costly(found)
            ready = before is None and costly is None
        done = work()
        yield done if isinstance(done, dict) else {}

    def _is_wanted(self, found: ServerTransaction, find: Callable[[], ServerTransaction | None]) -> bool:
        wanted = not self._principal.ended and find() is found
        if wanted:
            # Its client waits for this: however long one run takes, it is not idle.
            self._transactions.used(found)
        return wanted

    def transact(self, frame: Frame) -> None:
        """A run that a transaction sends.

        Raises:
            RemoteProtocolError: the client broke the protocol; the session must be ended.
        """
        header = header_of(frame, Transact)
        self._calls.begin(frame)
        content = RunBytes(frame.count, frame.table, 0, frame.body)  # type: ignore[arg-type]
        kinds = check_run(content)
        if not header.transaction or not header.number or header.number + frame.count >= 1 << 63:
            raise violation("bad_number", "a transaction, and its messages, are numbered from 1 on")

        def take() -> dict[str, Any] | Steps:
            target = parse_target(header.address)
            check_sendable(target.address)
            check_network_ids(content, kinds)
            staged = header.transaction in self._stages
            if not staged:
                # A stage asks once for each target.
                permit_sending(self._principal, target)
            if self._principal.rights is not None:
                permit_replies(self._principal, content, kinds)
            run = self._run_of(frame, header, content)
            if staged:
                return self._stages.take(header.transaction, header.sent, run, target)
            transaction = self._open.get(header.transaction)
            if (transaction.sent if transaction is not None else 0) != header.sent:
                self._drop(header.transaction)
                raise self._lost(header.transaction, "the node did not have all that it had sent")
            try:
                self._transactions.add(transaction or self._begin(header.transaction), Work(run, target, kinds))
            except MeshqError:
                self._drop(header.transaction)
                raise
            return {}

        self._calls.answer_now(frame, take)

    def _run_of(self, frame: Frame, header: Transact, content: RunBytes) -> StoredRun:
        run = StoredRun(
            parse_target(header.address).address,
            content,
            durable=bool(frame.flags & FLAG_DURABLE) and self._release_queue.durable,
            producer=header.producer,
            number=header.number,
            stamp=frame.stamp,
        )
        run.user = self._principal.owner[1]
        return run

    def settle(self, consumer: QueueConsumer, ranges: Sequence[tuple[int, int]], number: int) -> None:
        """Messages that a transaction acknowledges.  If it can't take them it is rolled back, which its commit tells.

        Raises:
            RemoteProtocolError: a tag was not given or is settled already.
        """
        queue = consumer.queue
        for first, last in ranges:
            spans = consumer.take(first, last)
            transaction = self._open.get(number)
            try:
                transaction = transaction or self._begin(number)
                transaction.check_limits(last - first + 1, 0)
            except MeshqError:
                self._drop(number)
                self._redelivery.return_spans(queue, spans)
            else:
                transaction.add_spans(queue, spans)
                self._transactions.used(transaction)

    def _begin(self, number: int) -> ServerTransaction:
        if len(self._open) >= limits.TRANSACTIONS_MAX:
            raise decline("too_many", f"a session has at most {limits.TRANSACTIONS_MAX} open transactions")
        transaction = self._transactions.begin(partial(self._forget, number))
        self._open[number] = transaction
        return transaction

    def _forget(self, number: int, why: str) -> None:
        self._open.pop(number, None)
        self._ended[number] = why
        if len(self._ended) > limits.TRANSACTIONS_MAX:
            del self._ended[next(iter(self._ended))]

    def _lost(self, number: int, seen: str) -> MeshqError:
        """The error of a transaction that is not there, or not all of it.  ``seen``: from what that is seen."""
        return decline("rolled_back", self._ended.get(number, seen))

    def _drop(self, number: int) -> None:
        """Roll back all of a transaction that is open."""
        transaction = self._open.pop(number, None)
        if transaction is not None:
            self._transactions.roll_back(transaction)

    def commit(self, transaction: int, sent: int, acked: int) -> None:
        """All of it counts, if it is all that its client has done: so many messages sent, and acknowledged.

        Raises:
            TransactionRolledBackError: it is not.
            DuplicateError, NotFoundError, UsageError, AddressFullError: it was rolled back.
        """
        found = self._take(transaction, sent, acked)
        if found is not None:
            self._transactions.commit(found)

    def _take(self, number: int, sent: int, acked: int) -> ServerTransaction | None:
        transaction = self._open.get(number)
        if transaction is None and not sent and not acked:
            return None
        if transaction is None or (transaction.sent, transaction.acked) != (sent, acked):
            self._drop(number)
            raise self._lost(number, "the node no longer had all of its work")
        del self._open[number]
        return transaction

    # -- in two phases

    def prepare(self, transaction: int, sent: int, acked: int, xid: bytes) -> None:
        """Prepare a transaction: it waits for its decision, and no longer belongs to this session.

        Raises:
            TransactionRolledBackError: a part of the client's work is missing.
            DuplicateError, NotFoundError, UsageError, SecurityError, AddressFullError: it was rolled back.
        """
        found = self._take(transaction, sent, acked)
        transactions = self._transactions
        if found is None:
            found = transactions.begin(_nobody)
        transactions.two_phase.prepare(found, xid, self._principal.owner[1])

    def commit_prepared(self, xid: bytes) -> None:
        """Commit a prepared transaction; as ``TwoPhaseCommit.commit``."""
        self._transactions.two_phase.commit(check_xid(xid), self._principal)

    def roll_back_prepared(self, xid: bytes) -> Steps:
        """Roll back a prepared transaction; as ``TwoPhaseCommit.roll_back``."""
        for step in self._transactions.two_phase.roll_back(check_xid(xid), self._principal):
            yield step
            if self._principal.ended:
                # Nobody waits for it, and it is there still.
                yield {}
                return

    def recover(self, after: bytes) -> Values:
        """Return a page of this user's prepared transactions."""
        xids, more = self._transactions.two_phase.xids(self._principal.owner[1], after)
        return {"xids": [{"xid": xid} for xid in xids], "more": more}

    def look_at(self, transaction: int) -> None:
        """Its client is there, and wants to know whether it is.

        Raises:
            TransactionRolledBackError: it is not.
        """
        found = self._open.get(transaction)
        if transaction in self._stages:
            return
        if found is None:
            raise self._lost(transaction, "the node no longer has it")
        self._transactions.used(found)

    def roll_back(self, transaction: int) -> None:
        """Roll back an open transaction, or drop a stage."""
        if not self._stages.abandon(transaction):
            self._drop(transaction)

    def end(self) -> None:
        """The session is over: so are its transactions, and the stages that it has not prepared."""
        self._stages.end()
        for number in list(self._open):
            self._drop(number)


def _nobody(why: str) -> None:
    """Do nothing: no client is told."""
