"""The transactions of a node: commit, rollback, their memory, and their timeout."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from meshq import limits
from meshq.address import Target
from meshq.broker.catalog._address_quota import is_refused
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._filters_at import filters_at
from meshq.broker.ingress._held_rows import HeldRows
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._timers import TimerService
from meshq.broker.queue._verdicts import AskedFilters, cost_of, judging, unasked, work_of
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.settlement._redelivery import Redelivery
from meshq.broker.staging._stages import Stages
from meshq.broker.transactions._transaction import ServerTransaction, Work
from meshq.broker.transactions._transaction_transfer import TransactionTransfer
from meshq.broker.transactions._two_phase import TwoPhaseCommit
from meshq.broker.work._fair_scheduler import CostlyScan, FairScheduler, Owner
from meshq.errors import AddressFullError, MeshqError, invariant
from meshq.selector import Filter
from meshq.wire import KIND_ID, decline, duplicate_ids

#: Bytes that a span of acknowledged rows, or one of the records of a commit, takes in the journal at most.
_SPAN_RECORD_BYTES: Final = 64


class TransactionManager:
    """Commits and rolls back."""

    def __init__(
        self,
        ingress: Ingress,
        definitions: Definitions,
        acknowledger: Acknowledger,
        redelivery: Redelivery,
        fair_scheduler: FairScheduler,
        *,
        stages: Stages,
        release_queue: ReleaseQueue,
        memory: MemoryBound,
        timers: TimerService,
        event_bus: EventBus,
        schedule_dispatch: Callable[[Queue], None],
        timeout_s: float,
        held_rows: HeldRows,
        warn: Callable[[str, str], None],
    ) -> None:
        self._ingress = ingress
        self._definitions = definitions
        self._router = definitions.router
        self._acknowledger = acknowledger
        self._redelivery = redelivery
        self._fair_scheduler = fair_scheduler
        self._release_queue = release_queue
        self._memory = memory
        self._schedule_dispatch = schedule_dispatch
        self._timeout_s = timeout_s
        # Seconds in which one was open, as whoever has a clock counts them.
        self._ticks = 0
        # Those that are open, as an ordered set, and whom to tell when one is too old.
        self._open: dict[ServerTransaction, Callable[[str], None]] = {}
        #: Bytes of their runs, and of those that are prepared.
        self.size_bytes: int = 0
        # Bytes that may be taken by what filters say of those that are being committed or prepared.
        self._expected_bytes = 0
        #: The transactions of many writers that are decided together.
        self.stages: Stages = stages
        self.committed: int = 0
        self.rolled_back: int = 0
        #: Those that are prepared.
        self.two_phase: TwoPhaseCommit = TwoPhaseCommit(
            self,
            ingress,
            definitions,
            release_queue,
            timers=timers,
            event_bus=event_bus,
            schedule_dispatch=schedule_dispatch,
        )
        #: Hands prepared transactions over to other nodes, and takes theirs.
        self.transfer: TransactionTransfer = TransactionTransfer(
            self.two_phase,
            ingress,
            release_queue,
            definitions.peers,
            held=held_rows,
            charge=self.charge,
            warn=warn,
        )

    def __len__(self) -> int:
        return len(self._open)

    # -- life

    def begin(self, on_ended: Callable[[str], None]) -> ServerTransaction:
        """A transaction has its first work.  ``on_ended``: told why, if the node rolls it back by itself."""
        transaction = ServerTransaction()
        self._open[transaction] = on_ended
        self.used(transaction)
        return transaction

    def used(self, transaction: ServerTransaction) -> None:
        """Its client has done something with it."""
        transaction.used_at = self._ticks

    def tick(self) -> None:
        """Roll back transactions that were idle for too long; called each second."""
        self._ticks += 1
        for transaction, on_ended in list(self._open.items()):
            # The second in which it was used may have been all but over.
            if self._ticks - transaction.used_at > self._timeout_s:
                self.roll_back(transaction)
                on_ended(f"it timed out: it was idle for longer than transaction_timeout={self._timeout_s:g} seconds")

    def add(self, transaction: ServerTransaction, work: Work) -> None:
        """A run of a transaction has come.

        Raises:
            UsageError, NotFoundError, AddressFullError: it is not taken.
        """
        size = work.run.size_bytes
        transaction.check_limits(work.run.content.rows, size)
        bound = self._memory.limit_bytes // limits.TRANSACTIONS_MEMORY_SHARE
        if self.size_bytes + size > bound:
            raise AddressFullError(f"open transactions have {self.size_bytes} bytes of memory; they may have {bound}")
        self._definitions.address_for(work.target)
        transaction.add_run(work)
        self.size_bytes += size
        self._memory.use(size)
        self.used(transaction)

    def keep(self, transaction: ServerTransaction) -> None:
        """Keep a prepared transaction: it has no timeout."""
        del self._open[transaction]

    def take_up(self, transaction: ServerTransaction) -> None:
        """Restore a transaction that was prepared in an earlier life."""
        self.charge(transaction.size_bytes)

    def charge(self, size_bytes: int) -> None:
        """Count bytes of runs that wait, or with a negative number fewer of these."""
        self.size_bytes += size_bytes
        if size_bytes > 0:
            self._memory.use(size_bytes)
        else:
            self._memory.released(-size_bytes)

    def _end(self, transaction: ServerTransaction) -> None:
        """End a transaction, and free its memory."""
        self._open.pop(transaction, None)
        self.forget_verdicts(transaction)
        transaction.work = []
        size, transaction.size_bytes = transaction.size_bytes, 0
        self.size_bytes -= size
        self._memory.released(size)

    # -- how it ends

    def roll_back(self, transaction: ServerTransaction) -> None:
        """Drop the sends, and return the acknowledged messages to their queues."""
        self._end(transaction)
        self.rolled_back += 1
        for queue, spans in transaction.take_spans():
            self._redelivery.return_spans(queue, spans)
            self._schedule_dispatch(queue)

    def commit(self, transaction: ServerTransaction) -> None:
        """Place and settle all of it in one step; it is durable, and visible, as one.

        Raises:
            DuplicateError, NotFoundError, UsageError, AddressFullError: it was rolled back.
            JournalBrokenError: the disk has failed.
        """
        try:
            self.check_ids(transaction)
            size = self.weigh(transaction)
            with self._release_queue.atomic_batch(size):
                later = self.apply(transaction)
        except MeshqError:
            self.roll_back(transaction)
            raise
        self._acknowledger.move_ids(later)
        self.committed += 1

    # -- what filters say of it

    def costly(self, owner: Owner, transaction: ServerTransaction) -> CostlyScan | None:
        """Return the steps in which filters judge the transaction's messages before a commit; None: no steps are
        needed, or the commit will be refused."""
        if not self._router.sieves:
            return None
        wanted = self._unasked(transaction, transaction.judged)
        if not wanted or self._is_refused(transaction):
            return None
        self._expect(transaction)
        steps = self._judging(transaction, wanted)
        work = self._work_of(transaction, wanted)
        if not self._fair_scheduler.afford(owner, work):
            return CostlyScan(steps, work)
        # It is weighed, and then placed: each message is put to filters once.
        for _ in steps:
            pass
        return None

    def _unasked(
        self, transaction: ServerTransaction, known: Mapping[Target, Mapping[Filter, None]]
    ) -> dict[Target, list[Filter]]:
        """By target: the filters without a verdict about the transaction's messages."""
        missing: dict[Target, list[Filter]] = {}
        for target in transaction.targets:
            there = known.get(target, {})
            missing[target] = [one for one in filters_at(self._router, target) if one not in there]
        return {target: filters for target, filters in missing.items() if filters}

    def _check_verdicts(self, transaction: ServerTransaction) -> int:
        """Bytes that may be taken by verdicts which a transaction is still to get.

        Raises:
            AddressFullError: there is no memory for so much.
        """
        if not self._router.sieves:
            return 0
        wanted = self._unasked(transaction, transaction.expected)
        more = sum(transaction.verdict_bytes_of(target, len(filters)) for target, filters in wanted.items())
        bound = self._memory.limit_bytes // limits.TRANSACTIONS_MEMORY_SHARE
        if more and self._expected_bytes + more > bound:
            text = f"what filters say of all that it sends would take {more} bytes of memory beside"
            raise AddressFullError(f"{text} {self._expected_bytes} of others; all together may have {bound}")
        return more

    def _expect(self, transaction: ServerTransaction) -> None:
        """Reserve memory for the verdicts of all filters."""
        more = self._check_verdicts(transaction)
        for target, filters in self._unasked(transaction, transaction.expected).items():
            transaction.expected.setdefault(target, {}).update(dict.fromkeys(filters))
        transaction.expected_bytes += more
        self._expected_bytes += more

    def _work_of(self, transaction: ServerTransaction, wanted: dict[Target, list[Filter]]) -> float:
        """How much work it is, as far as that is needed to know that it is more than a step."""
        costs = {target: cost_of(filters) for target, filters in wanted.items()}
        work = 0.0
        for run, target, _ in transaction.work:
            if target in costs:
                work += work_of(run, costs[target])
            if work > limits.SCAN_MESSAGES_MAX:
                break
        return work

    def _is_refused(self, transaction: ServerTransaction) -> bool:
        try:
            self.check_ids(transaction)
            self._check_verdicts(transaction)
        except MeshqError:
            return True
        names = dict.fromkeys(target.address for target in transaction.targets)
        found = map(self._router.addresses.get, names)
        scarce = self._memory.scarce
        return any(is_refused(one.quota, scarce=scarce, together=True) for one in found if one is not None)

    def _judging(self, transaction: ServerTransaction, wanted: dict[Target, list[Filter]]) -> Iterator[None]:
        together = {target: AskedFilters(filters) for target, filters in wanted.items()}
        costs = {target: cost_of(filters) for target, filters in wanted.items()}
        left: float = limits.SCAN_MESSAGES_MAX
        forgets = transaction.forgets
        for run, target, kinds in list(transaction.work):
            if target not in wanted:
                continue
            # Many small runs are one step.
            work = work_of(run, costs[target])
            if left < work:
                yield None
                left = limits.SCAN_MESSAGES_MAX
            left -= work
            if not run.verdicts:
                self._ingress.prepare(run, kinds)
            # An earlier commit may have come to its end in the middle.
            filters = unasked(run, wanted[target])
            if not filters:
                continue
            asked = together[target] if len(filters) == len(wanted[target]) else AskedFilters(filters)
            yield from judging(run, filters, asked)
            size = run.verdicts[-1].size_bytes
            transaction.verdict_bytes += size
            self._memory.use(size)
            self.used(transaction)
        if transaction.forgets != forgets:
            # Somebody else has committed it meanwhile, or wanted to, and it was forgotten: it is asked for anew.
            return
        for target, filters in wanted.items():
            transaction.judged.setdefault(target, {}).update(dict.fromkeys(filters))

    def forget_verdicts(self, transaction: ServerTransaction) -> None:
        """Drop the verdicts about the transaction's messages."""
        self._expected_bytes -= transaction.expected_bytes
        self._memory.released(transaction.verdict_bytes)
        transaction.forget_verdicts()

    def weigh(self, transaction: ServerTransaction) -> int:
        """Bytes that its records may take.

        Raises:
            NotFoundError, AddressFullError, JournalBrokenError: it can't be placed.
        """
        self._check_verdicts(transaction)
        spans = sum(map(len, transaction.acked_in_transaction.values())) + len(transaction.acked_in_transaction) + 1
        ingress = self._ingress
        size = _SPAN_RECORD_BYTES * spans + ingress.weigh_owner_changes(run for run, _, _ in transaction.work)
        return size + sum(ingress.weigh(*work) for work in transaction.work)

    def apply(self, transaction: ServerTransaction) -> list[StoredRun]:
        """Place and settle all of it, within ``ReleaseQueue.atomic_batch``; returns the runs for ``move_ids``."""
        for run, target, kinds in transaction.work:
            self._ingress.place(run, target, kinds, _nothing, weighed=True)
        self._end(transaction)
        later: list[StoredRun] = []
        for queue, spans in transaction.take_spans():
            invariant(queue.number in self._router.by_number, "a queue of which something is held is there")
            later += self._acknowledger.settle_together(queue, spans)
            self._schedule_dispatch(queue)
        return later

    def move_ids(self, runs: Sequence[StoredRun]) -> None:
        """Keep the duplicate ids of runs in records of their own, after ``apply``."""
        self._acknowledger.move_ids(runs)

    def check_ids(self, transaction: ServerTransaction) -> None:
        """Whether one of its duplicate ids is known where that rejects it.

        Raises:
            DuplicateError: one is.
        """
        seen: dict[str, set[bytes]] = {}
        for run, target, kinds in transaction.work:
            if not kinds & KIND_ID:
                continue
            address, _ = self._definitions.address_for(target)
            settings = self._router.settings(address.name)
            if settings.duplicate_in_transaction == "skip" or not address.duplicates.capacity:
                continue
            known = seen.setdefault(address.name, set())
            ids = duplicate_ids(run.content)
            fresh = address.duplicates.fresh_rows(ids, durable=run.durable)
            given = [duplicate_id for duplicate_id in ids if duplicate_id]
            if (fresh is not None and len(fresh) < len(ids)) or not known.isdisjoint(given):
                raise decline("duplicate", f"at {address.name!r}; nothing of the transaction was applied")
            known.update(given)

    def leave_queue(self, queue: Queue) -> None:
        """A queue is being deleted: transactions that have acknowledged messages of it are rolled back."""
        for transaction, on_ended in list(self._open.items()):
            if queue in transaction.acked_in_transaction:
                self.roll_back(transaction)
                on_ended(f"the queue {queue.name!r}, of which it had acknowledged messages, was deleted")


def _nothing() -> None:
    """Do nothing: no confirm is needed."""
