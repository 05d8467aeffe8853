"""Messages with a group: each group has one consumer at a time, its owner, and the owner gets the messages in order.

Messages with a group are *parked*: only this machine dispatches them.  A group without an owner is offered under each
filter, by the first message that the filter accepts.  So a group whose owner has no credit, and a group that no
filter accepts, is not looked at again before that changes.

A group without an owner that has unacked messages is offered when these are settled or returned.  A group without
messages is forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush
from typing import Final

from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch, RowSpan, span_bytes
from meshq.broker.queue._group import (
    Group,
    GroupBacklog,
    GroupFilterScan,
    Key,
    accepts,
    check_holders,
    counted,
    first_key,
    judged,
    key_of,
    parked,
)
from meshq.broker.queue._message_counts import MessageCounts
from meshq.broker.queue._priority_list import PriorityList, list_of
from meshq.broker.queue._priority_lists import PriorityLists
from meshq.broker.queue._run import DELAYED, PARKED, READY, UNACKED, QueueRun
from meshq.broker.queue._unfinished_work import UnfinishedWork
from meshq.errors import invariant
from meshq.selector import Filter

#: A heap may keep so many void offers beyond the number of groups.
_SLACK: Final = 64


class GroupedMessages:
    """The groups of a queue."""

    __slots__ = (
        "_backlogs", "_counts", "_last_assigned", "_lists", "_next_group", "_offers", "_owner_heap", "_pending",
        "_serial", "_with_credit", "claim", "filter_scan", "may_offer", "stopped", "table",
    )  # fmt: skip

    def __init__(self, lists: PriorityLists, counts: MessageCounts, pending: UnfinishedWork) -> None:
        self._lists = lists
        self._counts = counts
        self._pending = pending
        #: The groups of which there are messages, by name.
        self.table: dict[str, Group] = {}
        #: Whether a group is consumed on this node; None: each is.
        self.may_offer: Callable[[str], bool] | None = None
        #: The same where messages of it wait: if it is not, that is asked for.
        self.claim: Callable[[str], bool] | None = None
        # The waiting messages of each owner's groups.
        self._backlogs: dict[AnyConsumer, GroupBacklog] = {}
        # By the filters of the served consumers: groups without an owner, by the first message that a filter accepts.
        self._offers: dict[Filter | None, list[tuple[Key, int, Group]]] = {}
        # The serial number of each consumer's latest group: the consumer with the lowest one is next.
        self._last_assigned: dict[AnyConsumer, int] = {}
        self._serial = 0
        # For one step: owners with credit by their first message, and consumers with credit by filter.
        self._owner_heap: list[tuple[Key, int, AnyConsumer]] = []
        self._with_credit: dict[Filter | None, list[AnyConsumer]] = {}
        #: Owners whose filter has not judged their first message yet: these owners get no other message.
        self.stopped: dict[AnyConsumer, None] = {}
        #: Runs that must be put to filters before a step can go on.
        self.filter_scan: GroupFilterScan = GroupFilterScan()
        # The next message and its group, if the group has no owner.
        self._next_group: tuple[Key, Group] | None = None

    # -- consumers

    def joined(self, consumer: AnyConsumer) -> None:
        """Serve a consumer from now on."""
        self._last_assigned[consumer] = 0
        filter = consumer.filter
        if filter not in self._offers:
            self._offers[filter] = []
            for group in self.table.values():
                self._offer_to(group, (filter,))

    def left(self, consumer: AnyConsumer) -> None:
        """Serve a consumer no more; its groups wait for its unacked messages."""
        del self._last_assigned[consumer]
        # The tables of the last step must not keep the consumer.
        self._owner_heap.clear()
        self._with_credit.clear()
        self.stopped.clear()
        self._next_group = None
        filter = consumer.filter
        if all(other.filter != filter for other in self._last_assigned):
            del self._offers[filter]
            if filter is not None:
                self.filter_scan.forget(filter)
            for group in self.table.values():
                group.offers.pop(filter, None)
                group.unjudged.pop(filter, None)
            for view in self._lists.walk():
                if view.verdicts is not None and filter is not None:
                    view.verdicts.pop(filter, None)
        self._disband(consumer)

    def renew(self) -> None:
        """Take all groups from their owners: each is assigned anew."""
        for consumer in list(self._backlogs):
            self._disband(consumer)

    def opened(self, name: str) -> None:
        """Offer a group which is consumed on this node from now on."""
        group = self.table.get(name)
        if group is not None and group.owner is None:
            self._offer(group)

    def closed(self, name: str) -> None:
        """Take a group from its owner, and offer it only if it is consumed on this node."""
        group = self.table.get(name)
        if group is not None:
            owner = group.owner
            if owner is not None and not group.set_apart(self.table):
                del self._backlogs[owner]
            self._owner_heap.clear()
            self._next_group = None
            self._offer(group)

    def _is_open(self, group: Group) -> bool:
        return self.may_offer is None or self.may_offer(group.name)

    def _opens(self, group: Group) -> bool:
        return self.claim is None or self.claim(group.name)

    def _disband(self, consumer: AnyConsumer) -> None:
        backlog = self._backlogs.pop(consumer, None)
        if backlog is None:
            return
        for group in backlog.groups:
            group.owner = None
            group.backlog = GroupBacklog(None)
            group.backlog.groups[group] = None
        for view in backlog.views():
            for group in dict.fromkeys(self._group(view, row) for row in parked(view)):
                if group in backlog.groups:
                    group.backlog.push(view)
        for group in backlog.groups:
            self._offer(group)

    def _group(self, view: QueueRun, row: int) -> Group:
        assert view.groups is not None
        name = view.groups[row]
        assert name is not None
        return self.table[name]

    def _offer(self, group: Group) -> None:
        group.withdraw()
        self._offer_to(group, self._offers)

    def _offer_to(self, group: Group, filters: Iterable[Filter | None], start: QueueRun | None = None) -> None:
        """Offer a group by the first message that each filter accepts, from the run ``start`` on."""
        if group.owner is not None or group.unacked or not self._opens(group):
            return
        wanted = dict.fromkeys(filters)
        views = group.backlog.views()
        if start is not None:
            key = key_of(start, 0)
            views = views[bisect_left(views, key, key=first_key) :]
        for view in views:
            for row in parked(view):
                if not wanted:
                    return
                if self._group(view, row) is group:
                    for filter in [filter for filter in wanted if not self._judge(filter, view)]:
                        # A later message must not be offered before this one is judged.
                        del wanted[filter]
                        group.unjudged[filter] = view
                    for filter in [filter for filter in wanted if accepts(filter, view, row)]:
                        del wanted[filter]
                        self._add_offer(group, filter, view, row)

    def _judge(self, filter: Filter | None, view: QueueRun) -> bool:
        """Whether a filter has judged the messages of a run; if not, arrange it."""
        if judged(filter, view):
            return True
        if view.run.paged:
            self._pending.fault_in(view)
            return False
        return self.filter_scan.judge(filter, view)

    def look(self) -> None:
        """Put waiting runs to their filters, as much as one step allows."""
        for view in dict.fromkeys(self.filter_scan.step()):
            self.arrived(view)

    def _add_offer(self, group: Group, filter: Filter | None, view: QueueRun, row: int) -> None:
        key = key_of(view, row)
        group.offers[filter] = key
        group.firsts[key] = view
        offers = self._offers[filter]
        heappush(offers, (key, id(group), group))
        if len(offers) > 2 * len(self.table) + _SLACK:
            # While no consumer has credit no step removes void offers.
            known = [(one.offers[filter], id(one), one) for one in self.table.values() if filter in one.offers]
            offers[:] = sorted(known)

    # -- messages

    def appended(self, view: QueueRun) -> None:
        """Take in a run with messages of groups that became visible."""
        for row in self._park(view, range(len(view.states))):
            group = self._group(view, row)
            if group.owner is None and not group.unacked and self._opens(group):
                key = key_of(view, row)
                for filter in self._offers:
                    unjudged = group.unjudged.get(filter)
                    if unjudged is not None and key_of(unjudged, 0) <= key:
                        # The message is offered when the earlier run is judged.
                        continue
                    known = group.offers.get(filter)
                    if known is not None and known < key:
                        continue
                    if not self._judge(filter, view):
                        # A later message must not be offered before this one is judged.
                        group.offers.pop(filter, None)
                        group.unjudged[filter] = view
                    elif accepts(filter, view, row):
                        group.unjudged.pop(filter, None)
                        self._add_offer(group, filter, view, row)

    def restore_unacked(self, view: QueueRun) -> None:
        """Count messages of a new run that are unacked already: their groups wait for these."""
        assert view.groups is not None
        for name, state in zip(view.groups, view.states, strict=True):
            if state == UNACKED and name is not None:
                group = self.table.get(name)
                if group is None:
                    group = self.table[name] = Group(name)
                group.unacked += 1
                group.withdraw()

    def arrived(self, view: QueueRun) -> None:
        """Offer groups anew after the content of a run was read from disk, or the run was judged by a filter."""
        for group in dict.fromkeys(self._group(view, row) for row in parked(view)):
            filters = [filter for filter, unjudged in group.unjudged.items() if unjudged is view]
            for filter in filters:
                del group.unjudged[filter]
            if filters:
                # These filters accept no earlier message.
                self._offer_to(group, filters, view)

    def _park(self, view: QueueRun, rows: range) -> list[int]:
        """Park those ready rows that have a group; return the parked rows."""
        names, states = view.groups, view.states
        assert names is not None
        parked = []
        for row in rows:
            name = names[row]
            if states[row] == READY and name is not None:
                group = self.table.get(name)
                if group is None:
                    group = self.table[name] = Group(name)
                group.waiting += 1
                group.backlog.push(view)
                parked.append(row)
        self._counts.park(view, parked)
        return parked

    def changed(self, span: RowSpan, before: bytes | bytearray) -> None:
        """Take in a change of state; ``before``: the rows' earlier states.  Rows that are ready again are parked."""
        view = span.view
        names, states = view.groups, view.states
        assert names is not None
        groups: dict[Group, None] = {}
        left: dict[GroupBacklog, None] = {}
        rows = range(span.start, min(span.stop, len(names)), span.step)
        for row, old in zip(rows, before, strict=False):
            name = names[row]
            if name is not None:
                group = self.table[name]
                groups[group] = None
                if old == UNACKED:
                    group.unacked -= 1
                elif old == PARKED:
                    group.waiting -= 1
                    left[group.backlog] = None
                else:
                    group.delayed -= 1
                group.delayed += states[row] == DELAYED
        self._park(view, rows)
        for backlog in left:
            if not any(self._group(view, row).backlog is backlog for row in parked(view)):
                backlog.forget(view)
        for group in groups:
            self._settle(group)

    def _settle(self, group: Group) -> None:
        if group.unacked:
            return
        if group.waiting or group.delayed:
            if group.owner is None:
                self._offer(group)
            return
        group.withdraw()
        del self.table[group.name]
        del group.backlog.groups[group]
        if group.owner is not None and not group.backlog.groups:
            del self._backlogs[group.owner]

    # -- dispatch

    def begin(self, priority_list: PriorityList, *, plain: bool) -> None:
        """Begin a step in one list; unless ``plain`` only consumers with filters are served."""
        self._owner_heap.clear()
        self.stopped.clear()
        for consumer in self._backlogs:
            if plain or consumer.filter is not None:
                self._push_owner(consumer, priority_list)
        self._with_credit.clear()
        for consumer in self._last_assigned:
            if consumer.credit() > 0 and (plain or consumer.filter is not None):
                self._with_credit.setdefault(consumer.filter, []).append(consumer)

    def _push_owner(self, consumer: AnyConsumer, priority_list: PriorityList) -> None:
        backlog = self._backlogs[consumer]
        head = backlog.head(self.table) if consumer.credit() > 0 else None
        while head is not None and not head[0].run.paged and not judged(consumer.filter, head[0]):
            if not self.filter_scan.judge(consumer.filter, head[0]):
                self.stopped[consumer] = None
                return
            head = backlog.head(self.table)
        if head is not None and head[0].priority_list is priority_list:
            heappush(self._owner_heap, (key_of(*head), id(consumer), consumer))

    def next(self, priority_list: PriorityList) -> int | None:
        """Return the number of the first message of the list that ``dispatch`` may give to a consumer."""
        self._next_group = self._next_offer(priority_list)
        owner_heap = self._owner_heap
        while owner_heap and owner_heap[0][2].credit() <= 0:
            heappop(owner_heap)
        if owner_heap and (self._next_group is None or owner_heap[0][0] < self._next_group[0]):
            self._next_group = None
            return owner_heap[0][0][1]
        return self._next_group[0][1] if self._next_group is not None else None

    def dispatch(self, budget: int, priority_list: PriorityList) -> tuple[AnyConsumer, Dispatch] | list[AnyConsumer]:
        """Dispatch the message that ``next`` has found.

        If it fits no consumer, return the consumers that would take it: none if it waits for the watermark.
        """
        if self._next_group is None:
            consumer = self._owner_heap[0][2]
            dispatch = self._dispatch(consumer, budget, priority_list)
            if dispatch is None:
                return [] if priority_list.waits_for_watermark or priority_list.absent is not None else [consumer]
            return consumer, dispatch
        key, group = self._next_group
        view = group.firsts[key]
        if view.run.paged:
            self._fault_in(view)
            return []
        size = span_bytes(view, key[1] - view.first, key[1] - view.first + 1)
        if view.run.durable and priority_list.durable and key[1] > priority_list.high_watermark:
            priority_list.wanted_watermark = max(priority_list.wanted_watermark, key[1])
            return []
        wanting = self._candidates(group, key)
        fitting = [consumer for consumer in wanting if consumer.fits(size)]
        if not fitting:
            return wanting
        consumer = min(fitting, key=self._rotation_key)
        self._assign(group, consumer)
        self._owner_heap = [entry for entry in self._owner_heap if entry[2] is not consumer]
        heapify(self._owner_heap)
        self._push_owner(consumer, priority_list)
        dispatch = self._dispatch(consumer, budget, priority_list)
        assert dispatch is not None
        return consumer, dispatch

    def _fault_in(self, view: QueueRun) -> None:
        """Ask for the content of a run; no later message of the list is dispatched before it is in memory."""
        list_of(view).absent = view
        self._pending.fault_in(view)

    def _next_offer(self, priority_list: PriorityList) -> tuple[Key, Group] | None:
        """The first message of a group without an owner that a consumer with credit accepts."""
        best: tuple[Key, Group] | None = None
        for filter, consumers in list(self._with_credit.items()):
            while consumers and not self._has_credit(consumers[-1]):
                del consumers[-1]
            if not consumers:
                del self._with_credit[filter]
                continue
            offers = self._offers[filter]
            while offers and offers[0][2].offers.get(filter) != offers[0][0]:
                heappop(offers)
            if offers and offers[0][0][0] == -priority_list.priority and (best is None or offers[0][0] < best[0]):
                best = offers[0][0], offers[0][2]
        return best

    def _candidates(self, group: Group, key: Key) -> list[AnyConsumer]:
        """The consumers that accept a group's first message and have credit."""
        filters = [filter for filter, first in group.offers.items() if first == key]
        return [
            consumer
            for filter in filters
            for consumer in self._with_credit.get(filter, ())
            if self._has_credit(consumer)
        ]

    def _has_credit(self, consumer: AnyConsumer) -> bool:
        return consumer.credit() > 0 and consumer not in self.stopped

    def _rotation_key(self, consumer: AnyConsumer) -> tuple[int, bool, int]:
        """Order of consumers: the highest priority, then those with filters, then the longest wait for a group."""
        return -consumer.priority, consumer.filter is None, self._last_assigned[consumer]

    def _assign(self, group: Group, consumer: AnyConsumer) -> None:
        self._serial += 1
        self._last_assigned[consumer] = self._serial
        backlog = self._backlogs.get(consumer)
        if backlog is None:
            backlog = self._backlogs[consumer] = GroupBacklog(consumer.filter)
        for view in group.backlog.views():
            backlog.push(view)
        backlog.groups[group] = None
        group.owner, group.backlog = consumer, backlog
        group.withdraw()

    def _dispatch(self, consumer: AnyConsumer, budget: int, priority_list: PriorityList) -> Dispatch | None:
        """Give an owner the first messages of its groups, as far as they stand side by side; None: not now."""
        backlog = self._backlogs[consumer]
        head = backlog.head(self.table)
        assert head is not None
        view, start = head
        if view.run.paged:
            self._fault_in(view)
            return None
        limit = len(view.states)
        if view.run.durable and priority_list.durable and view.first + limit - 1 > priority_list.high_watermark:
            priority_list.wanted_watermark = max(priority_list.wanted_watermark, view.first + start)
            limit = int(priority_list.high_watermark) - view.first + 1
        if start >= limit:
            return None
        limit = min(limit, start + consumer.credit(), start + budget)
        stop, size = start, 0
        while stop < limit and backlog.takes(view, stop, self.table):
            more = span_bytes(view, stop, stop + 1)
            if not consumer.fits(size + more) and (size or consumer.unacked):
                break
            stop, size = stop + 1, size + more
        if stop == start:
            return None
        dispatch = Dispatch(view, start, stop, 1, consumer.next_tag)
        dispatch.size_bytes = size
        for row in range(start, stop):
            group = self._group(view, row)
            group.waiting -= 1
            group.unacked += 1
        priority_list.reached = max(priority_list.reached, view.first + stop - 1)
        self._counts.record_parked_dispatch(consumer, dispatch)
        # The owner is at the top of the heap, with the message that it has now.
        heappop(self._owner_heap)
        self._push_owner(consumer, priority_list)
        return dispatch

    def check(self, consumers: Sequence[AnyConsumer]) -> None:
        """Assert the invariants between steps; ``consumers``: all of the queue."""
        counts = counted(self._lists.walk(), self.table)
        for name, group in self.table.items():
            known = [group.waiting, group.unacked, group.delayed]
            invariant(known == counts.pop(name), "a group knows its messages")
            invariant(any(known), "a group without messages is forgotten")
            for filter in self._offers:
                if filter in group.unjudged:
                    # It is not known yet what may be given.
                    continue
                free = group.owner is None and not group.unacked and self._is_open(group)
                first = self._first_for(group, filter) if free else None
                invariant(group.offers.get(filter) == first, "what may be given is offered, by its first message")
            invariant(
                group.owner is None or group.backlog is self._backlogs[group.owner], "a group waits at its owner's"
            )
        invariant(not any(map(any, counts.values())), "each message of a group is in the table")
        check_holders(consumers)

    def _first_for(self, group: Group, filter: Filter | None) -> Key | None:
        keys = [
            key_of(view, row)
            for view in group.backlog.views()
            for row in parked(view)
            if self._group(view, row) is group and accepts(filter, view, row)
        ]
        return min(keys, default=None)
