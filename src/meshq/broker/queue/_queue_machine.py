"""The queue: runs in order, consumers and counts, without clock, I/O and journal.

Each priority has a list of messages (``_priority_list``) and a group of consumers (``_consumer_priority_group``).
``_dispatch_machine`` says which consumer gets which messages.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from meshq import limits
from meshq.address import Target
from meshq.broker.queue._consumer_priority_group import ConsumerPriorityGroup
from meshq.broker.queue._consumer_state import ConsumerState, Dispatch, RowSpan
from meshq.broker.queue._dispatch_machine import Dispatcher, whole
from meshq.broker.queue._filtered_machine import FilteredConsumers
from meshq.broker.queue._grouped_machine import GroupedMessages
from meshq.broker.queue._last_value_machine import LastValues
from meshq.broker.queue._priority_list import PriorityList, list_of
from meshq.broker.queue._queue_check import check_queue
from meshq.broker.queue._queue_spec import DEFAULT_SPEC, QueueKind, QueueSpec
from meshq.broker.queue._row_ranges import pieces
from meshq.broker.queue._run import (
    DELAYED,
    DELAYED_ROWS,
    ENQUEUED,
    GONE_ROWS,
    PARKED,
    READY,
    READY_ROWS,
    UNACKED,
    UNACKED_ROWS,
    QueueRun,
    StoredRun,
)
from meshq.errors import UsageError, invariant
from meshq.selector import Filter
from meshq.settings import DEFAULT_ADDRESS_SETTINGS, AddressSettings

if TYPE_CHECKING:
    from meshq.broker.queue._browser import Browser

_PRIORITY: Final = attrgetter("priority")
#: The ways in which messages leave a queue without an acknowledgement.
REMOVED: Final = ("rejected", "purged", "expired", "dead_lettered", "moved", "replaced")
#: A watermark is moved ahead by so many messages at a time: one record is written for thousands of messages.
WATERMARK_BLOCK: Final = 8_192


class Queue:
    """One queue.

    Invariant of the counts (Q8): ``added = acknowledged + removed + ready + unacked + delayed``.
    """

    __slots__ = (
        "_by_priority", "_exclusive", "_handing_over", "_main", "_only_consumer", "acked_in_transaction",
        "acknowledged", "added", "address", "answered", "auto_delete", "browsers", "consumers", "delayed", "durable",
        "expires", "forwards", "grouped", "kind", "last", "last_values", "name", "number", "outdated", "paused",
        "priority_groups", "priority_lists", "ready", "redelivered", "removed", "scheduled", "scheduled_messages",
        "settings", "spec", "to_fault_in", "unacked", "unfinished", "used",
    )  # fmt: skip

    def __init__(self, number: int, name: str, address: str, *, durable: bool, spec: QueueSpec = DEFAULT_SPEC) -> None:
        self.number: int = number
        self.name: str = name
        self.address: str = address
        self.durable: bool = durable
        self.spec: QueueSpec = spec
        self.kind: QueueKind = spec.kind_of(name)
        # Whether it is a store-and-forward queue, which is first in, first out for all priorities.
        self.forwards: bool = self.kind is QueueKind.STORE_AND_FORWARD
        # The queue is deleted when it is no longer used.  ``used``: it had a consumer since the node started.
        self.auto_delete: bool = spec.owner is not None or (bool(spec.subscription) and not durable)
        self.used: bool = False
        # A paused queue takes messages and gives none to consumers.
        self.paused: bool = False
        # The highest message number given.
        self.last: int = 0
        # From the highest priority down.  A store-and-forward queue keeps the order of placing: it has one list.
        self._main = PriorityList(limits.PRIORITY_DEFAULT, durable=durable)
        self._by_priority = {self._main.priority: self._main}
        self.priority_lists: list[PriorityList] = [self._main]
        # Runs that are not due yet: no other list of the queue has these.
        self.scheduled: dict[QueueRun, None] = {}
        self.scheduled_messages: int = 0
        self.consumers: list[ConsumerState] = []
        self.browsers: dict[Browser, None] = {}
        # The served consumers by priority, from the highest down.
        self.priority_groups: list[ConsumerPriorityGroup] = []
        # The only served consumer, if it has no filter and there is one list: it gets whole runs, one by one.
        self._only_consumer: ConsumerState | None = None
        # The exclusive consumer that alone is served; and whether it waits for unacked messages of other consumers.
        self._exclusive: ConsumerState | None = None
        self._handing_over = False
        # Messages with a group; None before the first such message.
        self.grouped: GroupedMessages | None = None
        # Of a last-value queue: the newest message of each value, and the replaced ones that the journal must forget.
        self.last_values: LastValues | None = None
        self.outdated: list[tuple[RowSpan, bool]] = []
        # The last dispatch ended before all messages were put to the filters.
        self.unfinished: bool = False
        # Paged runs that the next dispatch needs in memory.
        self.to_fault_in: dict[QueueRun, None] = {}
        # ``acked_in_transaction``: unacked messages that an undecided transaction acknowledges; no consumer has these.
        self.ready: int = 0
        self.unacked: int = 0
        self.acked_in_transaction: int = 0
        # Returned messages that wait before they may be dispatched again.
        self.delayed: int = 0
        # A message with a time to live has been in the queue.
        self.expires: bool = False
        # Of a store-and-forward queue: the other node has stored exactly the messages up to this number; None: there
        # is no link, or the other node has not said it yet.
        self.answered: int | None = None
        self.settings: AddressSettings = DEFAULT_ADDRESS_SETTINGS
        self.added: int = 0
        self.acknowledged: int = 0
        self.removed: dict[str, int] = dict.fromkeys(REMOVED, 0)
        self.redelivered: int = 0

    # -- what comes in

    def number_rows(self, rows: int) -> int:
        """Reserve numbers for ``rows`` messages that are being placed; return the first number."""
        first = self.last + 1
        self.last += rows
        return first

    def append(self, view: QueueRun) -> None:
        """Make a run visible.  Runs are appended in the order of their numbers."""
        self.ready += view.live
        self.added += view.live
        options = view.run.options
        if options is None and self.last_values is None:
            self._main.append(view)
            return
        if options is not None and options.groups is not None and not self.forwards:
            view.groups = options.groups
        self.list_for(view.run).append(view)
        if view.groups is not None:
            self.groups().appended(view)
        if self.last_values is not None:
            self.last_values.appeared(RowSpan(view, 0, len(view.states), 1))

    def groups(self) -> GroupedMessages:
        """Return the messages with a group, for the first time or again."""
        grouped = self.grouped
        if grouped is None:
            grouped = self.grouped = GroupedMessages(self)
            for consumer in self.consumers:
                if consumer.served:
                    grouped.joined(consumer)
        return grouped

    def target_of(self, reason: str) -> Target | None:
        """Return the target of messages that leave for this reason; None: the messages are dropped.

        A message of the target address itself is dropped: it would come back for ever.
        """
        settings = self.settings
        name = settings.expiry_address if reason == "expired" else settings.dead_letter_address
        return Target(name, None) if name is not None and name != self.address else None

    def list_for(self, run: StoredRun) -> PriorityList:
        """Return the list for the messages of a run."""
        options = run.options
        return self._main if options is None or self.forwards else self.priority_list(options.priority)

    def priority_list(self, priority: int) -> PriorityList:
        """Return the list of a priority; made on first use."""
        priority_list = self._by_priority.get(priority)
        if priority_list is None:
            high_watermark = self._main.high_watermark if self._main.high_watermark == math.inf else 0
            priority_list = self._by_priority[priority] = PriorityList(
                priority, durable=self.durable, high_watermark=high_watermark
            )
            self.priority_lists = sorted(self._by_priority.values(), key=_PRIORITY, reverse=True)
            for consumer in self.consumers:
                if consumer.filter is not None and consumer.served:
                    self._join_filtered(priority_list, consumer, consumer.filter)
            self._update_only_consumer()
        return priority_list

    @property
    def high_watermark(self) -> float:
        """The highest number of a durable message of default priority that may be dispatched."""
        return self._main.high_watermark

    @high_watermark.setter
    def high_watermark(self, high_watermark: float) -> None:
        for priority_list in self.priority_lists:
            priority_list.high_watermark = high_watermark

    @property
    def live_runs(self) -> int:
        """Runs, or parts of runs, in the queue."""
        return sum(priority_list.live_runs for priority_list in self.priority_lists)

    def check_filter(self, filter: Filter, priority: int = 0) -> None:
        """Check that a consumer with this filter can join.

        Raises:
            UsageError: the queue has the maximum of different filters.
        """
        filter_groups = self._main.filtered
        known = priority in filter_groups and filter in filter_groups[priority].filters
        if known or filter.index is not None:
            return
        if sum(filtered.asked for filtered in filter_groups.values()) >= limits.FILTERS_SCANNED_MAX:
            raise UsageError(
                f"the queue {self.name!r} has its {limits.FILTERS_SCANNED_MAX} different filters of the kind that each "
                "message is put to; those with 'name = literal' are not counted"
            )

    # -- consumers

    def add_consumer(self, consumer: ConsumerState) -> None:
        """Add a consumer, last in the rotation."""
        self.used = True
        self.consumers.append(consumer)
        consumer.exclusive = consumer.exclusive or self.settings.default_exclusive
        if consumer.exclusive or self._exclusive is not None:
            self._elect_exclusive()
        else:
            self._start_serving(consumer)

    def remove_consumer(self, consumer: ConsumerState) -> None:
        """Remove a consumer, which has no unacked messages any more."""
        invariant(not consumer.dispatches, "a consumer that leaves holds nothing")
        self.consumers.remove(consumer)
        if consumer.served:
            self._stop_serving(consumer)
        if consumer is self._exclusive:
            self._elect_exclusive()

    def _elect_exclusive(self) -> None:
        """Choose the exclusive consumer: the first of the highest priority.  Without one all consumers are served."""
        exclusive = [consumer for consumer in self.consumers if consumer.exclusive]
        exclusive_consumer = max(exclusive, key=_PRIORITY) if exclusive else None
        if exclusive_consumer is self._exclusive is not None:
            return
        served = self.consumers if exclusive_consumer is None else [exclusive_consumer]
        for consumer in self.consumers:
            if consumer.served and consumer not in served:
                self._stop_serving(consumer)
        for consumer in served:
            if not consumer.served:
                self._start_serving(consumer)
        self._exclusive = exclusive_consumer
        self._handing_over = exclusive_consumer is not None

    def _start_serving(self, consumer: ConsumerState) -> None:
        consumer.served = True
        if self.grouped is not None:
            self.grouped.joined(consumer)
            if self.settings.default_group_rebalance:
                self.grouped.renew()
        priority_group = next(
            (priority_group for priority_group in self.priority_groups if priority_group.priority == consumer.priority),
            None,
        )
        if priority_group is None:
            priority_group = ConsumerPriorityGroup(consumer.priority)
            self.priority_groups = sorted([*self.priority_groups, priority_group], key=_PRIORITY, reverse=True)
        if consumer.filter is None:
            priority_group.consumers.append(consumer)
            self._update_only_consumer()
            return
        priority_group.filtered_count += 1
        for priority_list in self.priority_lists:
            self._join_filtered(priority_list, consumer, consumer.filter)
        self._update_only_consumer()

    def _update_only_consumer(self) -> None:
        priority_groups = self.priority_groups
        alone = (
            len(priority_groups) == 1
            and len(priority_groups[0].consumers) == 1
            and not priority_groups[0].filtered_count
            and len(self.priority_lists) == 1
        )
        self._only_consumer = priority_groups[0].consumers[0] if alone else None

    def _join_filtered(self, priority_list: PriorityList, consumer: ConsumerState, filter: Filter) -> None:
        filtered = priority_list.filtered.get(consumer.priority)
        if filtered is None:
            filtered = priority_list.filtered[consumer.priority] = FilteredConsumers(self, priority_list)
        filtered.add(consumer, filter)

    def _stop_serving(self, consumer: ConsumerState) -> None:
        consumer.served = False
        if self.grouped is not None:
            self.grouped.left(consumer)
        priority_group = next(
            priority_group for priority_group in self.priority_groups if priority_group.priority == consumer.priority
        )
        if consumer.filter is None:
            priority_group.remove(consumer)
        else:
            priority_group.filtered_count -= 1
            for priority_list in self.priority_lists:
                filtered = priority_list.filtered[priority_group.priority]
                filtered.remove(consumer)
                if filtered.empty:
                    del priority_list.filtered[priority_group.priority]
            if not self._main.filtered:
                self.unfinished = False
        if not priority_group.consumers and not priority_group.filtered_count:
            self.priority_groups.remove(priority_group)
        self._update_only_consumer()

    def credit_changed(self, consumer: ConsumerState) -> None:
        """Note that the credit of a consumer with a filter has changed between none and some."""
        if consumer.served:
            for priority_list in self.priority_lists:
                priority_list.filtered[consumer.priority].changed(consumer)

    # -- dispatch

    def dispatch(self, budget: int = limits.STEP_MESSAGES_MAX) -> list[tuple[ConsumerState, Dispatch]]:
        """Give ready messages to consumers with credit, in order, at most about ``budget`` messages.

        The caller repeats the call while any message is dispatched.
        """
        self.unfinished = False
        dispatches: list[tuple[ConsumerState, Dispatch]] = []
        if self.paused or (self._handing_over and self._others_have_unacked()):
            return dispatches
        if self.last_values is not None and self.last_values.unread:
            # Something newer may stand there.
            return dispatches
        only, priority_list = self._only_consumer, self._main
        if only is not None and not priority_list.grouped_runs:
            while budget > 0 and priority_list.ready and (dispatch := whole(self, priority_list, only)) is not None:
                dispatches.append((only, dispatch))
                budget -= dispatch.rows + dispatch.size_bytes // limits.STEP_MESSAGE_BYTES
            if not priority_list.ready:
                return dispatches
        return Dispatcher(self, budget, dispatches).run()

    def _others_have_unacked(self) -> bool:
        """Whether the exclusive consumer waits for unacked messages of other consumers."""
        assert self._exclusive is not None
        self._handing_over = self.unacked - self.acked_in_transaction > self._exclusive.unacked
        return self._handing_over

    def record_dispatch(self, consumer: ConsumerState, dispatch: Dispatch) -> None:
        """Count the rows of a dispatch as unacked by the consumer."""
        rows, view = dispatch.rows, dispatch.view
        view.states[dispatch.start : dispatch.stop : dispatch.step] = UNACKED_ROWS[:rows]
        consumer.record_dispatch(dispatch)
        view.priority_list.ready -= rows  # type: ignore[union-attr]  # dispatched rows are visible
        self.ready -= rows
        self.unacked += rows

    # -- settlement

    def settled(self, span: RowSpan) -> bool:
        """Count dispatched rows as acknowledged; return True if no message of their run is left in this queue."""
        rows = span.rows
        self.unacked -= rows
        self.acknowledged += rows
        return self._gone(span, rows, UNACKED_ROWS)

    def remove(self, span: RowSpan, fate: str) -> bool:
        """Remove rows, of any state; return True if no message of their run is left in this queue."""
        view, rows = span.view, span.rows
        states = view.states[span.start : span.stop : span.step]
        ready, unacked, parked = states.count(READY), states.count(UNACKED), states.count(PARKED)
        self.ready -= ready + parked
        self.unacked -= unacked
        self.delayed -= rows - ready - unacked - parked
        list_of(view).ready -= ready
        list_of(view).parked -= parked
        self.removed[fate] += rows
        return self._gone(span, rows, states)

    def give_back(self, span: RowSpan, *, counted: bool, waits: bool = False) -> None:
        """Return dispatched rows to their places; ``counted``: an application may have seen the rows; ``waits``: the
        rows are delayed until ``wake``."""
        view, rows = span.view, span.rows
        self.unacked -= rows
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
            self.groups().changed(span, UNACKED_ROWS)
        if self.last_values is not None:
            self.last_values.appeared(span)

    def _make_ready(self, view: QueueRun, span: RowSpan, rows: int) -> None:
        priority_list = list_of(view)
        view.states[span.start : span.stop : span.step] = READY_ROWS[:rows]
        self.ready += rows
        priority_list.ready += rows
        priority_list.came_back(view)

    def delay(self, span: RowSpan) -> None:
        """Delay ready rows until ``wake``."""
        view, rows = span.view, span.rows
        states = view.states[span.start : span.stop : span.step]
        parked = states.count(PARKED)
        view.states[span.start : span.stop : span.step] = DELAYED_ROWS[:rows]
        self.ready -= rows
        list_of(view).ready -= rows - parked
        list_of(view).parked -= parked
        self.delayed += rows
        if parked:
            self.groups().changed(span, states)

    def wake(self, span: RowSpan) -> None:
        """End the delay of those rows that are still delayed."""
        view = span.view
        waiting = [row for row in range(span.start, span.stop, span.step) if view.states[row] == DELAYED]
        self.delayed -= len(waiting)
        for rows in pieces(waiting):
            woken = RowSpan(view, rows.start, rows.stop, rows.step)
            self._make_ready(view, woken, len(rows))
            if view.groups is not None:
                self.groups().changed(woken, DELAYED_ROWS)

    def waiting(self, budget: int) -> list[RowSpan]:
        """Return up to about ``budget`` messages that are not unacked, from the highest priority down, oldest first."""
        spans: list[RowSpan] = []
        for view in self._walk():
            if budget <= 0:
                break
            rows = [row for row, state in enumerate(view.states) if state in ENQUEUED]
            spans += [RowSpan(view, found.start, found.stop, found.step) for found in pieces(rows)]
            budget -= len(rows)
        return spans

    def purge(self, budget: int) -> tuple[list[RowSpan], list[bool]]:
        """Remove up to about ``budget`` messages that are not unacked; return their spans, and for each whether it was
        the last of its run here."""
        spans = self.waiting(budget)
        return spans, [self.remove(span, "purged") for span in spans]

    def fault_in(self, view: QueueRun) -> None:
        """Ask for the content of a paged run; the queue is dispatched again when it is in memory."""
        self.to_fault_in[view] = None

    def _walk(self) -> Iterator[QueueRun]:
        """Iterate over the runs; the run that was yielded last may be unlinked."""
        for priority_list in self.priority_lists:
            view = priority_list.head
            while view is not None:
                following = view.next
                yield view
                view = following

    def _gone(self, span: RowSpan, rows: int, before: bytes | bytearray) -> bool:
        view = span.view
        view.states[span.start : span.stop : span.step] = GONE_ROWS[:rows]
        if view.groups is not None:
            self.groups().changed(span, before)
        if self.last_values is not None:
            self.last_values.gone(span)
        view.live -= rows
        if view.live:
            return False
        view.priority_list.unlink(view)  # type: ignore[union-attr]  # it was visible
        return True

    # -- reading

    def runs(self) -> list[QueueRun]:
        """Return the runs, from the highest priority down, and in order."""
        return list(self._walk())

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The filters of the consumers; empty if a consumer has no filter."""
        filter_groups = self._main.filtered
        if not filter_groups or any(priority_group.consumers for priority_group in self.priority_groups):
            return ()
        if len(filter_groups) == 1:
            return next(iter(filter_groups.values())).filters
        return tuple({filter: None for filtered in filter_groups.values() for filter in filtered.filters})

    @property
    def delivered_up_to(self) -> dict[int, int]:
        """By priority: the highest number that may have been delivered, in this life or an earlier one."""
        return {
            priority_list.priority: priority_list.delivered_up_to(self.last) for priority_list in self.priority_lists
        }

    def check(self) -> None:
        """Assert the invariants between steps."""
        check_queue(self)
