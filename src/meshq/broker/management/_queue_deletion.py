"""Deleting queues, after their pending moves to other addresses are done."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from meshq.broker.work._long_operations import PendingMovesWait, Steps, Values
from meshq.errors import NotFoundError

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.queue._queue_machine import Queue


def remove_when_moved(core: Core, queue: Queue, see_to: Callable[[], None]) -> Values | Steps:
    """Delete a queue with everything that stays in it, at once if nothing is to leave it for another address.

    ``see_to`` ends those who use the queue, or raises why it is not deleted; it is called again whenever others may
    have come meanwhile.

    Raises:
        NotFoundError: somebody else has deleted it meanwhile.
    """
    see_to()
    return {"removed": core.remove(queue)} if core.prepare_removal(queue) else _removing(core, queue, see_to)


def _removing(core: Core, queue: Queue, see_to: Callable[[], None]) -> Steps:
    # Whoever comes meanwhile could reject what is left for ever, one after the other.
    core.mover.pending_moves.suspend_dispatch(queue)
    try:
        while not core.prepare_removal(queue):
            yield PendingMovesWait(queue)
            still_there(core, queue)
            see_to()
        removed = core.remove(queue)
    finally:
        core.mover.pending_moves.resume_dispatch(queue)
        core.pending.schedule_dispatch(queue)
        core.router.demand.mobility_changed(queue.name)
    yield {"removed": removed}


def still_there(core: Core, queue: Queue) -> Queue:
    """The queue, though others have had their turn.

    Raises:
        NotFoundError: it was deleted.
    """
    if queue.number not in core.router.by_number:
        raise NotFoundError(f"there is no queue {queue.name!r} any more")
    return queue
