"""Bulk moves by an operator: in steps, so that a queue of millions of messages delays no other work.

A bulk move takes the messages that wait in the queue when it begins, each once.  Later messages are left alone, so it
ends, even if the target address leads back to the queue.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from meshq import limits
from meshq.address import TEMPORARY, Target
from meshq.broker.cursors._cursor_machine import held_error
from meshq.broker.ingress._held_rows import divided
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import ENQUEUED, QueueRun, StoredRun
from meshq.broker.queue._run_messages import accepted
from meshq.broker.records._row_ranges import pieces
from meshq.broker.work._fair_scheduler import NODE, CostlyScan
from meshq.broker.work._long_operations import DiskSpaceWait, FairTurnWait, FaultInWait, Steps
from meshq.errors import AddressFullError, MeshqError, Outcome, SecurityError, UsageError
from meshq.message import MessageOrigin
from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker.core._core import Core
    from meshq.broker.management._requester import Requester

#: Returns those of the rows of a run, whose verdicts are known, that may be moved; None: the bulk move ends here.
Movable = Callable[[QueueRun, StoredRun, list[int]], Sequence[int] | None]
#: Returns those unacked rows of a run that go with the others, with the transactions that hold them.
Held = Callable[[QueueRun], Mapping[int, bytes]]
#: Where the messages of a run go; None: they stay.
Aim = Callable[[QueueRun], Target | None]


def bulk_move(
    core: Core,
    queue: Queue,
    filter: Filter | None,
    limit: int,
    aim: Aim,
    reason: str,
    *,
    movable: Movable | None = None,
    asker: Requester | None = None,
    held: Held = lambda view: {},
) -> Steps:
    """Move the messages of a queue that ``filter`` accepts, in steps; the last step has the number of messages.

    ``held`` says which unacked messages go, too.

    Raises:
        AddressFullError: one could not be moved; if others were, the outcome is unknown.
        UsageError: nobody takes some where they would go, and they stay; fewer than ``limit`` others were moved, and
            if there were any the outcome is unknown.
        SecurityError: the same of some that may not go there.
        CursorHeldError: a cursor has the queue; if some were moved, the outcome is unknown.
    """
    owner = asker.owner if asker is not None else NODE
    wait_for_turn = partial(FairTurnWait, owner, asker or queue)
    if filter is not None:
        yield wait_for_turn(CostlyScan(iter(()), limits.SCAN_MESSAGES_MAX))
    last, moved, looks = queue.last, 0, limits.STEP_MESSAGES_MAX
    _check_free(queue, moved)
    staying = UnmovedMessages()
    for priority_list in list(queue.lists.all):
        view = priority_list.head
        while view is not None and view.first <= last and moved < limit:
            following = view.next
            # What filters say of it there; bytes for want of which the last move was refused, 0: it was not.
            known: StoredRun | None = None
            row = need = 0
            while row < len(view.states) and view.live and moved < limit:
                need = yield from _made_ready(core, queue, view, need)
                _check_free(queue, moved)
                began = row
                holders = held(view)
                rows, row, work = _wanted(view, filter, range(row, last - view.first + 1), looks, holders)
                looks -= work
                target = staying.aimed(aim, view, rows)
                stay: list[int] = []
                if target is not None:
                    known = known or core.mover.as_moved(queue, view.run, target, reason)
                    costly = core.mover.costly(owner, known, target, reason, rows)
                    if costly is not None:
                        yield wait_for_turn(costly)
                        row, looks = began, limits.STEP_MESSAGES_MAX
                        continue
                    if movable is None:
                        rows, stay = _parted(core, known, target, rows)
                if (some := movable(view, known or view.run, rows) if movable is not None and rows else rows) is None:
                    yield {"moved": moved}
                    return
                spans = divided(some[: limit - moved], holders) if target is not None else []
                left = core.mover.move(queue, [_span(view, found) for found in spans], target, reason, known=known)
                gone = sum(map(len, spans)) - sum(span.rows for span in left)
                moved += gone
                if left and not gone and core.mover.waits_for in (0, need):
                    # Just that was asked for, and is not to be had.
                    raise _refused(core.mover.refused, moved, target)
                need = core.mover.waits_for if not gone else 0
                if left:  # There was room for some of them, or there may be: it is asked for anew.
                    row = min(span.start for span in left)
                staying.without_place(sum(place < row for place in stay), target)
                if looks <= 0:
                    looks = limits.STEP_MESSAGES_MAX
                    yield None if filter is None else wait_for_turn(CostlyScan(iter(()), limits.SCAN_MESSAGES_MAX))
            if not row:
                # The run has gone: walking past many of these is work, too.
                looks -= 1
                if looks <= 0:
                    looks = limits.STEP_MESSAGES_MAX
                    yield None
            # A run that has gone meanwhile still knows which one came after it.
            view = following
    if moved < limit:
        staying.tell(moved)
    yield {"moved": moved}


def _check_free(queue: Queue, moved: int) -> None:
    """Check that no cursor has the queue, which may have come between two steps."""
    if queue.roster.cursor is not None:
        error = held_error(queue.roster.cursor.facts, "nothing is moved out of it")
        error.outcome = "unknown" if moved else "not_done"
        raise error


def move_scheduled(core: Core, queue: Queue, limit: int, target: Target, reason: str, movable: Movable) -> Steps:
    """Move messages that are not due, in the order in which they were stored; the last step has their number.

    What was stored together is due at once, in its order, and goes together: a few more than ``limit`` may go.

    Raises:
        AddressFullError: one could not be moved; if others were, the outcome is unknown.
    """
    moved, looks = 0, limits.STEP_MESSAGES_MAX
    for view in list(queue.scheduled):
        need = 0
        while view in queue.scheduled and moved < limit:
            need = yield from _made_ready(core, queue, view, need)
            if view not in queue.scheduled:
                # Its messages have become due meanwhile, or have gone.
                break
            looks -= len(view.states)
            rows = [row for row, state in enumerate(view.states) if state in ENQUEUED]
            some = movable(view, view.run, rows)
            if some is None:
                yield {"moved": moved}
                return
            spans = [_span(view, found) for found in pieces(some)]
            left = core.mover.move(queue, spans, target, reason)
            gone = sum(span.rows for span in spans) - sum(span.rows for span in left)
            moved += gone
            if left and not gone and core.mover.waits_for in (0, need):
                raise _refused(core.mover.refused, moved, target)
            if not left:
                break
            need = core.mover.waits_for if not gone else 0
        if looks <= 0:
            looks = limits.STEP_MESSAGES_MAX
            yield None
    yield {"moved": moved}


class UnmovedMessages:
    """Messages that a bulk move leaves where they are, with the reasons, which it reports at its end."""

    __slots__ = ("_denied", "_forbidden", "_place", "_without_place")

    def __init__(self) -> None:
        # Those that nobody takes where they would go, and the first such place.
        self._without_place = 0
        self._place: Target | None = None
        # Those that may not go there, and why not the first of them.
        self._forbidden = 0
        self._denied: SecurityError | None = None

    def aimed(self, aim: Aim, view: QueueRun, rows: Sequence[int]) -> Target | None:
        """Where some rows of a run go; None: they stay."""
        try:
            return aim(view) if rows else None
        except SecurityError as error:
            self._denied = self._denied or error
            self._forbidden += len(rows)
            return None

    def without_place(self, messages: int, target: Target | None) -> None:
        """Note messages that no queue of a target takes."""
        if messages:
            self._without_place += messages
            self._place = self._place or target

    def tell(self, moved: int) -> None:
        """Raise the error of a bulk move that has left messages, after ``moved`` others.

        Raises:
            SecurityError, UsageError: some stay.
        """
        stayed = self._without_place
        if self._denied is not None:
            others = f", as do {stayed} that nobody takes" if stayed else ""
            why = f"{self._denied}: this is the first of {self._forbidden} others, which stay{others}"
            refused = SecurityError(f"{moved} messages were moved; {why}", outcome=_outcome(moved))
            refused.refusal = self._denied.refusal
            raise refused
        if stayed:
            why = f"no queue of {_named(self._place)} takes the first of {stayed} others, which stay"
            raise UsageError(f"{moved} messages were moved; {why}", outcome=_outcome(moved))


def _made_ready(
    core: Core, queue: Queue, view: QueueRun, need: int
) -> Generator[FaultInWait | DiskSpaceWait, None, int]:
    """Wait until a run is in memory, and for disk space to move it; return the bytes that are still lacking."""
    asked = False
    while view.live and (view.run.paged or not asked):
        if view.run.paged:
            # Meanwhile others may take the room that was there.
            asked, need = False, 0
            yield FaultInWait(queue, view)
            continue
        asked = True
        if wanted := need or core.mover.room_for(view):
            # Paged meanwhile, it would be read and wait again, and so for ever.
            with core.pager.holding(view.run):
                yield DiskSpaceWait(wanted)
    return need


def _parted(core: Core, run: StoredRun, target: Target, rows: list[int]) -> tuple[list[int], list[int]]:
    """Divide rows: the rows that a queue of the target takes, and the others, which stay."""
    taken = core.ingress.takes_moved(run, target, rows)
    return (rows, []) if len(taken) == len(rows) else (taken, sorted({*rows} - {*taken}))


def _refused(error: MeshqError | None, moved: int, target: Target | None) -> MeshqError:
    if isinstance(error, UsageError):
        return UsageError(f"{moved} messages were moved; {error}", outcome=_outcome(moved))
    text = f"{moved} messages were moved; the next one finds no room at {_named(target)}"
    return AddressFullError(text, outcome=_outcome(moved))


def _outcome(moved: int) -> Outcome:
    """The outcome of a bulk move that ends early: unknown if messages were moved."""
    return "unknown" if moved else "not_done"


def to_address(address: str) -> Aim:
    """Everything goes to one address."""
    target = Target(address, None)
    return lambda view: target


def to_origin(core: Core, permitted: Callable[[str], None]) -> Aim:
    """Move messages back to their origin: to the queue if it still exists, else to the address.

    ``permitted`` raises for an address to which the asker may not send; it is called once for each refused address.
    """
    refused: dict[str, SecurityError] = {}

    def aim(view: QueueRun) -> Target | None:
        origin = view.run.options.origin if view.run.options is not None else None
        target = _way_back(core, origin) if origin is not None else None
        if target is not None:
            if target.address in refused:
                raise refused[target.address]
            try:
                permitted(target.address)
            except SecurityError as error:
                refused[target.address] = error
                raise
        return target

    return aim


def to_others(core: Core, queue: Queue) -> tuple[Aim, Movable]:
    """Route messages for a node as if the node did not exist, until it is linked, if only for a moment.

    From then on it may have stored what it has not confirmed.
    """
    linked = queue.roster.added

    def movable(view: QueueRun, run: StoredRun, rows: list[int]) -> list[int] | None:
        if view.run.options is not None and view.run.options.held:
            # A transaction belongs to the node that has its beginning.
            return []
        if queue.roster.consumers or queue.roster.added > linked:
            return None
        return core.ingress.anew.movable(queue, run, view.remote, rows)

    return (lambda view: Target(view.run.address, None)), movable


def _way_back(core: Core, origin: MessageOrigin) -> Target | None:
    if origin.address.startswith(TEMPORARY) and origin.address not in core.router.addresses:
        # Who waited for it is gone.
        return None
    queue = core.router.queues.get(origin.queue)
    there = queue is not None and queue.address == origin.address
    return Target(origin.address, origin.queue if there else None)


def _wanted(
    view: QueueRun, filter: Filter | None, rows: range, looks: int, held: Mapping[int, bytes]
) -> tuple[list[int], int, int]:
    """Scan rows for accepted ones that are not unacked, but for ``held`` ones: the found rows, the row where the scan
    ended, the work."""
    states, end = view.states, min(rows.stop, len(view.states))
    there = [row for row in range(rows.start, end) if states[row] in ENQUEUED or row in held]
    if filter is None or not there:
        return there, len(states), max(1, end - rows.start)
    found, seen, work = accepted(view.run, filter, there, looks)
    return found, there[seen] if seen < len(there) else len(states), work


def _span(view: QueueRun, rows: range) -> RowSpan:
    return RowSpan(view, rows.start, rows.stop, rows.step)


def _named(target: Target | None) -> str:
    return repr(target.address if target is not None else "")
