"""Moving messages as they are to queues of other nodes, in steps: to consumers of their queue, or all to one node."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from meshq.address import Target
from meshq.broker.management._bulk_move import bulk_move, move_scheduled
from meshq.broker.management._queue_operations import given_back
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import QueueRun, StoredRun
from meshq.broker.work._long_operations import LongOperation, Steps, Values
from meshq.errors import MeshqError

if TYPE_CHECKING:
    from meshq.broker.core._core import Core


class MoveWatch(Protocol):
    """The caller of a move; one of the two methods is called at the end.  ``wanted``: whether more is to be moved."""

    wanted: bool

    def done(self, moved: int) -> None:
        """Note the number of moved messages, whose records are durable."""

    def failed(self, error: MeshqError) -> None:
        """Note that the move has ended early."""


def redistribute(core: Core, queue: Queue, limit: int, watch: MoveWatch) -> None:
    """Move up to ``limit`` messages to consumers on other nodes; the operation ends at the first consumer here."""
    movable = partial(core.mover.redistribution.movable, queue)
    _move(core, queue, Target(queue.address, None), "redistributed", limit, movable, watch)


def transfer(core: Core, queue: Queue, forward: Queue, limit: int, watch: MoveWatch) -> None:
    """Move up to ``limit`` messages to the queue of the same name on the node of a store-and-forward queue."""
    places = core.mover.transfer_places
    target = places.aim(queue, forward)
    if target is None:
        watch.done(0)
        return
    movable = partial(places.movable, queue, forward)
    _move(core, queue, target, "transferred", limit, movable, watch, aimed=forward)


def give_back(core: Core, forward: Queue, done: Callable[[int], None], failed: Callable[[MeshqError], None]) -> None:
    """Route messages anew that wait for a node which is gone, and tell how many when that is durable."""

    def ended(values: Values) -> None:
        core.release_queue.when_all_is_durable(partial(done, values["moved"]))

    core.running_operations.schedule(LongOperation(given_back(core, None, [forward]), ended, failed))
    core.pending.run()


def _move(
    core: Core,
    queue: Queue,
    target: Target,
    reason: str,
    limit: int,
    decide: Callable[[QueueRun, StoredRun, Sequence[int]], Sequence[int] | None],
    watch: MoveWatch,
    *,
    aimed: Queue | None = None,
) -> None:
    places = core.mover.transfer_places

    def held(view: QueueRun) -> Mapping[int, bytes]:
        return places.held.of(view, aimed) if aimed is not None else {}

    def movable(view: QueueRun, run: StoredRun, rows: Sequence[int]) -> Sequence[int] | None:
        if not watch.wanted or queue in core.mover.pending_moves.suspended:
            return None
        return decide(view, run, rows)

    def ended(values: Values) -> None:
        core.release_queue.when_all_is_durable(partial(watch.done, values["moved"]))

    def steps() -> Steps:
        moved = 0
        for step in bulk_move(core, queue, None, limit, lambda view: target, reason, movable=movable, held=held):
            if isinstance(step, dict):
                moved = step["moved"]
            else:
                yield step
        if aimed is not None and moved < limit:
            for step in move_scheduled(core, queue, limit - moved, target, reason, movable):
                if isinstance(step, dict):
                    moved += step["moved"]
                else:
                    yield step
        yield {"moved": moved}

    core.running_operations.schedule(LongOperation(steps(), ended, watch.failed))
    core.pending.run()
