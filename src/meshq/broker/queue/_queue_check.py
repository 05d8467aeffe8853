"""What must hold of a queue between steps: its counts, its lists, its runs and its consumers agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshq.broker.queue._run import DELAYED, GONE, HELD, PARKED, READY
from meshq.errors import invariant

if TYPE_CHECKING:
    from meshq.broker.queue._consumer_state import ConsumerState
    from meshq.broker.queue._queue_machine import Queue


def _check_share(consumer: ConsumerState) -> None:
    """Assert that a consumer has the content of each run once in its share, as far as grants of it are neighbours."""
    counted = 0
    run = None
    for grant in consumer.grants:
        invariant(grant.counts or grant.view.run is run, "what is not counted stands behind something of the same run")
        run = grant.view.run
        counted += run.content_bytes if grant.counts else 0
    invariant(
        consumer.unacked_memory is None or consumer.pinned_bytes == counted, "a consumer's share is what it holds"
    )


def check_queue(queue: Queue) -> None:
    """Assert what must hold between steps."""
    held = delayed = 0
    for level in queue.levels:
        level.check()
        for view in level.runs():
            states = view.states
            row_held = states.count(HELD)
            held += row_held
            row_delayed = states.count(DELAYED)
            delayed += row_delayed
            row_live = states.count(READY) + states.count(PARKED) + row_held + row_delayed
            invariant(view.live == row_live, "a run's live count is that of its states")
            invariant(view.live + states.count(GONE) == len(states), "each row has one of five states")
    invariant(sum(level.ready + level.parked for level in queue.levels) == queue.ready, "ready is what the lists say")
    if queue.grouped is not None:
        queue.grouped.check()
    if queue.last_values is not None:
        queue.last_values.check()
    invariant(held == queue.held, "held is what the states say")
    by_consumers = sum(consumer.held for consumer in queue.consumers)
    invariant(held == by_consumers + queue.pledged, "what is held, a consumer or a transaction holds")
    for consumer in queue.consumers:
        _check_share(consumer)
    invariant(delayed == queue.delayed, "delayed is what the states say")
    out = queue.acknowledged + sum(queue.removed.values())
    invariant(queue.added == out + queue.ready + held + delayed, "added = acknowledged + removed + what is there")
