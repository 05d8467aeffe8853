"""A dispatch of a queue: ready messages go to consumers with credit, from the highest priority list down.

Within a list, consumers of a higher priority go first; among equals those with filters (``_filtered_machine``), then
the others (``_consumer_priority_group``).  A message with a group goes to the owner of its group
(``_grouped_machine``) at its place in the list.
"""

from __future__ import annotations

import math

from meshq import limits
from meshq.broker.queue._consumer_priority_group import ConsumerPriorityGroup
from meshq.broker.queue._consumer_roster import ConsumerRoster
from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch, weight
from meshq.broker.queue._grouped_machine import GroupedMessages
from meshq.broker.queue._message_counts import MessageCounts
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._priority_lists import PriorityLists
from meshq.broker.queue._run import READY
from meshq.broker.queue._unfinished_work import UnfinishedWork


class Dispatcher:
    """The dispatches of a queue; the fields below ``_pending`` belong to one dispatch."""

    __slots__ = (
        "_budget", "_counts", "_dispatches", "_full", "_grouped", "_lists", "_pending", "_plain", "_roster", "_until",
    )  # fmt: skip

    def __init__(
        self, lists: PriorityLists, roster: ConsumerRoster, counts: MessageCounts, pending: UnfinishedWork
    ) -> None:
        self._lists = lists
        self._roster = roster
        self._counts = counts
        self._pending = pending
        # The messages that may still be dispatched, about.
        self._budget = 0
        self._dispatches: list[tuple[AnyConsumer, Dispatch]] = []
        self._grouped: GroupedMessages | None = None
        # Owners of groups with a message that is larger than their credit.
        self._full: list[AnyConsumer] = []
        # Whether consumers without filters are served.
        self._plain = True
        # Messages without a group are dispatched up to this number, for the time being.
        self._until = math.inf

    def run(self, budget: int, dispatches: list[tuple[AnyConsumer, Dispatch]], grouped: GroupedMessages | None) -> None:
        """Add one dispatch, of about ``budget`` messages, to ``dispatches``."""
        self._budget, self._dispatches, self._grouped = budget, dispatches, grouped
        self._plain, self._until = True, math.inf
        if grouped is not None and grouped.filter_scan:
            grouped.look()
        self._run()
        if grouped is not None and grouped.filter_scan:
            self._pending.unfinished = True
        # Nothing keeps what has left the queue.
        self._dispatches, self._full = [], []

    def _run(self) -> None:
        priority_lists, priority_groups = self._lists.all, self._roster.groups
        if len(priority_lists) == 1 == len(priority_groups) and not priority_lists[0].grouped_runs:
            # The usual queue: one priority of messages, and one of consumers.
            if priority_lists[0].ready:
                self._serve(priority_lists[0], priority_groups[0])
            return
        for priority_list in priority_lists:
            if priority_list.grouped_runs:
                self._with_groups(priority_list)
            elif priority_list.ready:
                self._serve_all(priority_list)
            if self._budget <= 0 or ((priority_list.ready or priority_list.parked) and self._ends(priority_list)):
                # Messages that wait for the watermark, or for filters, go before those of a lower priority.
                break
            if priority_list.ready:
                # Consumers without filters have no credit for this message, and get no less urgent one before it.
                self._plain = False
        for consumer in self._full:
            consumer.set_willing(True)

    def _ends(self, priority_list: PriorityList) -> bool:
        return (
            self._budget <= 0
            or priority_list.waits_for_watermark
            or self._pending.unfinished
            or priority_list.absent is not None
        )

    def _with_groups(self, priority_list: PriorityList) -> None:
        """Serve a list that has messages of groups: these go at their places in the list."""
        grouped = self._grouped
        assert grouped is not None
        grouped.begin(priority_list, plain=self._plain)
        while self._budget > 0 and not self._pending.unfinished:
            found = grouped.next(priority_list)
            self._until = found if found is not None else math.inf
            before = self._budget
            if priority_list.ready:
                self._serve_all(priority_list)
            if self._budget < before:
                # A consumer that was served may have no credit any more.
                continue
            if found is None:
                break
            dispatched = grouped.dispatch(self._budget, priority_list)
            if isinstance(dispatched, tuple):
                self._dispatches.append(dispatched)
                self._budget -= weight([dispatched])
            elif not dispatched:
                break
            else:
                # The message is larger than their credit: smaller messages must not overtake it for ever, and less
                # urgent messages not at all.
                self._full += dispatched
                for consumer in dispatched:
                    consumer.set_willing(False)
        for consumer in grouped.stopped:
            # A message that waits for its filter goes before less urgent messages.
            self._full.append(consumer)
            consumer.set_willing(False)
        self._until = math.inf

    def _serve_all(self, priority_list: PriorityList) -> None:
        """Dispatch the ready messages of one list that have no group."""
        for priority_group in self._roster.groups:
            self._serve(priority_list, priority_group)
            if not priority_list.ready or self._ends(priority_list):
                # A message that waits for the watermark, or for filters, is not for consumers of a lower priority.
                break

    def _serve(self, priority_list: PriorityList, priority_group: ConsumerPriorityGroup) -> None:
        filtered = priority_group.filtered
        if filtered:
            self._budget -= filtered[priority_list].serve(self._budget, self._dispatches, self._until)
        if not self._plain:
            return
        consumers = priority_group.consumers
        if len(consumers) == 1 and not filtered and not priority_list.grouped_runs:
            only = consumers[0]
            while (
                self._budget > 0
                and priority_list.ready
                and (dispatch := whole(self._counts, priority_list, only)) is not None
            ):
                self._dispatches.append((only, dispatch))
                self._budget -= dispatch.rows + dispatch.size_bytes // limits.STEP_MESSAGE_BYTES
        while self._budget > 0 and priority_list.ready and consumers:
            willing = priority_group.willing()
            if not willing:
                break
            span = priority_list.next_span()
            if span is None:
                if priority_list.absent is not None:
                    self._pending.fault_in(priority_list.absent)
                break
            view, start, stop, fresh = span
            if view.first + stop > self._until:
                stop = int(self._until) - view.first
                if stop <= start:
                    break
            before = len(self._dispatches)
            dispatched = priority_group.deal(willing, (view, start, stop), self._dispatches)
            if not dispatched:
                break
            if fresh:
                view.fresh = start + dispatched
            self._budget -= weight(self._dispatches[before:])


def whole(counts: MessageCounts, priority_list: PriorityList, consumer: AnyConsumer) -> Dispatch | None:
    """Dispatch the next run whole to the only consumer, if all of the run is fresh and fits; None: it can't be done."""
    view = priority_list.fresh
    if view is None or view.fresh or priority_list.returned:
        return None
    run = view.run
    if run.paged:
        return None
    rows = len(view.states)
    size = len(run.content.body)
    if (
        view.states.count(READY) != rows
        or rows > consumer.credit()
        or size > consumer.window_bytes - consumer.unacked_bytes
        or (view.first + rows - 1 > priority_list.high_watermark and run.durable and priority_list.durable)
    ):
        return None
    dispatch = Dispatch(view, 0, rows, 1, consumer.next_tag)
    dispatch.size_bytes = size
    counts.record_dispatch(consumer, dispatch)
    view.fresh = rows
    priority_list.fresh = view.next
    return dispatch
