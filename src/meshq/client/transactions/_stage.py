"""A stage: one part of a batch of a sink, as its writer has it."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import NamedTuple, Self

from meshq import limits
from meshq.client.incoming._delivered_run import ReceivedMessage
from meshq.client.send._envelope import EnvelopeEncoder
from meshq.client.session._client_context import ClientContext
from meshq.client.transactions._transaction import Transaction
from meshq.errors import SettingsError, TransactionRolledBackError, UsageError
from meshq.ids import check_number, check_sink
from meshq.wire import RunBytes


class StageName(NamedTuple):
    """The name of a stage, and for how many seconds it may wait for a decision; checked."""

    sink: str
    batch: int
    partition: int
    attempt: int
    timeout_s: float


class Stage(Transaction):
    """A transaction that is one part of a batch: ``client.commit_batch`` decides about all parts together.

    Leaving the block prepares it; when the body raises, it is dropped.
    """

    def __init__(self, context: ClientContext, encoder: EnvelopeEncoder, name: StageName) -> None:
        super().__init__(context, encoder)
        self._name = name
        # The number that the node gave it; 0: it is not open there.
        self._stage = 0

    def __repr__(self) -> str:
        name = self._name
        return f"<Stage {self._stage} {self._life.state} {name.sink!r} batch={name.batch} sent={self._sent}>"

    @property
    def stage_id(self) -> int | None:
        """The number of the stage, for ``commit_batch``."""
        return self._stage or None

    @property
    def _has_work(self) -> bool:
        return bool(self._stage)

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        name = self._name
        call = self._call(
            "open_stage",
            sink=name.sink,
            batch=name.batch,
            partition=name.partition,
            attempt=name.attempt,
            timeout_ms=round(name.timeout_s * 1000),
        )
        try:
            self._stage = int((await self._session.deadlines.wait(call))["stage"])
        except BaseException:
            if self._session.facts.failure is None:
                # The node may have opened it, or do so yet: its name would be taken for as long as the session lasts.
                self._call("roll_back")
            self._end("roll_back")
            raise
        return self

    async def _send_run(self, address: str, run: RunBytes) -> None:
        """Send a run of durable messages; for connectors, which see to it that it is one.

        Checkpoint: when it has to wait, and at least every 64th call.
        Cancellation: the messages were not taken.
        Raises:
            TransactionRolledBackError: the transaction is lost; it is rolled back.
            MeshqError: an earlier message was refused; all is rolled back.
            UsageError: the transaction is not open.
        """
        await self.ready()
        self._cut()
        self._durable = True
        self._sent += run.rows
        self._queue(run, address)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._life.state == "active":
            if error is None:
                await self.prepare()
            else:
                self._abandon()

    def settle(self, deliveries: Sequence[ReceivedMessage]) -> None:
        """Raise: a stage only sends."""
        raise UsageError("a stage only sends: acknowledge with a transaction, or a cursor")

    async def _prepare(self) -> None:
        self._check()
        try:
            await self._conclude("prepare_stage", "prepare")
        except TransactionRolledBackError as error:
            text = f"the stage {self._stage} is not prepared, write another attempt: {error}"
            raise TransactionRolledBackError(text, outcome=error.outcome) from error

    def _check_decision(self, how: str) -> None:
        raise UsageError(f"a stage is {how}")


def check_stage(sink: object, batch: object, partition: object, attempt: object, timeout: object) -> StageName:
    """Check the arguments of ``stage``; return its name.

    Raises:
        SettingsError: one of them is not allowed.
    """
    if type(timeout) not in (int, float) or not limits.STAGE_TIMEOUT_S_MIN <= timeout <= limits.STAGE_TIMEOUT_S_MAX:  # type: ignore[operator]
        raise SettingsError(
            "timeout", timeout, f"seconds from {limits.STAGE_TIMEOUT_S_MIN:g} to {limits.STAGE_TIMEOUT_S_MAX:g}"
        )
    return StageName(
        check_sink(sink),
        check_number("batch", batch),
        check_number("partition", partition),
        check_number("attempt", attempt),
        float(timeout),  # type: ignore[arg-type]
    )
