"""Messages that belong to groups: each group is one consumer's at a time, and its messages go there in order.

They are *parked*: neither consumers with filters nor those without find them, only this machine hands them out.  A
group that nobody has is offered under each filter, by the first message that this accepts; so neither a group whose
owner has no room nor one that nobody wants is looked at again before something of that has changed.

A group that nobody has, and of which somebody still holds messages, is offered when these are settled or back.  One
without any messages is forgotten.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING, Final

from meshq.broker.queue._consumer_state import ConsumerState, Dispatch, RowSpan, span_bytes
from meshq.broker.queue._group import Group, GroupBacklog, GroupFilterScan, Key, accepts, judged, key_of
from meshq.broker.queue._priority_list import level_of
from meshq.broker.queue._run import DELAYED, HELD, PARKED, READY, QueueRun
from meshq.errors import invariant
from meshq.selector import Filter

if TYPE_CHECKING:
    from meshq.broker.queue._priority_list import PriorityList
    from meshq.broker.queue._queue_machine import Queue

#: Offers that are void may stay in a heap, but not many more than there are groups.
_SLACK: Final = 64


class GroupedMessages:
    """The groups of a queue."""

    __slots__ = (
        "_found",
        "_line",
        "_offers",
        "_open",
        "_places",
        "_queue",
        "_serial",
        "_turns",
        "looks",
        "stopped",
        "table",
    )

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        #: The groups of which there are messages, by name.
        self.table: dict[str, Group] = {}
        # Where the messages of each owner's groups wait.
        self._places: dict[ConsumerState, GroupBacklog] = {}
        # By the filters of those who are served: groups to be had, by the first message that each accepts.
        self._offers: dict[Filter | None, list[tuple[Key, int, Group]]] = {}
        # When each consumer was last given a group: whoever has waited longest is next.
        self._turns: dict[ConsumerState, int] = {}
        self._serial = 0
        # For one step: owners with room by their first message, and consumers with room by filter.
        self._line: list[tuple[Key, int, ConsumerState]] = []
        self._open: dict[Filter | None, list[ConsumerState]] = {}
        #: Owners of whose first message it is not known yet whether they want it: they are given nothing else.
        self.stopped: dict[ConsumerState, None] = {}
        #: What has to be put to filters before it can go on.
        self.looks = GroupFilterScan()
        # What is next, if that is of a group that nobody has.
        self._found: tuple[Key, Group] | None = None

    # -- who is there

    def joined(self, consumer: ConsumerState) -> None:
        """A consumer is served from now on."""
        self._turns[consumer] = 0
        filter = consumer.filter
        if filter not in self._offers:
            self._offers[filter] = []
            for group in self.table.values():
                self._offer_to(group, (filter,))

    def left(self, consumer: ConsumerState) -> None:
        """A consumer is served no more; what it holds, if anything, is waited for."""
        del self._turns[consumer]
        # What the last step worked with must not keep it.
        self._line.clear()
        self._open.clear()
        self.stopped.clear()
        self._found = None
        filter = consumer.filter
        if all(other.filter != filter for other in self._turns):
            del self._offers[filter]
            if filter is not None:
                self.looks.forget(filter)
            for group in self.table.values():
                group.offers.pop(filter, None)
                group.unjudged.pop(filter, None)
            for level in self._queue.levels:
                for view in level.runs():
                    if view.verdicts is not None and filter is not None:
                        view.verdicts.pop(filter, None)
        self._disband(consumer)

    def renew(self) -> None:
        """All groups are given anew."""
        for consumer in list(self._places):
            self._disband(consumer)

    def _disband(self, consumer: ConsumerState) -> None:
        """The groups of a consumer are nobody's."""
        place = self._places.pop(consumer, None)
        if place is None:
            return
        for group in place.groups:
            group.owner = None
            group.place = GroupBacklog(None)
            group.place.groups[group] = None
        for view in place.views():
            for group in dict.fromkeys(self._group(view, row) for row in _parked(view)):
                if group in place.groups:
                    group.place.push(view)
        for group in place.groups:
            self._offer(group)

    def _group(self, view: QueueRun, row: int) -> Group:
        assert view.groups is not None
        name = view.groups[row]
        assert name is not None
        return self.table[name]

    def _offer(self, group: Group) -> None:
        """The group is to be had by whoever accepts something of it, unless it must wait."""
        group.withdraw()
        self._offer_to(group, self._offers)

    def _offer_to(self, group: Group, filters: Iterable[Filter | None], start: QueueRun | None = None) -> None:
        """Offer a group by the first message that each filter accepts, from a run on."""
        if group.owner is not None or group.held:
            return
        wanted = dict.fromkeys(filters)
        views = group.place.views()
        if start is not None:
            key = key_of(start, 0)
            views = views[bisect_left(views, key, key=_key) :]
        for view in views:
            for row in _parked(view):
                if not wanted:
                    return
                if self._group(view, row) is group:
                    for filter in [filter for filter in wanted if not self._judge(filter, view)]:
                        # What comes later must not be offered before it is known.
                        del wanted[filter]
                        group.unjudged[filter] = view
                    for filter in [filter for filter in wanted if accepts(filter, view, row)]:
                        del wanted[filter]
                        self._post(group, filter, view, row)

    def _judge(self, filter: Filter | None, view: QueueRun) -> bool:
        """Whether it can be said now which messages of a run a filter accepts; otherwise that is seen to."""
        if judged(filter, view):
            return True
        if view.run.paged:
            self._queue.want(view)
            return False
        return self.looks.judge(filter, view)

    def look(self) -> None:
        """Put to filters what had to wait for that, as far as a step goes."""
        for view in dict.fromkeys(self.looks.step()):
            self.arrived(view)

    def _post(self, group: Group, filter: Filter | None, view: QueueRun, row: int) -> None:
        key = key_of(view, row)
        group.offers[filter] = key
        group.firsts[key] = view
        offers = self._offers[filter]
        heappush(offers, (key, id(group), group))
        if len(offers) > 2 * len(self.table) + _SLACK:
            # While nobody has room nobody looks at them, and what is void must not pile up.
            known = [(one.offers[filter], id(one), one) for one in self.table.values() if filter in one.offers]
            offers[:] = sorted(known)

    # -- what becomes of messages

    def appended(self, view: QueueRun) -> None:
        """A run with messages of groups became visible."""
        for row in self._park(view, range(len(view.states))):
            group = self._group(view, row)
            if group.owner is None and not group.held:
                key = key_of(view, row)
                for filter in self._offers:
                    unjudged = group.unjudged.get(filter)
                    if unjudged is not None and key_of(unjudged, 0) <= key:
                        # It is offered when that is here, with all that has come since behind it.
                        continue
                    known = group.offers.get(filter)
                    if known is not None and known < key:
                        continue
                    if not self._judge(filter, view):
                        # What it may come before must not be offered, and is so with it.
                        group.offers.pop(filter, None)
                        group.unjudged[filter] = view
                    elif accepts(filter, view, row):
                        group.unjudged.pop(filter, None)
                        self._post(group, filter, view, row)

    def held_again(self, view: QueueRun) -> None:
        """Of a run that became visible some messages are held: their groups wait for these."""
        assert view.groups is not None
        for name, state in zip(view.groups, view.states, strict=True):
            if state == HELD and name is not None:
                group = self.table.get(name)
                if group is None:
                    group = self.table[name] = Group(name)
                group.held += 1
                group.withdraw()

    def arrived(self, view: QueueRun) -> None:
        """The content of a run is here, or was put to a filter: what nobody could say of it can be said."""
        for group in dict.fromkeys(self._group(view, row) for row in _parked(view)):
            filters = [filter for filter, unjudged in group.unjudged.items() if unjudged is view]
            for filter in filters:
                del group.unjudged[filter]
            if filters:
                # Before it they accept nothing.
                self._offer_to(group, filters, view)

    def _park(self, view: QueueRun, rows: range) -> list[int]:
        """Of the rows that are ready, those that have a group wait for it from now on."""
        names, states, level = view.groups, view.states, view.level
        assert names is not None and level is not None
        parked = []
        for row in rows:
            name = names[row]
            if states[row] == READY and name is not None:
                group = self.table.get(name)
                if group is None:
                    group = self.table[name] = Group(name)
                states[row] = PARKED
                group.waiting += 1
                group.place.push(view)
                parked.append(row)
        level.ready -= len(parked)
        level.parked += len(parked)
        return parked

    def changed(self, span: RowSpan, before: bytes | bytearray) -> None:
        """Rows have another state, and had these; those that are ready again wait for their groups."""
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
                if old == HELD:
                    group.held -= 1
                elif old == PARKED:
                    group.waiting -= 1
                    left[group.place] = None
                else:
                    group.delayed -= 1
                group.delayed += states[row] == DELAYED
        self._park(view, rows)
        for place in left:
            if not any(self._group(view, row).place is place for row in _parked(view)):
                place.forget(view)
        for group in groups:
            self._settle(group)

    def _settle(self, group: Group) -> None:
        """Other messages of a group wait or are held: it may be had, or forgotten."""
        if group.held:
            return
        if group.waiting or group.delayed:
            if group.owner is None:
                self._offer(group)
            return
        group.withdraw()
        del self.table[group.name]
        del group.place.groups[group]
        if group.owner is not None and not group.place.groups:
            del self._places[group.owner]

    # -- what goes out

    def begin(self, level: PriorityList, *, plain: bool) -> None:
        """A step begins: who has room for what of one list; unless ``plain`` only consumers with filters get any."""
        self._line.clear()
        self.stopped.clear()
        for consumer in self._places:
            if plain or consumer.filter is not None:
                self._stand_in_line(consumer, level)
        self._open.clear()
        for consumer in self._turns:
            if consumer.room() > 0 and (plain or consumer.filter is not None):
                self._open.setdefault(consumer.filter, []).append(consumer)

    def _stand_in_line(self, consumer: ConsumerState, level: PriorityList) -> None:
        place = self._places[consumer]
        head = place.head(self.table) if consumer.room() > 0 else None
        while head is not None and not head[0].run.paged and not judged(consumer.filter, head[0]):
            if not self.looks.judge(consumer.filter, head[0]):
                self.stopped[consumer] = None
                return
            head = place.head(self.table)
        if head is not None and head[0].level is level:
            heappush(self._line, (key_of(*head), id(consumer), consumer))

    def next(self, level: PriorityList) -> int | None:
        """The number of the first message of the list that somebody may be given: ``grant`` does."""
        self._found = self._next_offer(level)
        line = self._line
        while line and line[0][2].room() <= 0:
            heappop(line)
        if line and (self._found is None or line[0][0] < self._found[0]):
            self._found = None
            return line[0][0][1]
        return self._found[0][1] if self._found is not None else None

    def grant(self, budget: int, level: PriorityList) -> tuple[ConsumerState, Dispatch] | list[ConsumerState]:
        """Grant what ``next`` has found; else those of whom each has too little room for it, none if it waits for
        the mark."""
        if self._found is None:
            consumer = self._line[0][2]
            grant = self._grant(consumer, budget, level)
            if grant is None:
                return [] if level.stuck or level.absent is not None else [consumer]
            return consumer, grant
        key, group = self._found
        view = group.firsts[key]
        if view.run.paged:
            self._lack(view)
            return []
        size = span_bytes(view, key[1] - view.first, key[1] - view.first + 1)
        if view.run.durable and level.durable and key[1] > level.mark:
            level.mark_wanted = max(level.mark_wanted, key[1])
            return []
        wanting = self._wanting(group, key)
        fitting = [consumer for consumer in wanting if consumer.fits(size)]
        if not fitting:
            return wanting
        consumer = min(fitting, key=self._turn)
        self._give(group, consumer)
        self._line = [entry for entry in self._line if entry[2] is not consumer]
        heapify(self._line)
        self._stand_in_line(consumer, level)
        grant = self._grant(consumer, budget, level)
        assert grant is not None
        return consumer, grant

    def _lack(self, view: QueueRun) -> None:
        """Nothing of its list is granted before the content of a run is here."""
        level_of(view).absent = view
        self._queue.want(view)

    def _next_offer(self, level: PriorityList) -> tuple[Key, Group] | None:
        """The first message of a group to be had that somebody with room would take."""
        best: tuple[Key, Group] | None = None
        for filter, consumers in list(self._open.items()):
            while consumers and not self._is_open(consumers[-1]):
                del consumers[-1]
            if not consumers:
                del self._open[filter]
                continue
            offers = self._offers[filter]
            while offers and offers[0][2].offers.get(filter) != offers[0][0]:
                heappop(offers)
            if offers and offers[0][0][0] == -level.priority and (best is None or offers[0][0] < best[0]):
                best = offers[0][0], offers[0][2]
        return best

    def _wanting(self, group: Group, key: Key) -> list[ConsumerState]:
        """Those who accept a group's first message and have room."""
        filters = [filter for filter, first in group.offers.items() if first == key]
        return [consumer for filter in filters for consumer in self._open.get(filter, ()) if self._is_open(consumer)]

    def _is_open(self, consumer: ConsumerState) -> bool:
        return consumer.room() > 0 and consumer not in self.stopped

    def _turn(self, consumer: ConsumerState) -> tuple[int, bool, int]:
        """Who is next: the highest priority, those with filters, who has waited longest."""
        return -consumer.priority, consumer.filter is None, self._turns[consumer]

    def _give(self, group: Group, consumer: ConsumerState) -> None:
        """The group is the consumer's."""
        self._serial += 1
        self._turns[consumer] = self._serial
        place = self._places.get(consumer)
        if place is None:
            place = self._places[consumer] = GroupBacklog(consumer.filter)
        for view in group.place.views():
            place.push(view)
        place.groups[group] = None
        group.owner, group.place = consumer, place
        group.withdraw()

    def _grant(self, consumer: ConsumerState, budget: int, level: PriorityList) -> Dispatch | None:
        """Grant a consumer the first messages of its groups, as far as they stand side by side; None: not now."""
        place = self._places[consumer]
        head = place.head(self.table)
        assert head is not None
        view, start = head
        if view.run.paged:
            self._lack(view)
            return None
        limit = len(view.states)
        if view.run.durable and level.durable and view.first + limit - 1 > level.mark:
            level.mark_wanted = max(level.mark_wanted, view.first + start)
            limit = int(level.mark) - view.first + 1
        if start >= limit:
            return None
        limit = min(limit, start + consumer.room(), start + budget)
        stop, size = start, 0
        while stop < limit and place.takes(view, stop, self.table):
            more = span_bytes(view, stop, stop + 1)
            if not consumer.fits(size + more) and (size or consumer.held):
                break
            stop, size = stop + 1, size + more
        if stop == start:
            return None
        grant = Dispatch(view, start, stop, 1, consumer.next_tag)
        grant.size_bytes = size
        for row in range(start, stop):
            group = self._group(view, row)
            group.waiting -= 1
            group.held += 1
        level.parked -= grant.rows
        level.ready += grant.rows
        level.reached = max(level.reached, view.first + stop - 1)
        self._queue.hold(consumer, grant)
        # It stands at the head of the line, for what it has now.
        heappop(self._line)
        self._stand_in_line(consumer, level)
        return grant

    def check(self) -> None:
        """Assert what must hold between steps."""
        waiting: dict[str, int] = {}
        held: dict[str, int] = {}
        delayed: dict[str, int] = {}
        for level in self._queue.levels:
            for view in level.runs():
                for name, state in zip(view.groups or (), view.states, strict=False):
                    if name is not None:
                        invariant(state != READY, "a message of a group is found through its group only")
                        waiting[name] = waiting.get(name, 0) + (state == PARKED)
                        held[name] = held.get(name, 0) + (state == HELD)
                        delayed[name] = delayed.get(name, 0) + (state == DELAYED)
                        invariant(state != PARKED or self.table[name].place.knows(view), "what waits is in its place")
        for name, group in self.table.items():
            known = group.waiting, group.held, group.delayed
            invariant(known == (waiting.pop(name), held.pop(name), delayed.pop(name)), "a group knows its messages")
            invariant(any(known), "a group without messages is forgotten")
            for filter in self._offers:
                if filter in group.unjudged:
                    # It is not known yet what may be given.
                    continue
                first = self._first_for(group, filter) if group.owner is None and not group.held else None
                invariant(group.offers.get(filter) == first, "what may be given is offered, by its first message")
            invariant(group.owner is None or group.place is self._places[group.owner], "a group waits at its owner's")
        invariant(
            not any([*waiting.values(), *held.values(), *delayed.values()]), "each message of a group is in the table"
        )
        self._check_holders()

    def _first_for(self, group: Group, filter: Filter | None) -> Key | None:
        keys = [
            key_of(view, row)
            for view in group.place.views()
            for row in _parked(view)
            if self._group(view, row) is group and accepts(filter, view, row)
        ]
        return min(keys, default=None)

    def _check_holders(self) -> None:
        holders: dict[str, ConsumerState] = {}
        for consumer in self._queue.consumers:
            for grant in consumer.grants:
                names = (grant.view.groups or ())[grant.start : grant.stop : grant.step]
                settled = grant.settled or bytes(grant.rows)
                for name, done in zip(names, settled, strict=False):
                    if name is not None and not done:
                        holder = holders.setdefault(name, consumer)
                        invariant(holder is consumer, "one consumer at a time holds messages of a group")


def _key(view: QueueRun) -> Key:
    return key_of(view, 0)


def _parked(view: QueueRun) -> list[int]:
    """The rows that wait for their groups."""
    return [row for row, state in enumerate(view.states) if state == PARKED]
