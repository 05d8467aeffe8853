"""Long operations that are under way, and their waits between two steps."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from meshq.broker.core._host_node import HostNode
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.paging._pager import Pager
from meshq.broker.settlement._pending_moves import PendingMoves
from meshq.broker.work._closing import Closing
from meshq.broker.work._fair_scheduler import FairScheduler
from meshq.broker.work._long_operations import (
    AnswerWait,
    DiskSpaceWait,
    FairTurnWait,
    FaultInWait,
    LongOperation,
    PendingMovesWait,
)


class RunningOperations:
    """Long operations that operators and transactions have asked for.

    ``closing`` says why no operation goes on; ``run_pending`` is called when one goes on by itself.
    """

    __slots__ = ("_closing", "_fair_scheduler", "_host", "_operations", "_pager", "_pending_moves", "_release_queue",
                 "_run_pending")  # fmt: skip

    def __init__(
        self,
        release_queue: ReleaseQueue,
        fair_scheduler: FairScheduler,
        pending_moves: PendingMoves,
        pager: Pager,
        *,
        host: HostNode,
        closing: Closing,
        run_pending: Callable[[], None],
    ) -> None:
        self._release_queue = release_queue
        self._fair_scheduler = fair_scheduler
        self._pending_moves = pending_moves
        self._pager = pager
        self._host = host
        self._closing = closing
        self._run_pending = run_pending
        # Those whose next step needs nothing.
        self._operations: list[LongOperation] = []

    def __len__(self) -> int:
        return len(self._operations)

    def schedule(self, operation: LongOperation) -> None:
        """Begin an operation of many steps; the first step is done now."""
        self._step(operation)
        self._resume_soon()

    def next_round(self) -> None:
        """Do a step of each operation; all steps if there would be no other round."""
        while self._operations:
            operations, self._operations = self._operations, []
            for operation in operations:
                self._step(operation)
            if self._operations and self._wake():
                break

    def _resume(self, operation: LongOperation) -> None:
        self._step(operation)
        self._resume_soon()
        self._run_pending()

    def _resume_soon(self) -> None:
        """Have the operations go on in the next round; at once if there would be none."""
        if self._operations and not self._wake():
            self.next_round()

    def _wake(self) -> bool:
        if self._host.resumes:
            self._host.resume_soon()
        return self._host.resumes

    def _step(self, operation: LongOperation) -> None:
        ended = operation.step(self._closing.stopping)
        while isinstance(ended, (DiskSpaceWait, FairTurnWait, PendingMovesWait)):
            if isinstance(ended, PendingMovesWait):
                if not self._pending_moves.when_done(ended.queue, partial(self._resume, operation)):
                    return
            elif isinstance(ended, FairTurnWait):
                if self._host.resumes:
                    self._fair_scheduler.begin(
                        ended.owner, ended.key, ended.costly, partial(self._resume, operation), ended.alive
                    )
                    return
                for _ in ended.costly.steps:
                    pass
            elif not self._release_queue.request_space(ended.size_bytes, partial(self._resume, operation)):
                return
            ended = operation.step(self._closing.stopping)
        if isinstance(ended, FaultInWait):
            self._pager.fault_in(ended.queue, ended.view, partial(self.schedule, operation))
        elif isinstance(ended, AnswerWait):
            ended.begin(partial(self._resume, operation))
        elif not ended:
            self._operations.append(operation)
