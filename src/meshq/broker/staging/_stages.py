"""The stages of a node: opened and prepared by writers, committed or dropped by batch, placed, and expired."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

import attrs

from meshq.address import Target
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._distribution_plan import Share
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._delivery_options import STAGED, DeliveryOptions
from meshq.broker.queue._run import StoredRun
from meshq.broker.queue._timers import TimerService
from meshq.broker.records._row_options import RowOptions
from meshq.broker.stages._ledger_machine import LedgerMachine, SinkFacts, StageFacts, StageMachine, Verdict
from meshq.broker.stages._stage_life import DROPPING, OPEN, PLACING
from meshq.broker.staging._memory_line import MemoryLine
from meshq.broker.staging._overwriting import Overwriting
from meshq.broker.staging._stage_placing import StagePlacing
from meshq.broker.work._long_operations import AnswerWait, LongOperation, Needs, Steps, Values
from meshq.errors import (
    AddressFullError,
    BusyError,
    ClosedError,
    CursorHeldError,
    JournalBrokenError,
    MeshqError,
    NotFoundError,
)
from meshq.notifications import BatchCommitted, StageExpired
from meshq.wire import decline

#: Errors of the disk, after which whoever looks after stages tries again, or the node ends.
_DISK_ERRORS: Final = (AddressFullError, JournalBrokenError, ClosedError)


class BatchDecision(NamedTuple):
    """The answer to a commit: whether the batch was committed before, and the messages that this call has committed."""

    already: bool
    messages: int


class Stages:
    """The stages and the batch ledger of a node."""

    def __init__(
        self,
        definitions: Definitions,
        ingress: Ingress,
        placing: StagePlacing,
        *,
        release_queue: ReleaseQueue,
        memory: MemoryBound,
        timers: TimerService,
        event_bus: EventBus,
        overwriting: Overwriting,
        schedule: Callable[[LongOperation], None],
    ) -> None:
        """``schedule`` begins a long operation."""
        self._definitions = definitions
        self._records = definitions.stages
        #: What is staged and what was decided.
        self.ledger: LedgerMachine = definitions.stages.ledger
        self._ingress = ingress
        self._placing = placing
        self._release_queue = release_queue
        self._memory = memory
        #: What is staged and waits for memory.
        self.memory_line: MemoryLine = MemoryLine(memory)
        self._timers = timers
        self._event_bus = event_bus
        self._overwriting = overwriting
        self._schedule = schedule
        # The sinks that are being placed, and the numbers of the stages that are being removed; an ordered set.
        self._under_way: dict[str | int, None] = {}
        # The sinks whose last decision waits for its sync, with the number of that decision in this life.
        self._undecided: dict[str, int] = {}
        self._decisions = 0

    # -- staging

    def open(self, wanted: StageFacts) -> StageMachine:
        """Open a stage; its number is given here.

        Raises:
            SettingsError, SecurityError, UsageError: it may not be opened.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        self.ledger.check_open(wanted)
        return self._records.create(wanted, self._timers.elapsed_ms)

    def ask(self, target: Target, run: StoredRun) -> None:
        """See that messages to a target can be routed and kept; its address comes into being as for any send.

        Raises:
            NotFoundError, UsageError: nothing can be sent there.
            AddressFullError: the address takes nothing more; or memory is scarce, and nothing can be paged.
            JournalBrokenError: nothing changed.
        """
        if self.lacks_memory(run) and not self._placing.spills:
            raise AddressFullError("the node has no memory to spare for messages in no journal, and nowhere to page")
        address, _ = self._definitions.address_for(target)
        quota = address.quota
        if quota is not None and quota.policy == "fail" and quota.full:
            quota.reached()
            raise AddressFullError(f"the address {address.name!r} is full, and takes no more")

    @property
    def scarce(self) -> bool:
        """Whether the node has no memory to spare: a writer is answered when its run can be paged."""
        return self._memory.scarce

    def lacks_memory(self, run: StoredRun) -> bool:
        """Whether a run has to wait for memory: no journal will have it."""
        return not run.durable and self._memory.scarce

    def weigh(self, run: StoredRun) -> int:
        """Return the bytes that the record of a staged run may take."""
        return self._ingress.weigh_moved(run.content)

    def add(self, stage: StageMachine, run: StoredRun, target: Target) -> None:
        """Store a run in a stage.

        Raises:
            TransactionRolledBackError: the stage takes no more.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        rows = run.content.rows
        stage.added(rows, self._timers.elapsed_ms)
        run.options = DeliveryOptions(0, entry=STAGED, target=target.queue or "")
        share = Share(self._records.queue(stage), range(rows), ())
        self._ingress.place_shares(run, [share], [RowOptions()] * rows, ())

    def prepare(self, stage: StageMachine) -> None:
        """Note that a stage has all its messages: it waits for the decision.

        Raises:
            TransactionRolledBackError: it is not there any more.
            JournalBrokenError: nothing changed.
        """
        if stage.life.state != OPEN:
            raise decline("rolled_back", f"the stage {stage.facts.number} has expired, or was abandoned")
        self._records.rewrite(attrs.evolve(stage.facts, prepared=True, messages=stage.sent))
        stage.prepare(self._timers.elapsed_ms)

    # -- deciding

    def commit(self, sink: str, batch: int, numbers: Sequence[int], user: str, purge: str = "") -> BatchDecision:
        """Commit a batch: the named stages count, and are placed; other stages of the sink up to the batch do not.

        ``purge``: an address; what waits there now goes, and the batch takes its place.

        Raises:
            SettingsError, SecurityError, NotFoundError, UsageError, BusyError: as ``LedgerMachine.verdict``.
            CursorHeldError: a cursor has a queue that is to be purged.
            AddressFullError: the sink is new, and the disk is full.
            JournalBrokenError: the disk has failed.
        """
        ledger = self.ledger
        verdict = ledger.verdict(sink, batch, numbers, user)
        if verdict.already:
            for stage in ledger.check_abandon(sink, batch, user):
                # Written anew by a program that did not know.
                self._drop(stage)
            return BatchDecision(True, 0)
        if purge:
            self._overwriting.check(purge)
        owner = ledger.owner(sink)
        order = tuple(stage.facts.number for stage in verdict.winners)
        facts = SinkFacts(sink=sink, user=user if owner is None else owner, batch=batch, placing=order, purge=purge)
        position = self._records.write_sink(facts)
        ledger.decided(facts, position, verdict)
        if purge:
            # The records of this follow the one of the decision at once: what comes later is behind all of them.
            self._overwriting.purge(purge)
            self._note_purged(sink)
        return self._decided(facts, verdict)

    def _decided(self, facts: SinkFacts, verdict: Verdict) -> BatchDecision:
        messages = sum(stage.facts.messages for stage in verdict.winners)
        self._event_bus.emit(
            BatchCommitted, sink=facts.sink, batch=facts.batch, stages=len(verdict.winners), messages=messages
        )
        # Nobody gets a message before the decision is durable.
        self._decisions += 1
        self._undecided[facts.sink] = self._decisions
        for stage in verdict.losers:
            self._drop(stage)
        self._release_queue.when_all_is_durable(partial(self._is_durable, facts.sink, self._decisions))
        return BatchDecision(False, messages)

    def _note_purged(self, sink: str) -> None:
        facts = attrs.evolve(self.ledger.sinks[sink][0], purge="")
        self.ledger.purged(facts, self._records.write_sink(facts))

    def _is_durable(self, sink: str, decision: int) -> None:
        if self._undecided[sink] == decision:
            # An empty batch is followed by the next one at once, whose sync may come later.
            del self._undecided[sink]
            self._resume()

    def abandon(self, sink: str, batch: int, user: str) -> int:
        """Drop the stages of a batch that is not committed; return how many there were.

        Raises:
            SettingsError, SecurityError: as ``LedgerMachine.check_abandon``.
            JournalBrokenError: the disk has failed.
        """
        found = self.ledger.check_abandon(sink, batch, user)
        for stage in found:
            self._drop(stage)
        return len(found)

    def delete_sink(self, sink: str) -> None:
        """Forget the last batch of a sink, and drop its stages.

        Raises:
            NotFoundError: there is no such sink.
            BusyError: its last batch is still being placed.
            JournalBrokenError: the disk has failed.
        """
        ledger = self.ledger
        if ledger.owner(sink) is None:
            raise NotFoundError(f"the ledger has no sink {sink!r}")
        if sink in ledger.unpurged:
            raise BusyError(f"what the last batch of the sink {sink!r} replaces is still being purged")
        if left := ledger.placing(sink):
            raise BusyError(f"{len(left)} stages of the last batch of the sink {sink!r} are still being placed")
        for stage in list(ledger.of(sink)):
            if stage.waits:
                self._drop(stage)
            else:
                # One that a start has dropped is known as such by the entry alone.
                self._write_dropped(stage)
        if sink in ledger.sinks:
            self._records.forget_sink(sink)

    def drop(self, stage: StageMachine) -> None:
        """Drop a stage whose writer has gone or given it up, unless it is prepared, decided or gone.

        Raises:
            JournalBrokenError: the disk has failed.
        """
        if stage.life.state == OPEN:
            self._drop(stage)

    def _drop(self, stage: StageMachine) -> None:
        self._write_dropped(stage)
        stage.life.on("drop")
        self._begin(stage.facts.number, self._remove(stage))

    def _write_dropped(self, stage: StageMachine) -> None:
        if stage.facts.prepared and not stage.facts.dropped:
            # Half of it must never be committed, whatever becomes of this life.
            facts = attrs.evolve(stage.facts, dropped=True)
            self._records.rewrite(facts)
            stage.facts = facts

    # -- looking after stages

    @property
    def watched(self) -> bool:
        """Whether time may change something."""
        return self.ledger.watched

    def tick(self) -> None:
        """Drop overdue stages, and resume interrupted work; called each second."""
        try:
            for stage in self.ledger.overdue(self._timers.elapsed_ms):
                facts = stage.facts
                about = {"batch": facts.batch, "partition": facts.partition, "attempt": facts.attempt}
                self._drop(stage)
                self._event_bus.emit(StageExpired, sink=facts.sink, **about, messages=stage.sent)
        except _DISK_ERRORS:
            # The node ends, or the next second finds the disk as it should be.
            return
        self._finish_purges()
        self._resume()

    def _finish_purges(self) -> None:
        """Finish the purges that the last life has decided and not finished."""
        for sink in list(self.ledger.unpurged):
            facts, position = self.ledger.sinks[sink]
            with suppress(CursorHeldError, *_DISK_ERRORS):
                # Until the cursor has gone the batch waits, as it does for an address that is full.
                self._overwriting.finish(facts.purge, position)
                self._note_purged(sink)

    def restored(self) -> None:
        """Restore the stages from the journal; the first second resumes their work."""
        for stage in self.ledger.restored():
            stage.life.on("drop")
        for stage in self.ledger.stages.values():
            stage.used_ms = self._timers.elapsed_ms

    def _resume(self) -> None:
        """Begin to place committed stages and to remove dropped ones, where that is not under way."""
        for stage in self.ledger.moving:
            sink, number = stage.facts.sink, stage.facts.number
            waits = sink in self._under_way or sink in self._undecided or sink in self.ledger.unpurged
            if stage.life.state == PLACING and not waits:
                self._begin(sink, self._place_batch(sink))
            elif stage.life.state == DROPPING and number not in self._under_way:
                self._begin(number, self._remove(stage))

    def _begin(self, key: str | int, steps: Steps) -> None:
        self._under_way[key] = None
        self._schedule(LongOperation(steps, partial(self._done, key), partial(self._failed, key)))

    def _done(self, key: str | int, values: Values) -> None:
        del self._under_way[key]

    def _failed(self, key: str | int, error: MeshqError) -> None:
        # It goes on with the next second, or with the next life of the node.
        del self._under_way[key]

    def _place_batch(self, sink: str) -> Steps:
        for stage in self.ledger.placing(sink):
            yield from self._released(stage)
            yield from self._placing.place(self._records.queue(stage))
            self._end(stage, "placed")
            yield None
        yield {}

    def _remove(self, stage: StageMachine) -> Steps:
        yield from self._released(stage)
        yield from self._placing.empty(self._records.queue(stage))
        self._end(stage, "removed")
        yield {}

    def _released(self, stage: StageMachine) -> Iterator[Needs]:
        """Wait until all messages of a stage are in its queue: the last ones may wait for their sync."""
        while self._release_queue.has_entries_for(self._records.queue(stage)):
            yield AnswerWait(self._release_queue.when_all_is_durable)

    def _end(self, stage: StageMachine, event: str) -> None:
        self._definitions.delete_queue(self._records.queue(stage))
        stage.life.on(event)
        del self.ledger.stages[stage.facts.number]
