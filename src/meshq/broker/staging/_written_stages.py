"""Stages that a session writes, by the numbers of its client."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from meshq import limits
from meshq.address import Target
from meshq.broker.access._access import Asker, permit_keeping, permit_sending
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._run import StoredRun
from meshq.broker.stages._ledger_machine import StageFacts, StageMachine
from meshq.broker.staging._stages import Stages
from meshq.broker.work._long_operations import AnswerWait, DiskSpaceWait, Steps, Values
from meshq.errors import JournalBrokenError, MeshqError
from meshq.wire import decline

#: Targets of one stage that are remembered as permitted.
_TARGETS_MAX: Final = 1_024


class OpenStage:
    """A stage with its writer."""

    __slots__ = ("busy", "came", "failure", "line", "stage", "targets")

    def __init__(self, stage: StageMachine) -> None:
        self.stage: StageMachine = stage
        #: Messages that have come, stored or on their way.
        self.came: int = 0
        #: Where it may send, an ordered set.
        self.targets: dict[Target, None] = {}
        #: Whether a run waits for room; what waits behind it, in order.
        self.busy: bool = False
        self.line: deque[Callable[[], None]] = deque()
        #: Why a run was not stored.
        self.failure: MeshqError | None = None


class WrittenStages:
    """The stages of one session that are not prepared."""

    __slots__ = ("_open", "_principal", "_release_queue", "_stages", "operations")

    def __init__(self, principal: Asker, stages: Stages, release_queue: ReleaseQueue) -> None:
        self._principal = principal
        self._stages = stages
        self._release_queue = release_queue
        self._open: dict[int, OpenStage] = {}
        #: What a client may ask for, by name, and what it gives with that.
        self.operations: dict[str, tuple[Callable[..., Values | Steps | None], dict[str, type]]] = {
            "open_stage": (
                self.open,
                {"transaction": int, "sink": str, "batch": int, "partition": int, "attempt": int, "timeout_ms": int},
            ),
            "prepare_stage": (self.prepare, {"transaction": int, "sent": int, "acked": int}),
        }

    def __contains__(self, number: int) -> bool:
        return number in self._open

    def open(self, transaction: int, sink: str, batch: int, partition: int, attempt: int, timeout_ms: int) -> Values:
        """Open a stage for a transaction of the client.

        Raises:
            SettingsError, SecurityError, UsageError: it may not be opened.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        if transaction in self._open or len(self._open) >= limits.TRANSACTIONS_MAX:
            raise decline("too_many", f"a session writes at most {limits.TRANSACTIONS_MAX} stages, each once")
        permit_keeping(self._principal)
        wanted = StageFacts(
            number=0,
            sink=sink,
            batch=batch,
            partition=partition,
            attempt=attempt,
            timeout_ms=timeout_ms,
            user=self._principal.owner[1],
        )
        self._open[transaction] = OpenStage(self._stages.open(wanted))
        return {"stage": self._open[transaction].stage.facts.number}

    def take(self, number: int, sent: int, run: StoredRun, target: Target) -> Values | Steps:
        """Store a run in a stage, at once or when there is room for it.

        Raises:
            TransactionRolledBackError: something before it is missing; the stage is dropped.
            SecurityError, NotFoundError, UsageError, AddressFullError: it is not taken; the stage is dropped.
        """
        found = self._open[number]
        try:
            if found.came != sent or found.failure is not None:
                raise self._lost(found)
            if target not in found.targets:
                permit_sending(self._principal, target)
            self._stages.ask(target, run)
            size = self._stages.weigh(run)
            large = size > self._release_queue.large_bytes or bool(self._release_queue.queued)
            waits = large or found.busy or self._stages.lacks_memory(run)
            if waits:
                self._stages.memory_line.check(run.size_bytes)
        except MeshqError:
            self.abandon(number)
            raise
        if len(found.targets) < _TARGETS_MAX:
            found.targets[target] = None
        found.came += run.content.rows
        if waits:
            return self._when_room(number, found, run, target, size)
        self._add(number, found, run, target)
        return self._when_durable() if self._stages.scarce else {}

    def _add(self, number: int, found: OpenStage, run: StoredRun, target: Target) -> None:
        try:
            if found.failure is not None:
                raise self._lost(found)
            self._release_queue.check_space(self._stages.weigh(run))
            self._stages.add(found.stage, run, target)
        except MeshqError as error:
            found.failure = error
            self.abandon(number)
            raise

    def _when_durable(self) -> Steps:
        yield AnswerWait(self._release_queue.when_all_is_durable)
        yield {}

    def _when_room(self, number: int, found: OpenStage, run: StoredRun, target: Target, size: int) -> Steps:
        with self._stages.memory_line.holding(run.size_bytes):
            if found.busy:
                yield AnswerWait(found.line.append)
            found.busy = True
            try:
                if self._stages.lacks_memory(run):
                    yield AnswerWait(self._stages.memory_line.wait)
                yield DiskSpaceWait(size)
                self._add(number, found, run, target)
            finally:
                self._next(found)
        yield {}

    def _next(self, found: OpenStage) -> None:
        found.busy = False
        if found.line:
            found.line.popleft()()

    def _lost(self, found: OpenStage) -> MeshqError:
        return decline("rolled_back", str(found.failure or "the node did not have all that the stage had sent"))

    def prepare(self, transaction: int, sent: int, acked: int) -> Values | Steps:
        """Prepare a stage, if it has all that its writer has sent; it no longer belongs to this session.

        Raises:
            TransactionRolledBackError: a part is missing, or it has expired or was abandoned; the stage is gone.
        """
        found = self._open.get(transaction)
        if found is None:
            raise decline("rolled_back", "the node no longer has the stage")
        if found.busy:
            return self._prepare_behind(transaction, found, sent)
        return self._prepare(transaction, found, sent)

    def _prepare_behind(self, transaction: int, found: OpenStage, sent: int) -> Steps:
        yield AnswerWait(found.line.append)
        try:
            values = self._prepare(transaction, found, sent)
        finally:
            self._next(found)
        yield values

    def _prepare(self, transaction: int, found: OpenStage, sent: int) -> Values:
        if found.failure is not None or self._open.get(transaction) is not found or found.stage.sent != sent:
            error = self._lost(found)
            self.abandon(transaction)
            raise error
        self._stages.prepare(found.stage)
        del self._open[transaction]
        return {"stage": found.stage.facts.number}

    def abandon(self, number: int) -> bool:
        """Drop a stage that is not prepared; return whether there was one."""
        found = self._open.pop(number, None)
        if found is None:
            return False
        found.failure = found.failure or decline("rolled_back", "the stage was given up")
        with suppress(JournalBrokenError):
            # Nothing is decided any more where the disk has failed.
            self._stages.drop(found.stage)
        return True

    def end(self) -> None:
        """Drop all of them: the session is over."""
        for number in list(self._open):
            self.abandon(number)
