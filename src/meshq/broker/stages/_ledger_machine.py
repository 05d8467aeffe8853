"""The batch ledger of a node: the stages that wait for a decision, and the last committed batch of each sink.

A commit names the stages that count.  The ledger says whether it was made before, who may make it, and which stages of
the batch do not count.  The time is an argument: milliseconds of a clock that nobody can set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import attrs

from meshq import limits
from meshq.broker.stages._stage_life import DROPPING, OPEN, PLACING, PREPARED, STAGE_TRANSITIONS
from meshq.errors import NotFoundError, SecurityError, SettingsError, UsageError
from meshq.ids import check_number, check_sink
from meshq.lifecycle import LifeCycle
from meshq.wire import decline

#: How long a stage may wait for its decision, ms.
TIMEOUT_MS: Final = range(round(limits.STAGE_TIMEOUT_S_MIN * 1000), round(limits.STAGE_TIMEOUT_S_MAX * 1000) + 1)
#: Stages that one error names.
_NAMED_MAX: Final = 5


@attrs.frozen(kw_only=True)
class StageFacts:
    """The values of a stage that the journal keeps."""

    #: The number of the queue that has the messages; no other stage or queue of the node ever has it.
    number: int
    sink: str
    batch: int
    partition: int
    attempt: int
    #: So long it waits for a decision after its writer has last used it.
    timeout_ms: int
    #: Who writes it; empty: nobody has a name there.
    user: str = ""
    prepared: bool = False
    #: It does not count: whatever is left of its messages is removed.
    dropped: bool = False
    #: How many messages it had when it was prepared.
    messages: int = 0


@attrs.frozen(kw_only=True)
class SinkFacts:
    """The entry of a sink in the ledger."""

    sink: str
    user: str = ""
    #: The last batch that was committed.
    batch: int
    #: The numbers of its stages, in the order of their partitions; those that are gone are placed.
    placing: tuple[int, ...] = ()
    #: Where that batch takes the place of what was there before, as long as some of that may be left; empty: nowhere.
    purge: str = ""


class StageMachine:
    """A stage.  The shell writes ``facts`` down when they have changed."""

    __slots__ = ("facts", "life", "sent", "used_ms")

    def __init__(self, facts: StageFacts, now_ms: float) -> None:
        self.facts: StageFacts = facts
        self.life: LifeCycle = LifeCycle(f"the stage {facts.number} of {facts.sink!r}", STAGE_TRANSITIONS, OPEN)
        #: Messages that were added to it.
        self.sent: int = facts.messages
        #: When it was last used.
        self.used_ms: float = now_ms
        if facts.prepared:
            self.life.on("prepare")
        if facts.dropped:
            self.life.on("drop")

    def __repr__(self) -> str:
        facts = self.facts
        return f"<StageMachine {facts.number} {self.life.state} {facts.sink!r} batch={facts.batch}>"

    @property
    def waits(self) -> bool:
        """Whether it may still be committed or dropped."""
        return self.life.state in (OPEN, PREPARED)

    def added(self, messages: int, now_ms: float) -> None:
        """Note messages that were added.

        Raises:
            TransactionRolledBackError: it takes no more: it has expired, or was abandoned.
        """
        if self.life.state != OPEN:
            raise decline("rolled_back", f"the stage {self.facts.number} is {self.life.state}, and takes no messages")
        self.sent += messages
        self.used_ms = now_ms

    def prepare(self, now_ms: float) -> None:
        """Note that all its messages are there."""
        self.life.on("prepare")
        self.facts = attrs.evolve(self.facts, prepared=True, messages=self.sent)
        self.used_ms = now_ms

    def is_overdue(self, now_ms: float) -> bool:
        """Whether it has waited for longer than it may."""
        return self.waits and now_ms - self.used_ms >= self.facts.timeout_ms


class Verdict(NamedTuple):
    """The verdict about a commit; ``already``: the batch, or a later one, was committed before.

    ``winners``: the stages that count, in the order of their partitions; ``losers``: the other stages up to the batch.
    """

    already: bool
    winners: tuple[StageMachine, ...] = ()
    losers: tuple[StageMachine, ...] = ()


class LedgerMachine:
    """The stages and the sinks of a node."""

    __slots__ = ("sinks", "stages", "unpurged")

    def __init__(self) -> None:
        #: By name: the entries, with the positions of their records.
        self.sinks: dict[str, tuple[SinkFacts, int]] = {}
        #: By number.
        self.stages: dict[int, StageMachine] = {}
        #: Sinks whose last batch replaces something of which a part may still be there; an ordered set.
        self.unpurged: dict[str, None] = {}

    def of(self, sink: str) -> Iterator[StageMachine]:
        """The stages of a sink, the oldest first."""
        return (stage for stage in self.stages.values() if stage.facts.sink == sink)

    def owner(self, sink: str) -> str | None:
        """Return the user whose sink it is; None: nobody has used it."""
        if sink in self.sinks:
            return self.sinks[sink][0].user
        return next((stage.facts.user for stage in self.of(sink)), None)

    def check_user(self, sink: str, user: str) -> None:
        """See that a sink is the user's; a client inside the program, without a name, may use any.

        Raises:
            SecurityError: it is another user's.
        """
        owner = self.owner(sink)
        if user and owner is not None and owner != user:
            raise SecurityError(f"the sink {sink!r} is another user's")

    def placing(self, sink: str) -> list[StageMachine]:
        """Return the stages of a sink that are committed and not yet placed, in their order."""
        if sink not in self.sinks:
            return []
        numbers = self.sinks[sink][0].placing
        return [self.stages[number] for number in numbers if number in self.stages]

    # -- staging

    def check_open(self, wanted: StageFacts) -> None:
        """See that a stage may be opened.

        Raises:
            SettingsError: a part of its name is not allowed.
            SecurityError: the sink is another user's.
            UsageError: the node has too many stages or sinks, or a stage of this name.
        """
        check_sink(wanted.sink)
        for name in ("batch", "partition", "attempt"):
            check_number(name, getattr(wanted, name))
        if wanted.timeout_ms not in TIMEOUT_MS:
            text = f"seconds from {TIMEOUT_MS[0] / 1000:g} to {TIMEOUT_MS[-1] / 1000:g}"
            raise SettingsError("timeout", wanted.timeout_ms / 1000, text)
        self.check_user(wanted.sink, wanted.user)
        if len(self.stages) >= limits.STAGES_MAX:
            raise decline("too_many", f"the node has its {limits.STAGES_MAX} stages: commit or abandon some")
        self._check_sinks(wanted.sink)
        wanted_name = (wanted.batch, wanted.partition, wanted.attempt)
        for stage in self.of(wanted.sink):
            facts = stage.facts
            if stage.waits and (facts.batch, facts.partition, facts.attempt) == wanted_name:
                text = f"attempt {wanted.attempt} of partition {wanted.partition} in batch {wanted.batch}"
                raise UsageError(f"the sink {wanted.sink!r} has a stage of {text}: take another attempt")

    def _check_sinks(self, sink: str) -> None:
        if sink not in self.sinks and len(self.sinks) >= limits.SINKS_MAX:
            raise decline("too_many", f"the ledger has its {limits.SINKS_MAX} sinks: delete some by delete_sink")

    # -- deciding

    def verdict(self, sink: str, batch: int, numbers: Sequence[int], user: str) -> Verdict:
        """Judge a commit; nothing changes.

        Raises:
            SettingsError: a part of it is not allowed.
            SecurityError: the sink is another user's.
            NotFoundError: a stage is not there: it was never prepared here, or has expired, or was abandoned.
            UsageError: a stage is of another sink or batch, or not prepared, or of the same partition as another one;
                or there are too many.
            BusyError: the batch before it is still being placed: try again.
        """
        check_sink(sink)
        check_number("batch", batch)
        if len(numbers) > limits.BATCH_STAGES_MAX:
            raise UsageError(f"a batch has at most {limits.BATCH_STAGES_MAX} stages, not {len(numbers)}")
        self.check_user(sink, user)
        if sink in self.sinks and batch <= self.sinks[sink][0].batch:
            return Verdict(already=True)
        self._check_sinks(sink)
        winners = self._winners(sink, batch, numbers)
        if sink in self.unpurged:
            raise decline("batch_placing", f"what the last batch of the sink {sink!r} replaces is still being purged")
        if left := self.placing(sink):
            before = self.sinks[sink][0].batch
            raise decline("batch_placing", f"{len(left)} stages of batch {before} of the sink {sink!r} are left")
        chosen = dict.fromkeys(winners)
        losers = [one for one in self.of(sink) if one.waits and one.facts.batch <= batch and one not in chosen]
        return Verdict(already=False, winners=winners, losers=tuple(losers))

    def _winners(self, sink: str, batch: int, numbers: Sequence[int]) -> tuple[StageMachine, ...]:
        absent = [number for number in numbers if number not in self.stages or not self.stages[number].waits]
        if absent:
            named = ", ".join(map(str, absent[:_NAMED_MAX]))
            more = f" and {len(absent) - _NAMED_MAX} more" if len(absent) > _NAMED_MAX else ""
            text = f"the sink {sink!r} has no stages {named}{more} for batch {batch}"
            raise NotFoundError(f"{text}: they have expired, were abandoned, or are of another node")
        found: dict[int, StageMachine] = {}
        for number in numbers:
            stage = self.stages[number]
            facts = stage.facts
            if facts.sink != sink:
                # It may be another user's, who need not be known.
                raise UsageError(f"the stage {number} is of another sink than {sink!r}")
            if facts.batch != batch:
                raise UsageError(f"the stage {number} is of batch {facts.batch} of the sink {facts.sink!r}")
            if stage.life.state != PREPARED:
                raise UsageError(f"the stage {number} is not prepared: it is {stage.life.state}")
            if facts.partition in found:
                other = found[facts.partition].facts
                text = f"the stages {other.number} and {number} are attempts {other.attempt} and {facts.attempt}"
                raise UsageError(f"{text} of one partition {facts.partition}: name one of them, once")
            found[facts.partition] = stage
        return tuple(found[partition] for partition in sorted(found))

    def decided(self, facts: SinkFacts, position: int, verdict: Verdict) -> None:
        """Note a commit that was written down."""
        self.sinks[facts.sink] = facts, position
        for stage in verdict.winners:
            stage.life.on("win")
        if facts.purge:
            self.unpurged[facts.sink] = None

    def purged(self, facts: SinkFacts, position: int) -> None:
        """Note that the messages that the last batch of a sink replaces are purged, which was written down."""
        self.sinks[facts.sink] = facts, position
        del self.unpurged[facts.sink]

    def check_abandon(self, sink: str, batch: int, user: str) -> list[StageMachine]:
        """Return the stages of a batch that may be abandoned; none if it is committed.

        Raises:
            SettingsError: a part of the name is not allowed.
            SecurityError: the sink is another user's.
        """
        check_sink(sink)
        check_number("batch", batch)
        self.check_user(sink, user)
        return [stage for stage in self.of(sink) if stage.waits and stage.facts.batch == batch]

    # -- keeping

    def overdue(self, now_ms: float) -> list[StageMachine]:
        """Return the stages that have waited for longer than they may."""
        return [stage for stage in self.stages.values() if stage.is_overdue(now_ms)]

    def restored(self) -> list[StageMachine]:
        """Restore the states of all stages; return the useless stages.

        A stage that was not prepared has lost its writer; one of a batch up to the last that its commit did not name
        was to be dropped then.
        """
        self.unpurged = {name: None for name, (facts, _) in self.sinks.items() if facts.purge}
        for facts, _ in self.sinks.values():
            for number in facts.placing:
                stage = self.stages.get(number)
                if stage is not None and stage.life.state == PREPARED:
                    stage.life.on("win")
        return [stage for stage in self.stages.values() if stage.waits and self._is_useless(stage)]

    def _is_useless(self, stage: StageMachine) -> bool:
        entry = self.sinks.get(stage.facts.sink)
        return stage.life.state == OPEN or (entry is not None and stage.facts.batch <= entry[0].batch)

    @property
    def watched(self) -> bool:
        """Whether time may change something: a stage waits, or is to be placed or removed, or something is purged."""
        return bool(self.stages or self.unpurged)

    @property
    def moving(self) -> list[StageMachine]:
        """The stages whose messages are on their way to their addresses, or out."""
        return [stage for stage in self.stages.values() if stage.life.state in (PLACING, DROPPING)]
