"""The queue: runs in order, consumers, counts, and nothing else; no clock, no I/O, no journal.

Each priority has its list of messages (``_level``) and its tier of consumers (``_tier``); ``_dispatch_machine`` deals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from meshq import limits
from meshq.address import INTERNAL, Target
from meshq.broker.queue._consumer_priority_group import ConsumerPriorityGroup
from meshq.broker.queue._consumer_state import ConsumerState, Dispatch, RowSpan
from meshq.broker.queue._dispatch_machine import Dispatcher, whole
from meshq.broker.queue._filtered_machine import FilteredConsumers
from meshq.broker.queue._grouped_machine import GroupedMessages
from meshq.broker.queue._last_value_machine import LastValues
from meshq.broker.queue._priority_list import PriorityList, level_of
from meshq.broker.queue._queue_check import check_queue
from meshq.broker.queue._queue_spec import PLAIN, QueueSpec
from meshq.broker.queue._row_ranges import pieces
from meshq.broker.queue._run import (
    DELAYED,
    DELAYED_ROWS,
    GONE_ROWS,
    HELD,
    HELD_ROWS,
    PARKED,
    READY,
    READY_ROWS,
    UNHELD,
    QueueRun,
    StoredRun,
)
from meshq.errors import UsageError, invariant
from meshq.selector import Filter
from meshq.settings import DEFAULT_ADDRESS_SETTINGS

if TYPE_CHECKING:
    from meshq.broker.queue._browser import Browser

#: What becomes of messages that are not acknowledged.
REMOVED: Final = ("rejected", "purged", "expired", "dead_lettered", "moved", "replaced")
#: A mark is moved ahead by so many messages at a time, so that it costs a record in thousands of messages.
MARK_BLOCK: Final = 8_192


class Queue:
    """One queue.

    Counts for conservation (Q8): ``added = acknowledged + what was removed + ready + held + delayed``.
    """

    __slots__ = (
        "_by_priority", "_handing_over", "_main", "_only", "_sole", "acknowledged", "added", "address", "answered",
        "browsers",
        "consumers", "delayed", "durable", "expires", "grouped", "held", "last", "last_values", "levels", "name",
        "number", "outdated", "passing", "paused", "pledged", "ready", "redelivered", "removed", "scheduled",
        "scheduled_messages", "settings", "terms", "tiers", "unfinished", "used", "wanted",
    )  # fmt: skip

    def __init__(self, number: int, name: str, address: str, *, durable: bool, terms: QueueSpec = PLAIN) -> None:
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
        self._main = PriorityList(limits.PRIORITY_DEFAULT, durable=durable)
        self._by_priority = {self._main.priority: self._main}
        self.levels = [self._main]
        # Runs that are not due yet, and not to be seen anywhere else.
        self.scheduled: dict[QueueRun, None] = {}
        self.scheduled_messages = 0
        self.consumers: list[ConsumerState] = []
        # Those who only look at what is here.
        self.browsers: dict[Browser, None] = {}
        # Those that may be served, by priority, from the highest down.
        self.tiers: list[ConsumerPriorityGroup] = []
        # The only one of them, if it wants everything and there is one list only: it gets runs whole, one by one.
        self._only: ConsumerState | None = None
        # The exclusive consumer that alone is served; and whether others hold something that it has to wait for.
        self._sole: ConsumerState | None = None
        self._handing_over = False
        # What belongs to groups, once there was such a message.
        self.grouped: GroupedMessages | None = None
        # If it keeps the newest of each value only: which these are, and what has gone that the journal is to be told.
        self.last_values: LastValues | None = None
        self.outdated: list[tuple[RowSpan, bool]] = []
        # The last dispatch ended before everything was put to the filters.
        self.unfinished = False
        # Runs without which it can't go on and whose content is on the disk only.
        self.wanted: dict[QueueRun, None] = {}
        # Pledged are those of the held ones that transactions have acknowledged: no consumer has them any more.
        self.ready = self.held = self.pledged = 0
        # Handed back, and to wait before they may be granted again.
        self.delayed = 0
        # Some of its messages have had a time to live.
        self.expires = False
        # Of a store-and-forward queue: the other node has stored everything up to this number, and of what was given
        # before nothing more; None: there is no link, or it has not said so yet.
        self.answered: int | None = None
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
        self.ready += view.live
        self.added += view.live
        traits = view.run.traits
        if traits is None and self.last_values is None:
            self._main.append(view)
            return
        if traits is not None and traits.groups is not None and not self.forwards:
            view.groups = traits.groups
        self.level_for(view.run).append(view)
        if view.groups is not None:
            self.groups().appended(view)
        if self.last_values is not None:
            self.last_values.appeared(RowSpan(view, 0, len(view.states), 1))

    def groups(self) -> GroupedMessages:
        """What belongs to groups."""
        grouped = self.grouped
        if grouped is None:
            grouped = self.grouped = GroupedMessages(self)
            for consumer in self.consumers:
                if consumer.served:
                    grouped.joined(consumer)
        return grouped

    def target_of(self, reason: str) -> Target | None:
        """Where messages go that leave for this reason; None: nowhere.

        What leaves the very address that it would go to is gone: it would come back for ever.
        """
        settings = self.settings
        name = settings.expiry_address if reason == "expired" else settings.dead_letter_address
        return Target(name, None) if name is not None and name != self.address else None

    def level_for(self, run: StoredRun) -> PriorityList:
        """Where the messages of a run stand, or will."""
        traits = run.traits
        return self._main if traits is None or self.forwards else self.level(traits.priority)

    @property
    def forwards(self) -> bool:
        """Whether it is a store-and-forward queue: first in, first out, whatever the messages say."""
        return self.name.startswith(INTERNAL)

    def level(self, priority: int) -> PriorityList:
        """The list of a priority, made on first use."""
        level = self._by_priority.get(priority)
        if level is None:
            mark = self._main.mark if self._main.mark == math.inf else 0
            level = self._by_priority[priority] = PriorityList(priority, durable=self.durable, mark=mark)
            self.levels = sorted(self._by_priority.values(), key=_from_the_highest)
            for consumer in self.consumers:
                if consumer.filter is not None and consumer.served:
                    self._join_filtered(level, consumer, consumer.filter)
            self._look_who_is_alone()
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

    def check_filter(self, filter: Filter, priority: int = 0) -> None:
        """See that a consumer with this filter can join.

        Raises:
            UsageError: the queue has as many filters as it can ask.
        """
        lanes = self._main.filtered
        known = priority in lanes and filter in lanes[priority].filters
        if known or filter.index is not None:
            return
        if sum(filtered.asked for filtered in lanes.values()) >= limits.FILTERS_SCANNED_MAX:
            raise UsageError(
                f"the queue {self.name!r} has its {limits.FILTERS_SCANNED_MAX} different filters of the kind that each "
                "message is put to; those with 'name = literal' are not counted"
            )

    # -- who is there

    def add_consumer(self, consumer: ConsumerState) -> None:
        """A consumer joins, last in the rotation."""
        self.used = True
        self.consumers.append(consumer)
        consumer.exclusive = consumer.exclusive or self.settings.default_exclusive
        if consumer.exclusive or self._sole is not None:
            self._elect()
        else:
            self._begin(consumer)

    def remove_consumer(self, consumer: ConsumerState) -> None:
        """A consumer leaves.  What it holds must have been given back."""
        invariant(not consumer.grants, "a consumer that leaves holds nothing")
        self.consumers.remove(consumer)
        if consumer.served:
            self._end(consumer)
        if consumer is self._sole:
            self._elect()

    def _elect(self) -> None:
        """Decide who is served: of the exclusive consumers the first of the highest priority; everybody if none is."""
        exclusive = [consumer for consumer in self.consumers if consumer.exclusive]
        sole = max(exclusive, key=_priority) if exclusive else None
        if sole is self._sole is not None:
            return
        served = self.consumers if sole is None else [sole]
        for consumer in self.consumers:
            if consumer.served and consumer not in served:
                self._end(consumer)
        for consumer in served:
            if not consumer.served:
                self._begin(consumer)
        self._sole = sole
        self._handing_over = sole is not None

    def _begin(self, consumer: ConsumerState) -> None:
        """A consumer may be served from now on."""
        consumer.served = True
        if self.grouped is not None:
            self.grouped.joined(consumer)
            if self.settings.default_group_rebalance:
                self.grouped.renew()
        tier = next((tier for tier in self.tiers if tier.priority == consumer.priority), None)
        if tier is None:
            tier = ConsumerPriorityGroup(consumer.priority)
            self.tiers = sorted([*self.tiers, tier], key=_from_the_highest)
        if consumer.filter is None:
            tier.consumers.append(consumer)
            self._look_who_is_alone()
            return
        tier.choosy += 1
        for level in self.levels:
            self._join_filtered(level, consumer, consumer.filter)
        self._look_who_is_alone()

    def _look_who_is_alone(self) -> None:
        tiers = self.tiers
        alone = len(tiers) == 1 and len(tiers[0].consumers) == 1 and not tiers[0].choosy and len(self.levels) == 1
        self._only = tiers[0].consumers[0] if alone else None

    def _join_filtered(self, level: PriorityList, consumer: ConsumerState, filter: Filter) -> None:
        filtered = level.filtered.get(consumer.priority)
        if filtered is None:
            filtered = level.filtered[consumer.priority] = FilteredConsumers(self, level)
        filtered.add(consumer, filter)

    def _end(self, consumer: ConsumerState) -> None:
        """A consumer is served no more."""
        consumer.served = False
        if self.grouped is not None:
            self.grouped.left(consumer)
        tier = next(tier for tier in self.tiers if tier.priority == consumer.priority)
        if consumer.filter is None:
            tier.remove(consumer)
        else:
            tier.choosy -= 1
            for level in self.levels:
                filtered = level.filtered[tier.priority]
                filtered.remove(consumer)
                if filtered.empty:
                    del level.filtered[tier.priority]
            if not self._main.filtered:
                self.unfinished = False
        if not tier.consumers and not tier.choosy:
            self.tiers.remove(tier)
        self._look_who_is_alone()

    def room_changed(self, consumer: ConsumerState) -> None:
        """A consumer with a filter has room again, or none any more."""
        if consumer.served:
            for level in self.levels:
                level.filtered[consumer.priority].changed(consumer)

    # -- what goes out

    def dispatch(self, budget: int = limits.STEP_MESSAGES_MAX) -> list[tuple[ConsumerState, Dispatch]]:
        """Grant ready messages to consumers with room, in order, at most about ``budget`` of them.

        Whoever calls goes on while anything is granted.
        """
        self.unfinished = False
        grants: list[tuple[ConsumerState, Dispatch]] = []
        if self.paused or (self._handing_over and self._held_by_others()):
            return grants
        if self.last_values is not None and self.last_values.unread:
            # Something newer may stand there.
            return grants
        only, level = self._only, self._main
        if only is not None and not level.grouped_runs:
            while budget > 0 and level.ready and (grant := whole(self, level, only)) is not None:
                grants.append((only, grant))
                budget -= grant.rows + grant.size_bytes // limits.STEP_MESSAGE_BYTES
            if not level.ready:
                return grants
        return Dispatcher(self, budget, grants).run()

    def _held_by_others(self) -> bool:
        """Whether an exclusive consumer has to wait for what those before it hold."""
        assert self._sole is not None
        self._handing_over = self.held - self.pledged > self._sole.held
        return self._handing_over

    def hold(self, consumer: ConsumerState, grant: Dispatch) -> None:
        """The rows of a grant are the consumer's."""
        rows, view = grant.rows, grant.view
        view.states[grant.start : grant.stop : grant.step] = HELD_ROWS[:rows]
        consumer.hold(grant)
        view.level.ready -= rows  # type: ignore[union-attr]  # what is granted is visible
        self.ready -= rows
        self.held += rows

    # -- what is settled

    def settled(self, span: RowSpan) -> bool:
        """Rows of a grant are acknowledged; True if this queue has no more use for their run."""
        rows = span.rows
        self.held -= rows
        self.acknowledged += rows
        return self._gone(span, rows, HELD_ROWS)

    def take_out(self, span: RowSpan, fate: str) -> bool:
        """Rows leave, held, ready or delayed; True if this queue has no more use for their run."""
        view, rows = span.view, span.rows
        states = view.states[span.start : span.stop : span.step]
        ready, held, parked = states.count(READY), states.count(HELD), states.count(PARKED)
        self.ready -= ready + parked
        self.held -= held
        self.delayed -= rows - ready - held - parked
        level_of(view).ready -= ready
        level_of(view).parked -= parked
        self.removed[fate] += rows
        return self._gone(span, rows, states)

    def give_back(self, span: RowSpan, *, counted: bool, waits: bool = False) -> None:
        """Rows of a grant return to their places; ``counted``: they may have reached an application; ``waits``: they
        are not to be granted before ``wake``."""
        view, rows = span.view, span.rows
        self.held -= rows
        if counted:
            self.redelivered += rows
            for row in range(span.start, span.stop, span.step):
                view.count_return(row)
        if waits:
            view.states[span.start : span.stop : span.step] = DELAYED_ROWS[:rows]
            self.delayed += rows
        else:
            self._make_ready(view, span, rows)
        if view.groups is not None:
            self.groups().changed(span, HELD_ROWS)
        if self.last_values is not None:
            self.last_values.appeared(span)

    def _make_ready(self, view: QueueRun, span: RowSpan, rows: int) -> None:
        level = level_of(view)
        view.states[span.start : span.stop : span.step] = READY_ROWS[:rows]
        self.ready += rows
        level.ready += rows
        level.came_back(view)

    def put_off(self, span: RowSpan) -> None:
        """Ready rows are not to be granted before ``wake``."""
        view, rows = span.view, span.rows
        states = view.states[span.start : span.stop : span.step]
        parked = states.count(PARKED)
        view.states[span.start : span.stop : span.step] = DELAYED_ROWS[:rows]
        self.ready -= rows
        level_of(view).ready -= rows - parked
        level_of(view).parked -= parked
        self.delayed += rows
        if parked:
            self.groups().changed(span, states)

    def wake(self, span: RowSpan) -> None:
        """The rows that still wait may be granted again."""
        view = span.view
        waiting = [row for row in range(span.start, span.stop, span.step) if view.states[row] == DELAYED]
        self.delayed -= len(waiting)
        for rows in pieces(waiting):
            woken = RowSpan(view, rows.start, rows.stop, rows.step)
            self._make_ready(view, woken, len(rows))
            if view.groups is not None:
                self.groups().changed(woken, DELAYED_ROWS)

    def waiting(self, budget: int) -> list[RowSpan]:
        """Up to about ``budget`` messages that nobody holds, from the highest priority down, oldest first."""
        spans: list[RowSpan] = []
        for view in self._walk():
            if budget <= 0:
                break
            rows = [row for row, state in enumerate(view.states) if state in UNHELD]
            spans += [RowSpan(view, found.start, found.stop, found.step) for found in pieces(rows)]
            budget -= len(rows)
        return spans

    def purge(self, budget: int) -> tuple[list[RowSpan], list[bool]]:
        """Take up to about ``budget`` messages out that nobody holds.

        Returns them in parts of runs, and for each whether it was the last of its run here.
        """
        spans = self.waiting(budget)
        return spans, [self.take_out(span, "purged") for span in spans]

    def want(self, view: QueueRun) -> None:
        """The content of a run is needed: dispatch again when it is here."""
        self.wanted[view] = None

    def _walk(self) -> Iterator[QueueRun]:
        """The runs it holds; the one that was given last may go."""
        for level in self.levels:
            view = level.head
            while view is not None:
                following = view.next
                yield view
                view = following

    def _gone(self, span: RowSpan, rows: int, before: bytes | bytearray) -> bool:
        """Rows are gone; ``before``: the states that they had."""
        view = span.view
        view.states[span.start : span.stop : span.step] = GONE_ROWS[:rows]
        if view.groups is not None:
            self.groups().changed(span, before)
        if self.last_values is not None:
            self.last_values.gone(span)
        view.live -= rows
        if view.live:
            return False
        view.level.unlink(view)  # type: ignore[union-attr]  # it was visible
        return True

    # -- what may be asked

    def runs(self) -> list[QueueRun]:
        """The runs it holds, from the highest priority down, and in order."""
        return list(self._walk())

    @property
    def filters(self) -> tuple[Filter, ...]:
        """What its consumers want, if each of them wants something in particular; else nothing."""
        lanes = self._main.filtered
        if not lanes or any(tier.consumers for tier in self.tiers):
            return ()
        if len(lanes) == 1:
            return next(iter(lanes.values())).filters
        return tuple({filter: None for filtered in lanes.values() for filter in filtered.filters})

    @property
    def granted(self) -> dict[int, int]:
        """By priority: no message above this number may ever have been delivered, in this life or an earlier one."""
        return {level.priority: level.granted(self.last) for level in self.levels}

    def check(self) -> None:
        """Assert what must hold between steps."""
        check_queue(self)


def _from_the_highest(one: PriorityList | ConsumerPriorityGroup) -> int:
    return -one.priority


def _priority(consumer: ConsumerState) -> int:
    return consumer.priority
