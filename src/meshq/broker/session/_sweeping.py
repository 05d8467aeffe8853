"""Moving many messages at an operator's word: a plan in steps, so that a queue of millions keeps nobody waiting.

A sweep sees what waits in the queue when it begins, and each message once.  What comes later is left alone, so a sweep
ends, and so does one that moves messages to an address that leads back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from meshq import limits
from meshq.address import TEMPORARY, Target
from meshq.broker.queue._consumer_state import Span
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._rows import pieces
from meshq.broker.queue._run import UNHELD, QueueRun
from meshq.broker.queue._run_messages import RunMessages
from meshq.broker.session._jobs import Absent
from meshq.errors import AddressFullError, MeshqError, Outcome, SecurityError, UsageError
from meshq.message import Origin
from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker._core import Core

#: Where the messages of a run go; None: they stay.
Aim = Callable[[QueueRun], Target | None]


def sweep(
    core: Core, queue: Queue, filter: Filter | None, limit: int, aim: Aim, reason: str
) -> Iterator[dict[str, Any] | Absent | None]:
    """Move what waits in ``queue``, accepted by ``filter``, ``limit`` messages at most; None after each step, and the
    number of messages at the end.

    Raises:
        AddressFullError, UsageError, SecurityError: a message could not be moved; those before it were, and if there
            were any the outcome is unknown.
    """
    last = queue.last
    moved = looked = 0
    for level in list(queue.levels):
        view = level.head
        while view is not None and view.first <= last and moved < limit:
            following = view.next
            looked += len(view.states)
            while view.live and view.run.paged:
                yield Absent(queue, view)
            rows = _wanted(view, filter, last)[: limit - moved] if view.live else []
            target = _aimed(aim, view, moved) if rows else None
            rows = rows if target is not None else []
            spans = [Span(view, found.start, found.stop, found.step) for found in pieces(rows)]
            left = core.mover.move(queue, spans, target, reason)
            moved += len(rows) - sum(span.rows for span in left)
            if left:
                raise _refused(core.mover.refused, moved, target)
            if looked >= limits.STEP_MESSAGES_MAX:
                looked = 0
                yield None
            # A run that has gone meanwhile still knows which one came after it.
            view = following
    yield {"moved": moved}


def _refused(error: MeshqError | None, moved: int, target: Target | None) -> MeshqError:
    if isinstance(error, UsageError):
        return UsageError(f"{moved} messages were moved; {error}", outcome=_outcome(moved))
    text = f"{moved} messages were moved; the next one finds no room at {_named(target)}"
    return AddressFullError(text, outcome=_outcome(moved))


def _outcome(moved: int) -> Outcome:
    """Of a sweep that ends before its end: what is half done is neither done nor not done."""
    return "unknown" if moved else "not_done"


def _aimed(aim: Aim, view: QueueRun, moved: int) -> Target | None:
    try:
        return aim(view)
    except SecurityError as error:
        refused = SecurityError(f"{moved} messages were moved; {error}", outcome=_outcome(moved))
        refused.refusal = error.refusal
        raise refused from error


def to_address(address: str) -> Aim:
    """Everything goes to one address."""
    target = Target(address, None)
    return lambda view: target


def to_origin(core: Core, permitted: Callable[[str], None]) -> Aim:
    """What was moved goes back: to its queue if that is there still, else to its address, if that can be made anew.

    ``permitted`` raises for an address to which whoever asks may not send.
    """

    def aim(view: QueueRun) -> Target | None:
        origin = view.run.traits.origin if view.run.traits is not None else None
        target = _way_back(core, origin) if origin is not None else None
        if target is not None:
            permitted(target.address)
        return target

    return aim


def _way_back(core: Core, origin: Origin) -> Target | None:
    if origin.address.startswith(TEMPORARY) and origin.address not in core.router.addresses:
        # Who waited for it is gone.
        return None
    queue = core.router.queues.get(origin.queue)
    there = queue is not None and queue.address == origin.address
    return Target(origin.address, origin.queue if there else None)


def _wanted(view: QueueRun, filter: Filter | None, last: int) -> list[int]:
    rows = [row for row, state in enumerate(view.states) if state in UNHELD and view.first + row <= last]
    if filter is None:
        return rows
    messages = RunMessages(view.run)
    found = []
    for row in rows:
        messages.move(row, properties=filter.uses_properties)
        if filter.matches(messages):
            found.append(row)
    return found


def _named(target: Target | None) -> str:
    return repr(target.address if target is not None else "")
