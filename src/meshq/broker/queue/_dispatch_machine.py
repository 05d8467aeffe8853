"""One step of a queue: what is ready goes to whoever has room, from the most urgent list and the highest priority down.

Within a list, consumers of a higher priority go first; among equals those with filters (``_filtered_machine``), and
what they leave is dealt to the others (``_tier``).  Where there are messages of groups, each goes to the owner of its
group (``_grouped_machine``) at its place in the list.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from meshq import limits
from meshq.broker.queue._consumer_priority_group import ConsumerPriorityGroup
from meshq.broker.queue._consumer_state import ConsumerState, Dispatch, weight
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._run import READY

if TYPE_CHECKING:
    from meshq.broker.queue._queue_machine import Queue


class Dispatcher:
    """One step, of about ``budget`` messages."""

    __slots__ = ("_budget", "_full", "_grants", "_plain", "_queue", "_until")

    def __init__(self, queue: Queue, budget: int, grants: list[tuple[ConsumerState, Dispatch]]) -> None:
        self._queue = queue
        self._budget = budget
        self._grants = grants
        # Owners of groups of which a message is larger than their room.
        self._full: list[ConsumerState] = []
        # Whether those who want everything are served.
        self._plain = True
        # What is not of a group is granted up to this number, for the time being.
        self._until = math.inf

    def run(self) -> list[tuple[ConsumerState, Dispatch]]:
        """What is granted, after what was already."""
        grouped = self._queue.grouped
        if grouped is not None and grouped.looks:
            grouped.look()
        self._run()
        if grouped is not None and grouped.looks:
            self._queue.unfinished = True
        return self._grants

    def _run(self) -> None:
        levels, tiers = self._queue.levels, self._queue.tiers
        if len(levels) == 1 == len(tiers) and not levels[0].grouped_runs:
            # The usual queue: nothing in it is more urgent than anything else, and nobody goes first.
            if levels[0].ready:
                self._serve(levels[0], tiers[0])
            return
        for level in levels:
            if level.grouped_runs:
                self._with_groups(level)
            elif level.ready:
                self._serve_all(level)
            if self._budget <= 0 or ((level.ready or level.parked) and self._ends(level)):
                # What waits for its mark, or has to be looked at, goes before what is less urgent.
                break
            if level.ready:
                # Whoever wants everything has no room for this, and gets nothing less urgent before it.
                self._plain = False
        for consumer in self._full:
            consumer.set_willing(True)

    def _ends(self, level: PriorityList) -> bool:
        return self._budget <= 0 or level.stuck or self._queue.unfinished or level.absent is not None

    def _with_groups(self, level: PriorityList) -> None:
        """Serve a list in which there are messages of groups: these go at their places in it."""
        grouped = self._queue.groups()
        grouped.begin(level, plain=self._plain)
        while self._budget > 0 and not self._queue.unfinished:
            found = grouped.next(level)
            self._until = found if found is not None else math.inf
            before = self._budget
            if level.ready:
                self._serve_all(level)
            if self._budget < before:
                # Whoever got something may have no room any more.
                continue
            if found is None:
                break
            granted = grouped.grant(self._budget, level)
            if isinstance(granted, tuple):
                self._grants.append(granted)
                self._budget -= weight([granted])
            elif not granted:
                break
            else:
                # The message is larger than their room: it must not be overtaken for ever by what is smaller, nor at
                # all by what is less urgent.
                self._full += granted
                for consumer in granted:
                    consumer.set_willing(False)
        for consumer in grouped.stopped:
            # What is to be looked at goes before what is less urgent.
            self._full.append(consumer)
            consumer.set_willing(False)
        self._until = math.inf

    def _serve_all(self, level: PriorityList) -> None:
        """Grant what is ready in one list, but for messages of groups."""
        for tier in self._queue.tiers:
            self._serve(level, tier)
            if not level.ready or self._ends(level):
                # What waits for its mark, or has to be looked at, is not for whoever has a lower priority.
                break

    def _serve(self, level: PriorityList, tier: ConsumerPriorityGroup) -> None:
        """Grant to consumers of one priority."""
        if tier.choosy:
            self._budget -= level.filtered[tier.priority].serve(self._budget, self._grants, self._until)
        if not self._plain:
            return
        consumers = tier.consumers
        if len(consumers) == 1 and not tier.choosy and not level.grouped_runs:
            only = consumers[0]
            while self._budget > 0 and level.ready and (grant := whole(self._queue, level, only)) is not None:
                self._grants.append((only, grant))
                self._budget -= grant.rows + grant.size_bytes // limits.STEP_MESSAGE_BYTES
        while self._budget > 0 and level.ready and consumers:
            willing = tier.willing()
            if not willing:
                break
            span = level.next_span()
            if span is None:
                if level.absent is not None:
                    self._queue.want(level.absent)
                break
            view, start, stop, fresh = span
            if view.first + stop > self._until:
                stop = int(self._until) - view.first
                if stop <= start:
                    break
            before = len(self._grants)
            granted = tier.deal(self._queue, willing, (view, start, stop), self._grants)
            if not granted:
                break
            if fresh:
                view.fresh = start + granted
            self._budget -= weight(self._grants[before:])


def whole(queue: Queue, level: PriorityList, consumer: ConsumerState) -> Dispatch | None:
    """The next run to the only consumer, if it is untouched and fits: nothing has to be searched or divided."""
    view = level.fresh
    if view is None or view.fresh or level.returned:
        return None
    run = view.run
    if run.paged:
        return None
    rows = len(view.states)
    size = len(run.content.body)
    if (
        view.states.count(READY) != rows
        or rows > consumer.room()
        or size > consumer.window_bytes - consumer.held_bytes
        or (view.first + rows - 1 > level.mark and run.durable and level.durable)
    ):
        return None
    grant = Dispatch(view, 0, rows, 1, consumer.next_tag)
    grant.size_bytes = size
    queue.hold(consumer, grant)
    view.fresh = rows
    level.fresh = view.next
    return grant
