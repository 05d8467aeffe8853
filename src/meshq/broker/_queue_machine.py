"""The queue: runs in order, consumers with room, and nothing else; no clock, no I/O, no journal.

The messages of each priority stand in a list of their own (``_level``); the lists are served from the highest priority
down.  In each, consumers with filters are served first, by ``_filtered_machine``; what they leave is dealt to the
others here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Final

from meshq import limits
from meshq.address import INTERNAL, Target
from meshq.broker._consumer_state import ConsumerState, Grant, Span, fitting, span_bytes
from meshq.broker._filtered_machine import FilteredConsumers
from meshq.broker._level import Level
from meshq.broker._rows import pieces
from meshq.broker._run import (
    DELAYED,
    DELAYED_ROWS,
    GONE,
    GONE_ROWS,
    HELD,
    HELD_ROWS,
    READY,
    READY_ROWS,
    QueueRun,
    StoredRun,
)
from meshq.broker._terms import PLAIN, Terms
from meshq.errors import invariant
from meshq.selector import Filter
from meshq.settings import DEFAULT_ADDRESS_SETTINGS

#: What becomes of messages that are not acknowledged.
REMOVED: Final = ("rejected", "purged", "expired", "dead_lettered", "moved")
#: A mark is moved ahead by so many messages at a time, so that it costs a record in thousands of messages.
MARK_BLOCK: Final = 8_192


class Queue:
    """One queue.

    Counts for conservation (Q8): ``added = acknowledged + what was removed + ready + held + delayed``.
    """

    __slots__ = (
        "_by_priority", "_main", "_plain", "_turn", "acknowledged", "added", "address", "consumers", "delayed",
        "durable", "expires", "held", "last", "levels", "name", "number", "passing", "paused", "ready", "redelivered",
        "removed", "scheduled", "settings", "terms", "unfinished", "used",
    )  # fmt: skip

    def __init__(self, number: int, name: str, address: str, *, durable: bool, terms: Terms = PLAIN) -> None:
        self.number = number
        self.name = name
        self.address = address
        self.durable = durable
        self.terms = terms
        # It goes by itself one day; and somebody has consumed from it since the node started.
        self.passing = terms.owner is not None or (bool(terms.subscription) and not durable)
        self.used = False
        # It takes messages and gives none to consumers.
        self.paused = False
        # The highest message number given.
        self.last = 0
        # Its lists of messages, from the highest priority down.  There is always one of the usual priority; in a
        # store-and-forward queue, where the order must be that of placing, there is no other one.
        self._main = Level(limits.PRIORITY_DEFAULT, durable=durable)
        self._by_priority = {self._main.priority: self._main}
        self.levels = [self._main]
        # Runs that are not due yet, and not to be seen anywhere else.
        self.scheduled: dict[QueueRun, None] = {}
        self.consumers: list[ConsumerState] = []
        # Those without filters.
        self._plain: list[ConsumerState] = []
        # The last dispatch ended before everything was put to the filters.
        self.unfinished = False
        # Whose turn it is among equal consumers.
        self._turn = 0
        self.ready = 0
        self.held = 0
        # Handed back, and to wait before they may be granted again.
        self.delayed = 0
        # Some of its messages have had a time to live.
        self.expires = False
        # What its address asks of it.
        self.settings = DEFAULT_ADDRESS_SETTINGS
        self.added = 0
        self.acknowledged = 0
        # Messages that left without being acknowledged, by what became of them.
        self.removed = dict.fromkeys(REMOVED, 0)
        self.redelivered = 0

    # -- what comes in

    def number_rows(self, rows: int) -> int:
        """Give numbers to ``rows`` messages that are being placed; returns the first."""
        first = self.last + 1
        self.last += rows
        return first

    def append(self, view: QueueRun) -> None:
        """A run becomes visible.  Runs are appended in the order of their numbers."""
        self.level_for(view.run).append(view)
        self.ready += view.live
        self.added += view.live

    def target_of(self, reason: str) -> Target | None:
        """Where messages go that leave for this reason; None: nowhere.

        What leaves the very address that it would go to is gone: it would come back for ever.
        """
        settings = self.settings
        name = settings.expiry_address if reason == "expired" else settings.dead_letter_address
        return Target(name, None) if name is not None and name != self.address else None

    def level_for(self, run: StoredRun) -> Level:
        """Where the messages of a run stand, or will."""
        traits = run.traits
        return self._main if traits is None or self.forwards else self.level(traits.priority)

    @property
    def forwards(self) -> bool:
        """Whether it is a store-and-forward queue: first in, first out, whatever the messages say."""
        return self.name.startswith(INTERNAL)

    def level(self, priority: int) -> Level:
        """The list of a priority, made on first use."""
        level = self._by_priority.get(priority)
        if level is None:
            mark = self._main.mark if self._main.mark == math.inf else 0
            level = self._by_priority[priority] = Level(priority, durable=self.durable, mark=mark)
            self.levels = sorted(self._by_priority.values(), key=_from_the_highest)
            for consumer in self.consumers:
                if consumer.filter is not None:
                    self._join_filtered(level, consumer, consumer.filter)
        return level

    @property
    def mark(self) -> float:
        """Durable messages of the usual priority up to this number may be granted."""
        return self._main.mark

    @mark.setter
    def mark(self, mark: float) -> None:
        for level in self.levels:
            level.mark = mark

    @property
    def live_runs(self) -> int:
        """Runs that it holds, or parts of runs."""
        return sum(level.live_runs for level in self.levels)

    def check_filter(self, filter: Filter) -> None:
        """See that a consumer with this filter can join.

        Raises:
            UsageError: the queue has as many filters as it can ask.
        """
        if self._main.filtered is not None:
            self._main.filtered.check_room(filter)

    def add_consumer(self, consumer: ConsumerState) -> None:
        """A consumer joins, last in the rotation."""
        self.used = True
        self.consumers.append(consumer)
        if consumer.filter is None:
            self._plain.append(consumer)
            return
        for level in self.levels:
            self._join_filtered(level, consumer, consumer.filter)

    def _join_filtered(self, level: Level, consumer: ConsumerState, filter: Filter) -> None:
        if level.filtered is None:
            level.filtered = FilteredConsumers(self, level)
        level.filtered.add(consumer, filter)

    def remove_consumer(self, consumer: ConsumerState) -> None:
        """A consumer leaves.  What it holds must have been given back."""
        invariant(not consumer.grants, "a consumer that leaves holds nothing")
        self.consumers.remove(consumer)
        if consumer.filter is None:
            index = self._plain.index(consumer)
            del self._plain[index]
            if index < self._turn:
                self._turn -= 1
            return
        for level in self.levels:
            if level.filtered is not None:
                level.filtered.remove(consumer)
                if level.filtered.empty:
                    level.filtered = None
        if self._main.filtered is None:
            self.unfinished = False

    def room_changed(self, consumer: ConsumerState) -> None:
        """A consumer with a filter has room again, or none any more."""
        for level in self.levels:
            if level.filtered is not None:
                level.filtered.changed(consumer)

    # -- what goes out

    def dispatch(self, budget: int = limits.STEP_MESSAGES_MAX) -> list[tuple[ConsumerState, Grant]]:
        """Grant ready messages to consumers with room, in order, at most about ``budget`` of them.

        Whoever calls goes on while anything is granted.
        """
        grants: list[tuple[ConsumerState, Grant]] = []
        self.unfinished = False
        if self.paused:
            return grants
        consumers = self._plain
        for level in self.levels:
            if level.ready:
                budget = self._dispatch(level, consumers, budget, grants)
                if budget <= 0 or level.stuck or self.unfinished:
                    # What waits for its mark goes before what is less urgent.
                    break
                if level.ready:
                    # Whoever wants everything has no room for this, and gets nothing less urgent before it.
                    consumers = []
        return grants

    def _dispatch(
        self, level: Level, consumers: list[ConsumerState], budget: int, grants: list[tuple[ConsumerState, Grant]]
    ) -> int:
        """Grant what is ready in one list; returns what is left of the budget."""
        if level.filtered is not None:
            budget -= level.filtered.serve(budget, grants)
        elif len(consumers) == 1:
            only = consumers[0]
            while budget > 0 and level.ready and (whole := self._grant_whole(level, only)) is not None:
                grants.append((only, whole))
                budget -= whole.rows
        while budget > 0 and level.ready and consumers:
            willing = self._willing()
            if not willing:
                break
            span = level.next_span()
            if span is None:
                break
            view, start, stop, fresh = span
            granted = self._deal(willing, view, start, stop, grants)
            if not granted:
                break
            if fresh:
                view.fresh = start + granted
            budget -= granted
        return budget

    def _grant_whole(self, level: Level, consumer: ConsumerState) -> Grant | None:
        """The next run to the only consumer, if it is untouched and fits: nothing has to be searched or divided."""
        view = level.untouched
        if view is None or view.fresh:
            return None
        rows = len(view.states)
        run = view.run
        size = len(run.content.body)
        if (
            view.live != rows
            or rows > consumer.room()
            or size > consumer.window_bytes - consumer.held_bytes
            or (view.first + rows - 1 > level.mark and run.durable and self.durable)
        ):
            return None
        grant = Grant(view, 0, rows, 1, consumer.next_tag)
        grant.size_bytes = size
        self.hold(consumer, grant)
        view.fresh = rows
        level.fresh = view.next
        return grant

    def _willing(self) -> list[ConsumerState]:
        """The consumers with room, whose turn it is first."""
        consumers, turn = self._plain, self._turn
        if len(consumers) == 1:
            return consumers if consumers[0].room() > 0 else []
        if turn:
            consumers = consumers[turn:] + consumers[:turn]
        return [consumer for consumer in consumers if consumer.room() > 0]

    def _deal(
        self,
        willing: list[ConsumerState],
        view: QueueRun,
        start: int,
        stop: int,
        grants: list[tuple[ConsumerState, Grant]],
    ) -> int:
        """Deal rows to the consumers in turn, by stride; returns how many rows were dealt."""
        count = min(len(willing), stop - start)
        chosen = willing[:count]
        if count == 1:
            share = chosen[0].room()
            room_bytes = chosen[0].window_bytes - chosen[0].held_bytes
        else:
            share = min(consumer.room() for consumer in chosen)
            room_bytes = min(consumer.window_bytes - consumer.held_bytes for consumer in chosen)
        rows = min(stop - start, share * count)
        size = span_bytes(view, start, start + rows)
        if size > room_bytes:
            rows = fitting(view, start, start + rows, room_bytes)
            if rows == 0:
                # The first message is larger than that room: it goes to whoever has room for it, or holds nothing,
                # as one message always fits.
                first = span_bytes(view, start, start + 1)
                chosen = [
                    consumer
                    for consumer in willing
                    if not consumer.held or first <= consumer.window_bytes - consumer.held_bytes
                ][:1]
                rows = len(chosen)
            count = len(chosen)
            size = span_bytes(view, start, start + rows) if rows else 0
        for index, consumer in enumerate(chosen[:rows]):
            grant = Grant(view, start + index, start + rows, count, consumer.next_tag)
            grant.size_bytes = size if grant.rows == rows else span_bytes(view, grant.start, grant.stop, count)
            self.hold(consumer, grant)
            grants.append((consumer, grant))
        if rows:
            last = chosen[(rows - 1) % count]
            self._turn = (self._plain.index(last) + 1) % len(self._plain) if len(self._plain) > 1 else 0
        return rows

    def hold(self, consumer: ConsumerState, grant: Grant) -> None:
        """The rows of a grant are the consumer's."""
        rows = grant.rows
        grant.view.states[grant.start : grant.stop : grant.step] = HELD_ROWS[:rows]
        consumer.next_tag += rows
        consumer.held += rows
        consumer.held_bytes += grant.size_bytes
        consumer.grants.append(grant)
        level_of(grant.view).ready -= rows
        self.ready -= rows
        self.held += rows

    # -- what is settled

    def settled(self, span: Span) -> bool:
        """Rows of a grant are acknowledged; True if this queue has no more use for their run."""
        rows = span.rows
        self.held -= rows
        self.acknowledged += rows
        return self._gone(span, rows)

    def take_out(self, span: Span, fate: str) -> bool:
        """Rows leave, held, ready or delayed; True if this queue has no more use for their run."""
        view, rows = span.view, span.rows
        states = view.states[span.start : span.stop : span.step]
        ready, held = states.count(READY), states.count(HELD)
        self.ready -= ready
        self.held -= held
        self.delayed -= rows - ready - held
        level_of(view).ready -= ready
        self.removed[fate] += rows
        return self._gone(span, rows)

    def give_back(self, span: Span, *, counted: bool, waits: bool = False) -> None:
        """Rows of a grant return to their places; ``counted``: they may have reached an application; ``waits``: they
        are not to be granted before ``wake``."""
        view, rows = span.view, span.rows
        self.held -= rows
        if counted:
            self.redelivered += rows
            counts = view.counts
            if counts is None:
                counts = view.counts = {}
            for row in range(span.start, span.stop, span.step):
                counts[row] = view.deliveries(row) + 1
        if waits:
            view.states[span.start : span.stop : span.step] = DELAYED_ROWS[:rows]
            self.delayed += rows
        else:
            self._make_ready(view, span, rows)

    def _make_ready(self, view: QueueRun, span: Span, rows: int) -> None:
        level = level_of(view)
        view.states[span.start : span.stop : span.step] = READY_ROWS[:rows]
        self.ready += rows
        level.ready += rows
        level.came_back(view)

    def put_off(self, span: Span) -> None:
        """Ready rows are not to be granted before ``wake``."""
        rows = span.rows
        span.view.states[span.start : span.stop : span.step] = DELAYED_ROWS[:rows]
        self.ready -= rows
        level_of(span.view).ready -= rows
        self.delayed += rows

    def wake(self, span: Span) -> None:
        """The rows that still wait may be granted again."""
        view = span.view
        waiting = [row for row in range(span.start, span.stop, span.step) if view.states[row] == DELAYED]
        self.delayed -= len(waiting)
        for rows in pieces(waiting):
            self._make_ready(view, Span(view, rows.start, rows.stop, rows.step), len(rows))

    def waiting(self, budget: int) -> list[Span]:
        """Up to about ``budget`` messages that nobody holds, from the highest priority down, oldest first."""
        spans: list[Span] = []
        for view in self._walk():
            if budget <= 0:
                break
            rows = [row for row, state in enumerate(view.states) if state in (READY, DELAYED)]
            spans += [Span(view, found.start, found.stop, found.step) for found in pieces(rows)]
            budget -= len(rows)
        return spans

    def purge(self, budget: int) -> tuple[list[Span], list[bool]]:
        """Take up to about ``budget`` messages out that nobody holds.

        Returns them in parts of runs, and for each whether it was the last of its run here.
        """
        spans = self.waiting(budget)
        return spans, [self.take_out(span, "purged") for span in spans]

    def _walk(self) -> Iterator[QueueRun]:
        """The runs it holds; the one that was given last may go."""
        for level in self.levels:
            view = level.head
            while view is not None:
                following = view.next
                yield view
                view = following

    def _gone(self, span: Span, rows: int) -> bool:
        view = span.view
        view.states[span.start : span.stop : span.step] = GONE_ROWS[:rows]
        view.live -= rows
        if view.live:
            return False
        level_of(view).unlink(view)
        return True

    # -- what may be asked

    def runs(self) -> list[QueueRun]:
        """The runs it holds, from the highest priority down, and in order."""
        return list(self._walk())

    @property
    def filters(self) -> tuple[Filter, ...]:
        """What its consumers want, if each of them wants something in particular; else nothing."""
        filtered = self._main.filtered
        return filtered.filters if filtered is not None and not self._plain else ()

    @property
    def granted(self) -> dict[int, int]:
        """By priority: no message above this number may ever have been delivered, in this life or an earlier one."""
        return {level.priority: level.granted(self.last) for level in self.levels}

    def check(self) -> None:
        """Assert what must hold between steps."""
        held = delayed = 0
        for level in self.levels:
            level.check()
            for view in level.runs():
                states = view.states
                row_held = states.count(HELD)
                held += row_held
                row_delayed = states.count(DELAYED)
                delayed += row_delayed
                row_live = states.count(READY) + row_held + row_delayed
                invariant(view.live == row_live, "a run's live count is that of its states")
                invariant(view.live + states.count(GONE) == len(states), "each row has one of four states")
        invariant(sum(level.ready for level in self.levels) == self.ready, "ready is what the lists say")
        invariant(held == self.held, "held is what the states say")
        invariant(held == sum(consumer.held for consumer in self.consumers), "what is held, a consumer holds")
        invariant(delayed == self.delayed, "delayed is what the states say")
        out = self.acknowledged + sum(self.removed.values())
        invariant(self.added == out + self.ready + held + delayed, "added = acknowledged + removed + what is there")


def level_of(view: QueueRun) -> Level:
    """The list that a visible run stands in."""
    level = view.level
    assert level is not None
    return level


def _from_the_highest(level: Level) -> int:
    return -level.priority
