"""The calls of a client that write stages and decide about batches, and those about high availability.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Client``: change that.
"""

from __future__ import annotations

from collections.abc import Iterable

from meshq import client as trio_client
from meshq import limits
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._loop_thread import ThreadCall
from meshq.blocking._transaction import Transaction
from meshq.client import BatchCommit, SinkStatistics, StageStatistics
from meshq.statistics import EndedBackup, RoleStatus


class StageCalls:
    """The calls of a client that write stages and decide about batches, and those about high availability."""

    _inner: trio_client.Client
    _call: ThreadCall
    _block: ThreadBlockRunner

    def abandon_batch(self, sink: str, batch: int) -> int:
        """Drop the stages of a batch that is not committed; return how many there were.  A committed one stays so.

        Interrupted: they are dropped or not.
        Raises:
            SettingsError: a name or a number is not allowed.
            SecurityError: the sink is another user's.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.abandon_batch, sink, batch)

    def commit_batch(self, sink: str, batch: int, stages: Iterable[int], *, purge: str | None = None) -> BatchCommit:
        """Commit a batch: the messages of these stages are sent, in the order of their partitions, and each once.

        On return the decision is stored, and the messages are on their way.  A batch that is not above the last
        committed one of its sink was committed before: nothing is done, whatever ``stages`` are named.  So repeat the
        call as often as need be.  The other stages of the sink, up to this batch, are dropped.

        While the batch before it is on its way the call waits.

        ``purge``: an address, or ``address::queue``: the batch takes the place of what waits there on this node, which
        goes by the same decision.  What consumers have stays theirs.  Takes ``manage`` there.

        Interrupted: it may be committed or not: commit it again.
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
        return self._call(self._inner.commit_batch, sink, batch, stages, purge=purge)

    def delete_sink(self, sink: str) -> None:
        """Delete a sink from the ledger: its last batch is forgotten, and its stages are dropped.  Takes ``manage``.

        Whoever commits a batch of it again sends that again.

        Interrupted: it is deleted or not.
        Raises:
            SettingsError: the name is not allowed.
            NotFoundError: there is no such sink.
            UsageError: its last batch is still being placed.
            SecurityError: the user may not manage the broker.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.delete_sink, sink)

    def end_backup(self, name: str, *, force: bool = False) -> EndedBackup:
        """Have the node end a backup that it runs for another node, because that node is gone for good.

        What is stored there is kept, and the result says where.  ``name``: as in ``broker.ha.hosted``.  ``force``: also
        if the node answers where it was, or the backup serves.

        Interrupted: it is ended all the same.
        Raises:
            SettingsError: an argument has another type; nothing was done.
            NotFoundError: the node runs no backup of this name.
            RefusedError: the node answers, or the backup serves, or its directory can't be renamed; outcome not done.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.end_backup, name, force=force)

    def fail_back(self, *, timeout: float = 30) -> None:
        """Have the node hand its role back to the waiting primary, and return when that node serves this client.

        Interrupted: the order stands.
        Raises:
            RefusedError: no primary waits, or the node is the primary; outcome not done.
            CallTimeoutError: no node serves this client within ``timeout`` seconds; outcome unknown.
            UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.fail_back, timeout=timeout)

    def fail_over(self, *, force: bool = False, timeout: float = 30) -> None:
        """Have the node hand its role over to a waiting node, and return when that node serves this client.

        ``force``: nothing is finished first, and clients are not told.

        Interrupted: the order stands.
        Raises:
            RefusedError: no other node waits; outcome not done.
            CallTimeoutError: no node serves this client within ``timeout`` seconds; outcome unknown.
            UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        self._call(self._inner.fail_over, force=force, timeout=timeout)

    def ha(self) -> RoleStatus:
        """Return the role of the node, as ``broker.ha`` has it in its program.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.ha)

    def sinks(self) -> list[SinkStatistics]:
        """Return the sinks that have committed a batch: the user's own, or all for who may manage the broker.

        Interrupted: nothing has changed.
        Raises:
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.sinks)

    def stage(
        self, sink: str, batch: int, *, partition: int = 0, attempt: int = 0, timeout: float = limits.STAGE_TIMEOUT_S
    ) -> Transaction:
        """Create a stage, one part of a batch, to be used as ``with``: a transaction that only sends, and that
        ``commit_batch`` decides with the other parts.

        Leaving the block prepares it: its messages are stored, and wait for the decision.  When the body raises it is
        dropped, and so it is when the session is lost before; then write another attempt.  ``stage_id`` is its number.

        ``sink``: the program that writes; ``batch``: the number of its step; ``partition``: the part; ``attempt``: the
        try.  ``timeout``: seconds without a decision after which it is dropped, from its last use on.

        Raises:
            SettingsError: one of these is not allowed.
        """
        inner = self._inner.stage(sink, batch, partition=partition, attempt=attempt, timeout=timeout)
        return Transaction(self._block, inner)

    def stages(self, sink: str | None = None) -> list[StageStatistics]:
        """Return the stages of a sink, or of all: the user's own, or all for who may manage the broker.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: the name of the sink is not allowed.
            CallTimeoutError, UnblockedError, ConnectionBrokenError, ClosedError: see the class.
        """
        return self._call(self._inner.stages, sink)
