"""The cursors of a node: registered, owned, acknowledged, given up; and the holes that they see."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from heapq import merge
from typing import Final

import attrs

from meshq import limits
from meshq.address import INTERNAL, tells_events
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.cursors._cursor_machine import (
    CursorFacts,
    CursorMachine,
    CursorRequest,
    check_owner,
    held_error,
    lost,
)
from meshq.broker.cursors._holes_machine import VOLATILE, Hole, holes_between, merged
from meshq.broker.events._event_bus import EventBus
from meshq.broker.queue._consumer_state import RowSpan
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._queue_spec import QueueKind
from meshq.broker.queue._run import GONE, QueueRun
from meshq.broker.queue._timers import TimerService
from meshq.broker.records._row_ranges import pieces
from meshq.broker.replay._range_browser import RangeBrowser, first_behind
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.settlement._expiry import Expiry
from meshq.broker.settlement._pending_moves import PendingMoves
from meshq.errors import BusyError, MeshqError, NotFoundError, UsageError
from meshq.notifications import CursorLagging, CursorReleased
from meshq.wire import decline

#: The words for where a new cursor begins.
STARTS: Final = ("earliest", "latest")


@attrs.frozen(kw_only=True)
class Lag:
    """How far a cursor is behind: messages, the bytes of their runs, and the age of the oldest one by its sender."""

    messages: int
    bytes: int
    age_ms: int


class Cursors:
    """The cursors of a node."""

    def __init__(
        self,
        definitions: Definitions,
        acknowledger: Acknowledger,
        expiry: Expiry,
        timers: TimerService,
        pending_moves: PendingMoves,
        *,
        event_bus: EventBus,
        schedule_dispatch: Callable[[Queue], None],
    ) -> None:
        self._definitions = definitions
        self._router = definitions.router
        self._records = definitions.cursors
        self._acknowledger = acknowledger
        self._expiry = expiry
        self._timers = timers
        self._pending_moves = pending_moves
        self._event_bus = event_bus
        self._schedule_dispatch = schedule_dispatch

    def queues(self) -> list[Queue]:
        """Return the queues that a cursor has, by name."""
        queues = self._router.queues
        return [queues[name] for name in sorted(queues) if queues[name].roster.cursor is not None]

    def find(self, queue: Queue, name: str) -> CursorMachine:
        """Return a cursor of a queue.

        Raises:
            NotFoundError: the queue has no cursor of this name.
        """
        cursor = queue.roster.cursor
        if cursor is None or cursor.facts.name != name:
            raise NotFoundError(f"the queue {queue.name!r} has no cursor {name!r}")
        return cursor

    def owned(self, queue: Queue, name: str, fence: int) -> CursorMachine:
        """Return a cursor after a check of its fence.

        Raises:
            CursorLostError: it is not any more, or the cursor is gone.
        """
        return check_owner(queue.roster.cursor, queue.name, (name, fence))

    # -- owners

    def open(self, queue: Queue, wanted: CursorRequest) -> CursorMachine | None:
        """Take a cursor, which is registered if the queue has none; return None while another owner has its lease.

        Raises:
            CursorHeldError: the queue has another cursor.
            RefusedError: the queue has consumers.
            UsageError, BusyError: the queue takes no cursor, or none now.
            AddressFullError, JournalBrokenError: nothing changed.
        """
        cursor = queue.roster.cursor
        if cursor is None:
            cursor = self._register(queue, wanted)
        elif cursor.facts.name != wanted.name:
            raise held_error(cursor.facts, f"it has one cursor at a time, and {wanted.name!r} is another one")
        before, fence = cursor.facts, self._next_number()
        if not cursor.take(wanted, fence, self._timers.elapsed_ms):
            return None
        if cursor.facts.fence == fence:
            self._router.skip_numbers(fence)
        self._write(cursor, before)
        self._end_browsers(queue, cursor.facts.fence, lost(queue.name, wanted.name, "taken"))
        return cursor

    def _register(self, queue: Queue, wanted: CursorRequest) -> CursorMachine:
        self._check_queue(queue)
        router, numbers = self._router, self._definitions.numbers
        if wanted.start not in STARTS:
            raise UsageError(f"a cursor starts at {' or '.join(map(repr, STARTS))}, not at {wanted.start[:64]!r}")
        high = queue.counts.high
        start = first_number(queue) if wanted.start == "earliest" else high
        epoch = self._next_number()
        router.skip_numbers(epoch)
        facts = CursorFacts(
            queue=queue.number,
            queue_name=queue.name,
            name=wanted.name,
            user=wanted.user,
            epoch=epoch,
            start=start,
            since=high,
            processed=start,
            pinned=start,
            lease_ms=wanted.lease_ms,
            max_lag=wanted.max_lag,
        )
        # What comes after a restart is not below the start: nobody may have seen the numbers that were given before.
        self._definitions.watermarks.cover_given(queue)
        position = numbers.given(epoch, self._records.write(facts, 0))
        cursor = CursorMachine(facts, self._timers.elapsed_ms, floor=0, position=position)
        volatile = self._volatile(queue, start)
        if volatile:
            self._records.write_holes(cursor, volatile)
        queue.roster.cursor = cursor
        self._router.demand.mobility_changed(queue.name)
        return cursor

    def _next_number(self) -> int:
        """Return a number for an epoch or a fence, higher than that of any queue, epoch or fence in any life."""
        number = self._router.last_number + 1
        self._definitions.numbers.reserve(number)
        return number

    def _check_queue(self, queue: Queue) -> None:
        """Check that a queue can have a cursor now."""
        name = queue.name
        if queue.kind not in (QueueKind.REGULAR, QueueKind.SUBSCRIPTION) or queue.address.startswith(INTERNAL):
            raise UsageError(f"the queue {name!r} takes no cursor: it is temporary, or the node's own")
        if tells_events(queue.address):
            raise UsageError(f"the queue {name!r} takes no cursor: it has notifications, of which the oldest go")
        if self._definitions.durable and not queue.durable:
            raise UsageError(f"the queue {name!r} takes no cursor: it is not durable, and a cursor is")
        if queue.last_values is not None:
            raise UsageError(f"the queue {name!r} takes no cursor: it keeps only the last value of each key")
        consumers = len(queue.roster.consumers)
        if consumers:
            raise decline("in_use", f"the queue {name!r} has {consumers} consumers, and takes no cursor beside them")
        if queue.counts.unacked or queue in self._pending_moves:
            raise BusyError(f"a transaction, or a move to another address, holds messages of the queue {name!r}")

    def _volatile(self, queue: Queue, start: int) -> list[Hole]:
        """The numbers of messages that are there and not durable."""
        if not self._definitions.durable:
            return []
        soft = [view for view in queue.runs() if not view.run.durable]
        # What waits for its sync may be of either kind.
        waiting = queue.counts.high, queue.last + 1
        found = merged([*((max(view.first, start), view.first + len(view.states)) for view in soft), waiting])
        return [Hole(lo, hi, VOLATILE) for lo, hi in found]

    def renew(self, queue: Queue, name: str, fence: int) -> CursorMachine:
        """Renew a lease.

        Raises:
            CursorLostError: the cursor is not this owner's any more.
        """
        cursor = self.owned(queue, name, fence)
        cursor.renew(fence, self._timers.elapsed_ms)
        return cursor

    def release(self, queue: Queue, name: str, fence: int) -> None:
        """Give up the ownership; the cursor stays.

        Raises:
            CursorLostError: the cursor is not this owner's any more.
            JournalBrokenError: nothing is durable.
        """
        cursor = self.owned(queue, name, fence)
        before = cursor.facts
        cursor.release(fence)
        self._write(cursor, before)
        self._end_browsers(queue, 0, lost(queue.name, name, "released"))

    def delete(self, queue: Queue, name: str) -> None:
        """Delete a cursor; its messages are for consumers again.

        Raises:
            NotFoundError: the queue has no cursor of this name.
            JournalBrokenError: the disk has failed.
        """
        self._end(queue, self.find(queue, name), "delete", "deleted")

    def _write(self, cursor: CursorMachine, before: CursorFacts) -> None:
        if cursor.facts is not before:
            cursor.position = self._records.write(cursor.facts, cursor.position)

    # -- the place

    def pin(self, queue: Queue, name: str, fence: int, number: int) -> CursorMachine:
        """Keep everything below a number from expiring.

        Raises:
            CursorLostError: the cursor is not this owner's any more.
            UsageError: the number is above the high mark.
        """
        cursor = self.owned(queue, name, fence)
        before = cursor.facts
        cursor.pin(fence, number, queue.counts.high, self._timers.elapsed_ms)
        self._write(cursor, before)
        return cursor

    def ack(self, queue: Queue, name: str, fence: int, number: int) -> CursorMachine:
        """Acknowledge everything below a number: its messages leave the queue.

        A number that is not above the last one changes nothing.

        Raises:
            CursorLostError: the cursor is not this owner's any more.
            UsageError: the number is above the high mark.
        """
        cursor = self.owned(queue, name, fence)
        cursor.check_ack(fence, number, queue.counts.high)
        before = cursor.facts
        cursor.acknowledged(number)
        if cursor.facts is not before:
            # Nobody but the cursor may ever have seen a number that goes: it must not be given again.
            self._definitions.watermarks.cover_given(queue)
            # First the place, then the messages: what a crash leaves below the place is taken out by the next life.
            self._write(cursor, before)
            self._settle(queue, cursor)
            self._records.forget(cursor.holes.forget_below(number))
        cursor.renew(fence, self._timers.elapsed_ms)
        return cursor

    def _settle(self, queue: Queue, cursor: CursorMachine) -> None:
        """Take out the messages that the cursor has acknowledged."""
        facts = cursor.facts
        part: list[RowSpan] = []
        rows = 0
        for view in _views_below(queue, facts.processed):
            for found in pieces(_live_rows(view, facts.start, facts.processed)):
                part.append(RowSpan(view, found.start, found.stop, found.step))
                rows += len(found)
            if rows >= limits.STEP_MESSAGES_MAX - limits.RUN_MESSAGES_MAX:
                self._acknowledger.take(queue, part)
                part, rows = [], 0
        if part:
            self._acknowledger.take(queue, part)
        cursor.settled = True
        self._schedule_dispatch(queue)

    # -- looking after cursors

    def look(self, queue: Queue, cursor: CursorMachine) -> None:
        """Look after the cursor of a queue that has changed: a queue that is dispatched."""
        if not cursor.settled:
            self._settle(queue, cursor)
        most = self.max_lag(queue, cursor)
        if not most:
            return
        waiting = self.waiting(queue, cursor)
        about = {"address": queue.address, "queue": queue.name, "name": cursor.facts.name}
        if cursor.lags(waiting, most):
            self._event_bus.emit(CursorLagging, **about, lag=waiting, max_lag=most)
        if cursor.is_abandoned(waiting, most, self._timers.elapsed_ms):
            self._end(queue, cursor, "give up", "max_lag")

    def tick(self) -> None:
        """Look after the cursors whose leases may have run out."""
        for queue in self.queues():
            cursor = queue.roster.cursor
            if cursor is not None and self.max_lag(queue, cursor):
                self.look(queue, cursor)

    def max_lag(self, queue: Queue, cursor: CursorMachine) -> int:
        """Return how many messages may wait for a cursor, by its owner or by the settings of the address; 0: any."""
        return cursor.max_lag(queue.settings.cursor_max_lag)

    @property
    def watched(self) -> bool:
        """Whether a cursor may be given up as time passes."""
        queues = self._router.queues.values()
        found = ((queue, queue.roster.cursor) for queue in queues)
        return any(cursor is not None and self.max_lag(queue, cursor) for queue, cursor in found)

    def _end(self, queue: Queue, cursor: CursorMachine, event: str, reason: str) -> None:
        self._settle(queue, cursor)
        dead = [position for position in (cursor.position, *cursor.holes.forget_all()) if position]
        self._definitions.numbers.write(self._router.last_number, dead)
        cursor.life.on(event)
        queue.roster.cursor = None
        self._end_browsers(queue, 0, lost(queue.name, cursor.facts.name, reason))
        self._event_bus.emit(
            CursorReleased, address=queue.address, queue=queue.name, name=cursor.facts.name, reason=reason
        )
        # What waited for the cursor to go.
        self._router.rule(queue)
        if queue.expires:
            for view in queue.runs():
                self._expiry.watch(queue, view)
        self._router.demand.mobility_changed(queue.name)
        self._schedule_dispatch(queue)

    def _end_browsers(self, queue: Queue, fence: int, error: MeshqError) -> None:
        """End the browses of former owners."""
        for browser in list(queue.roster.browsers):
            if isinstance(browser, RangeBrowser) and browser.owner[1] not in (0, fence):
                browser.lose(error)

    # -- reading

    def waiting(self, queue: Queue, cursor: CursorMachine) -> int:
        """Return how many messages a cursor has not acknowledged."""
        counts, start = queue.counts, cursor.facts.start
        before = sum(_count(view, 0, start) for view in _views_below(queue, start))
        return counts.ready + counts.unacked + counts.delayed - before

    def lag(self, queue: Queue, cursor: CursorMachine, now_ms: int) -> Lag:
        """Return how far a cursor is behind."""
        messages = size = 0
        oldest = math.inf
        for view in queue.runs():
            rows = _count(view, cursor.facts.processed, queue.counts.high)
            if rows:
                messages += rows
                size += view.run.content_bytes * rows // len(view.states)
                oldest = min(oldest, view.run.stamp)
        age_ms = 0 if oldest == math.inf else max(0, now_ms - int(oldest))
        return Lag(messages=messages, bytes=size, age_ms=age_ms)

    def holes(self, queue: Queue, lo: int, hi: int) -> Iterator[Hole]:
        """Yield the numbers of a range that no message has, in order; nothing of the queue may change meanwhile.

        Raises:
            UsageError: the range ends above the high mark, or before it begins.
        """
        check_range(queue, lo, hi)
        present = merge(*(_present(priority_list, lo, hi) for priority_list in queue.lists.all))
        cursor = queue.roster.cursor
        if cursor is None:
            # Nobody keeps account.
            return holes_between(lo, hi, present, None, processed=(0, 0), since=queue.counts.high, floor=0)
        facts = cursor.facts
        done = (facts.start, facts.processed)
        return holes_between(lo, hi, present, cursor.holes, processed=done, since=facts.since, floor=cursor.floor)


def check_range(queue: Queue, lo: int, hi: int) -> None:
    """Check a range of numbers.

    Raises:
        UsageError: it ends above the high mark of the queue, or before it begins.
    """
    high = queue.counts.high
    if not 1 <= lo <= hi <= high:
        raise UsageError(f"the range [{lo}, {hi}) is not one of the queue {queue.name!r}: it has [1, {high})")


def first_number(queue: Queue) -> int:
    """Return the lowest number that a message has; the high mark of an empty queue."""
    lowest = queue.counts.high
    for priority_list in queue.lists.all:
        view = priority_list.head
        if view is not None:
            lowest = min(lowest, view.first + next(row for row, state in enumerate(view.states) if state != GONE))
    return lowest


def _views_below(queue: Queue, number: int) -> list[QueueRun]:
    """The runs that begin below a number, of each priority in order."""
    found: list[QueueRun] = []
    for priority_list in queue.lists.all:
        view = priority_list.head
        while view is not None and view.first < number:
            found.append(view)
            view = view.next
    return found


def _present(priority_list: PriorityList, lo: int, hi: int) -> Iterator[tuple[int, int]]:
    """The ranges of numbers from ``lo`` up to, and without, ``hi`` that messages of a priority have, in order."""
    view = first_behind(priority_list, lo)
    while view is not None and view.first < hi:
        first, rows = view.first, len(view.states)
        if view.live == rows:
            yield max(first, lo), min(first + rows, hi)
        else:
            for row in _live_rows(view, lo, hi):
                yield first + row, first + row + 1
        view = view.next


def _count(view: QueueRun, lo: int, hi: int) -> int:
    """How many messages of a run have numbers from ``lo`` up to, and without, ``hi``."""
    first, rows = view.first, len(view.states)
    if lo <= first and first + rows <= hi:
        return view.live
    start, stop = max(0, lo - first), max(0, min(rows, hi - first))
    return max(0, stop - start) - view.states.count(GONE, start, stop)


def _live_rows(view: QueueRun, lo: int, hi: int) -> list[int]:
    """The rows of a run with numbers from ``lo`` up to, and without, ``hi`` that are there."""
    first, states = view.first, view.states
    rows = range(max(0, lo - first), max(0, min(len(states), hi - first)))
    return [row for row in rows if states[row] != GONE]
