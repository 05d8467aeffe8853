"""Where a message is on this node: which queues hold it, in which state, and for whom.

Nothing is kept for it: every run is asked, a step at a time, so that a node that holds millions keeps nobody waiting.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from meshq import limits
from meshq.broker.catalog._router import Router
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.broker.queue._consumer_state import AnyConsumer
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import DELAYED, GONE, UNACKED, QueueRun
from meshq.ids import MessageId

Row = dict[str, Any]
#: Runs that are asked in one step: a fraction of a millisecond.
_STEP_RUNS: Final = limits.STEP_MESSAGES_MAX


def trace(release_queue: ReleaseQueue, router: Router, message_id: MessageId) -> Iterator[list[Row] | None]:
    """Look for a message in steps: yield None after each step, and at the end a row for each queue that has it."""
    rows: list[Row] = []
    asked = 0
    for queue, view in release_queue.pending():
        if (row := _row_in(view, message_id)) is not None:
            rows.append(_sighting(queue, view, row, "storing"))
    for number in list(router.by_number):
        queue_now = router.by_number.get(number)
        if queue_now is None:
            # Deleted between two steps.
            continue
        for view in list(queue_now.scheduled):
            if (row := _row_in(view, message_id)) is not None:
                rows.append(_sighting(queue_now, view, row, "scheduled"))
        for priority_list in list(queue_now.lists.all):
            following = priority_list.head
            while following is not None:
                view, following = following, following.next
                if (row := _row_in(view, message_id)) is not None:
                    rows.append(_sighting(queue_now, view, row, _state(queue_now, view, row)))
                asked += 1
                if asked >= _STEP_RUNS:
                    asked = 0
                    yield None
    yield rows


def _row_in(view: QueueRun, message_id: MessageId) -> int | None:
    """The row of a message in a run that this queue still has; None: it is not there."""
    run = view.run
    if run.producer != message_id.producer:
        return None
    row, rest = divmod(message_id.number - run.number, run.number_step)
    if rest or not 0 <= row < len(view.states) or view.states[row] == GONE:
        return None
    return row


def _state(queue: Queue, view: QueueRun, row: int) -> str:
    state = view.states[row]
    if state == UNACKED:
        return "forwarding" if queue.forwards else "delivering"
    return "delayed" if state == DELAYED else "ready"


def _sighting(queue: Queue, view: QueueRun, row: int, state: str) -> Row:
    origin = view.run.options.origin if view.run.options is not None else None
    found: Row = {
        "queue": queue.name,
        "address": queue.address,
        "state": state,
        "sequence": view.first + row if view.first else 0,
        "deliveries": view.deliveries(row),
        "origin_address": origin.address if origin is not None else "",
        "origin_queue": origin.queue if origin is not None else "",
        "origin_reason": origin.reason if origin is not None else "",
        "session": 0,
        "user": "",
        "peer": "",
    }
    holder = _holder(queue, view, row) if state == "delivering" else None
    session = holder.sink.principal if holder is not None else None
    if session is not None:
        found |= {"session": session.number, "user": session.owner[1], "peer": session.peer}
    return found


def _holder(queue: Queue, view: QueueRun, row: int) -> AnyConsumer | None:
    for consumer in queue.roster.consumers:
        for dispatch in consumer.dispatches:
            rows = range(dispatch.start, dispatch.start + dispatch.rows * dispatch.step, dispatch.step)
            if dispatch.view is view and row in rows and not (dispatch.settled and dispatch.settled[rows.index(row)]):
                return consumer
    return None
