"""The calls of a client that write stages and decide about batches, and those about high availability.

Drawn by ``python -m tools.draw_faces`` from ``meshq.Client``: change that.
"""

from __future__ import annotations

from typing import Final

from meshq import client as trio_client
from meshq import limits
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._loop_thread import TaskCall, forwarded
from meshq.aio._transaction import Transaction


class StageCalls:
    """The calls of a client that write stages and decide about batches, and those about high availability."""

    _inner: trio_client.Client
    _call: TaskCall
    _block: TaskBlockRunner

    abandon_batch: Final = forwarded(trio_client.Client.abandon_batch)
    commit_batch: Final = forwarded(trio_client.Client.commit_batch)
    delete_sink: Final = forwarded(trio_client.Client.delete_sink)
    end_backup: Final = forwarded(trio_client.Client.end_backup)
    fail_back: Final = forwarded(trio_client.Client.fail_back)
    fail_over: Final = forwarded(trio_client.Client.fail_over)
    ha: Final = forwarded(trio_client.Client.ha)
    sinks: Final = forwarded(trio_client.Client.sinks)

    def stage(
        self, sink: str, batch: int, *, partition: int = 0, attempt: int = 0, timeout: float = limits.STAGE_TIMEOUT_S
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
        inner = self._inner.stage(sink, batch, partition=partition, attempt=attempt, timeout=timeout)
        return Transaction(self._block, inner)

    stages: Final = forwarded(trio_client.Client.stages)
