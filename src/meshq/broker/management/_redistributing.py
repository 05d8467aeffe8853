"""Moving messages of a queue without a consumer here to the consumers of its name on other nodes, in steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from meshq.address import Target
from meshq.broker.management._bulk_move import bulk_move
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.work._long_operations import LongOperation, Values
from meshq.errors import MeshqError

if TYPE_CHECKING:
    from meshq.broker.core._core import Core


def redistribute(
    core: Core,
    queue: Queue,
    limit: int,
    wanted: Callable[[], bool],
    then: Callable[[int], None],
    fail: Callable[[MeshqError], None],
) -> None:
    """Move up to ``limit`` messages to other nodes; the operation ends at the first consumer here.

    ``wanted`` says before each move whether more are to be moved.  One of the last two is called at the end: ``then``
    with the number of moved messages, once their records are durable.
    """

    def movable(view: QueueRun, run: StoredRun, rows: Sequence[int]) -> list[int] | None:
        if not wanted() or queue in core.mover.pending_moves.suspended:
            return None
        return core.mover.redistribution.movable(queue, view, run, rows)

    def ended(values: Values) -> None:
        core.release_queue.when_all_is_durable(partial(then, values["moved"]))

    target = Target(queue.address, None)
    steps = bulk_move(core, queue, None, limit, lambda view: target, "redistributed", movable=movable)
    core.running_operations.schedule(LongOperation(steps, ended, fail))
    core.pending.run()
