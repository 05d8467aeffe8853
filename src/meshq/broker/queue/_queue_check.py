"""The invariants of a queue between steps: its counts, lists, runs and consumers agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from meshq.broker.queue._run import DELAYED, GONE, PARKED, READY, UNACKED
from meshq.errors import invariant

if TYPE_CHECKING:
    from meshq.broker.queue._consumer_state import ConsumerState
    from meshq.broker.queue._queue_machine import Queue


def _check_share(consumer: ConsumerState) -> None:
    """Assert that a consumer has the content of each run once in its share, as far as grants of it are neighbours."""
    counted = 0
    run = None
    for dispatch in consumer.dispatches:
        invariant(
            dispatch.counts or dispatch.view.run is run, "what is not counted stands behind something of the same run"
        )
        run = dispatch.view.run
        counted += run.content_bytes if dispatch.counts else 0
    invariant(
        consumer.unacked_memory is None or consumer.pinned_bytes == counted, "a consumer's share is what it holds"
    )


def check_queue(queue: Queue) -> None:
    """Assert the invariants of a queue."""
    unacked = delayed = 0
    for priority_list in queue.priority_lists:
        priority_list.check()
        for view in priority_list.runs():
            states = view.states
            row_unacked = states.count(UNACKED)
            unacked += row_unacked
            row_delayed = states.count(DELAYED)
            delayed += row_delayed
            row_live = states.count(READY) + states.count(PARKED) + row_unacked + row_delayed
            invariant(view.live == row_live, "a run's live count is that of its states")
            invariant(view.live + states.count(GONE) == len(states), "each row has one of five states")
    invariant(
        sum(priority_list.ready + priority_list.parked for priority_list in queue.priority_lists) == queue.ready,
        "ready is what the lists say",
    )
    if queue.grouped is not None:
        queue.grouped.check()
    if queue.last_values is not None:
        queue.last_values.check()
    invariant(unacked == queue.unacked, "unacked is what the states say")
    by_consumers = sum(consumer.unacked for consumer in queue.consumers)
    invariant(
        unacked == by_consumers + queue.acked_in_transaction, "an unacked message has a consumer or a transaction"
    )
    for consumer in queue.consumers:
        _check_share(consumer)
    invariant(delayed == queue.delayed, "delayed is what the states say")
    out = queue.acknowledged + sum(queue.removed.values())
    invariant(queue.added == out + queue.ready + unacked + delayed, "added = acknowledged + removed + what is there")
