"""The calls of a client that write stages and decide about batches."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

import attrs
import trio

from meshq import limits
from meshq.address import parse_place
from meshq.client.send._envelope import EnvelopeEncoder
from meshq.client.session._client_context import ClientContext
from meshq.client.transactions._stage import Stage, check_stage
from meshq.client.transactions._transaction import Transaction
from meshq.errors import BusyError, SettingsError
from meshq.ids import check_number, check_sink

#: Seconds between two tries of a commit while the batch before it is placed: the first, and the longest.
_PAUSE_S: Final = 0.02
_PAUSE_S_MAX: Final = 1.0


@attrs.frozen(kw_only=True)
class BatchCommit:
    """The answer to ``commit_batch``."""

    sink: str
    batch: int
    #: The batch, or a later one, was committed before: this call has changed nothing.
    already: bool
    #: Messages that this call has committed.
    messages: int


@attrs.frozen(kw_only=True)
class SinkStatistics:
    """The state of a sink in the batch ledger of its broker."""

    sink: str
    #: The user whose sink it is; empty without security.
    user: str
    #: The last batch that was committed.
    batch: int
    #: Stages of the last batch whose messages are still on their way to their addresses.
    placing: int
    #: Stages that are open, or wait for a decision.
    stages: int


@attrs.frozen(kw_only=True)
class StageStatistics:
    """The state of a stage at its broker."""

    stage: int
    sink: str
    user: str
    batch: int
    partition: int
    attempt: int
    #: ``open``, ``prepared``, ``placing`` or ``dropping``.
    state: str
    #: Messages that are in it now.
    messages: int
    #: Seconds until it is dropped without a decision; 0.0 if it is decided.
    expires_in: float


class StageCalls:
    """The calls of a client for batches: many writers send parts, and one call decides about all of these, once.

    All stages of a sink are on one node; another node of a cluster does not know these.
    """

    _context: ClientContext
    _encoder: EnvelopeEncoder

    def stage(
        self,
        sink: str,
        batch: int,
        *,
        partition: int = 0,
        attempt: int = 0,
        timeout: float = limits.STAGE_TIMEOUT_S,
    ) -> Transaction:
        """Create a stage, one part of a batch, to be used as ``async with``: a transaction that only sends, and that
        ``commit_batch`` decides with the other parts.

        Leaving the block prepares it: its messages are stored, and wait for the decision.  When the body raises it is
        dropped, and so it is when the session is lost before; then write another attempt.  ``stage_id`` is its number.

        ``sink``: the program that writes; ``batch``: the number of its step; ``partition``: the part; ``attempt``: the
        try.  ``timeout``: seconds without a decision after which it is dropped, from its last use on.

        Raises:
            SettingsError: one of these is not allowed.
        """
        return Stage(self._context, self._encoder, check_stage(sink, batch, partition, attempt, timeout))

    async def commit_batch(
        self, sink: str, batch: int, stages: Iterable[int], *, purge: str | None = None
    ) -> BatchCommit:
        """Commit a batch: the messages of these stages are sent, in the order of their partitions, and each once.

        On return the decision is stored, and the messages are on their way.  A batch that is not above the last
        committed one of its sink was committed before: nothing is done, whatever ``stages`` are named.  So repeat the
        call as often as need be.  The other stages of the sink, up to this batch, are dropped.

        While the batch before it is on its way the call waits.

        ``purge``: an address, or ``address::queue``: the batch takes the place of what waits there on this node, which
        goes by the same decision.  What consumers have stays theirs.  Takes ``manage`` there.

        Checkpoint: always.  Cancellation: it may be committed or not: commit it again.
        Raises:
            SettingsError: a name or a number is not allowed, or there are too many stages.
            NotFoundError: a stage has expired, was abandoned, or is of another node; nothing is committed.
            UsageError: a stage is not prepared, of another batch, or of the same partition as another one.
            SecurityError: the sink is another user's; or it is new, and the user may send nowhere; or the user may not
                purge.
            CursorHeldError: a cursor has a queue that is to be purged; nothing is committed.
            AddressFullError: the sink is new, and the disk of the broker is full.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        check_sink(sink)
        check_number("batch", batch)
        about = {}
        if purge is not None:
            parse_place(purge, "purge")
            about["purge"] = purge
        packed = _packed(stages)
        pause = _PAUSE_S
        while True:
            try:
                values = await self._context.ask("commit_batch", sink=sink, batch=batch, stages=packed, **about)
            except BusyError as error:
                if error.refusal != "batch_placing":
                    raise
                await trio.sleep(pause)
                pause = min(2 * pause, _PAUSE_S_MAX)
            else:
                return BatchCommit(sink=sink, batch=batch, already=values["already"], messages=values["messages"])

    async def abandon_batch(self, sink: str, batch: int) -> int:
        """Drop the stages of a batch that is not committed; return how many there were.  A committed one stays so.

        Checkpoint: always.  Cancellation: they are dropped or not.
        Raises:
            SettingsError: a name or a number is not allowed.
            SecurityError: the sink is another user's.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        values = await self._context.ask("abandon_batch", sink=check_sink(sink), batch=check_number("batch", batch))
        return int(values["stages"])

    async def sinks(self) -> list[SinkStatistics]:
        """Return the sinks that have committed a batch: the user's own, or all for who may manage the broker.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        names = tuple(field.name for field in attrs.fields(SinkStatistics))
        return [SinkStatistics(**row) for row in (await self._context.pages("sinks", names))[1]]

    async def stages(self, sink: str | None = None) -> list[StageStatistics]:
        """Return the stages of a sink, or of all: the user's own, or all for who may manage the broker.

        Checkpoint: always.  Cancellation: nothing has changed.
        Raises:
            SettingsError: the name of the sink is not allowed.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        names = tuple(field.name for field in attrs.fields(StageStatistics))
        wanted = "" if sink is None else check_sink(sink)
        return [StageStatistics(**row) for row in (await self._context.pages("stages", names, sink=wanted))[1]]

    async def delete_sink(self, sink: str) -> None:
        """Delete a sink from the ledger: its last batch is forgotten, and its stages are dropped.  Takes ``manage``.

        Whoever commits a batch of it again sends that again.

        Checkpoint: always.  Cancellation: it is deleted or not.
        Raises:
            SettingsError: the name is not allowed.
            NotFoundError: there is no such sink.
            UsageError: its last batch is still being placed.
            SecurityError: the user may not manage the broker.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        await self._context.ask("delete_sink", sink=check_sink(sink))


def _packed(stages: Iterable[int]) -> bytes:
    numbers = list(stages)
    if len(numbers) > limits.BATCH_STAGES_MAX:
        raise SettingsError("stages", f"{len(numbers)} of them", f"at most {limits.BATCH_STAGES_MAX}")
    if wrong := [one for one in numbers if type(one) is not int or not 0 < one < 1 << 32]:
        raise SettingsError("stages", wrong[0], "the numbers of stages, as stage_id says these")
    return struct.pack(f"<{len(numbers)}I", *numbers)
