"""A group of messages: its owner, its counts, and its waiting messages.

The waiting messages of a group without an owner are in a backlog of the group's own.  Those of all groups of one owner
are in one backlog, so that the owner gets them in the order of the queue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from meshq import limits
from meshq.broker.queue._run import DELAYED, PARKED, READY, UNACKED, QueueRun
from meshq.broker.queue._run_messages import accepted
from meshq.broker.queue._verdicts import cost_of, work_of
from meshq.errors import invariant

if TYPE_CHECKING:
    from meshq.broker.queue._consumer_state import AnyConsumer
    from meshq.selector import Filter

#: What goes first: the more urgent, then the lower number.
Key = tuple[int, int]
#: Runs that are gone may stay in a heap, but not many more than there are runs.
_SLACK: Final = 64


class Group:
    """A group of a queue.

    ``owner`` None: the group has no owner, and gets none while an earlier owner has ``unacked`` messages of it.
    """

    __slots__ = ("backlog", "delayed", "firsts", "name", "offers", "owner", "unacked", "unjudged", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner: AnyConsumer | None = None
        self.unacked = 0
        self.waiting = 0
        # Handed back, and not to be had before somebody wakes them; nothing else waits for these.
        self.delayed = 0
        self.backlog = GroupBacklog(None)
        self.backlog.groups[self] = None
        # While it is to be had: the first message that each filter accepts.
        self.offers: dict[Filter | None, Key] = {}
        # And the runs in which these stand.
        self.firsts: dict[Key, QueueRun] = {}
        # The filters that have to look at a run before it can be said what they accept first: that is on the disk, or
        # costs more than is left of a step.
        self.unjudged: dict[Filter | None, QueueRun] = {}

    def set_apart(self, table: dict[str, Group]) -> bool:
        """Take the group from its owner; return whether the owner has other groups."""
        shared, self.owner, self.backlog = self.backlog, None, GroupBacklog(None)
        self.backlog.groups[self] = None
        for view in shared.views():
            if any(view.groups and table.get(view.groups[row] or "") is self for row in parked(view)):
                self.backlog.push(view)
        del shared.groups[self]
        return bool(shared.groups)

    def withdraw(self) -> None:
        """Withdraw all offers of the group."""
        self.offers.clear()
        self.firsts.clear()
        self.unjudged.clear()


class GroupBacklog:
    """The waiting messages of some groups: their runs, in order, and the filter that has to accept them."""

    __slots__ = ("_filter", "_heap", "_passed", "_queued", "groups")

    def __init__(self, filter: Filter | None) -> None:
        self.groups: dict[Group, None] = {}
        self._filter = filter
        # Runs that may have something, by urgency and first number: a heap, and what stands in it.
        self._heap: list[Key] = []
        self._queued: dict[Key, QueueRun] = {}
        # Runs in which nothing else waits than what the filter does not accept.
        self._passed: dict[Key, QueueRun] = {}

    def push(self, view: QueueRun) -> None:
        """Note that messages of a run wait in this backlog."""
        key = key_of(view, 0)
        if key not in self._queued:
            self._queued[key] = view
            heappush(self._heap, key)

    def forget(self, view: QueueRun) -> None:
        """Note that no message of a run waits in this backlog any more."""
        key = key_of(view, 0)
        self._passed.pop(key, None)
        self._queued.pop(key, None)
        if len(self._heap) > 2 * len(self._queued) + _SLACK:
            self._heap = sorted(self._queued)

    def knows(self, view: QueueRun) -> bool:
        """Whether messages of a run may wait here."""
        key = key_of(view, 0)
        return key in self._queued or key in self._passed

    def views(self) -> list[QueueRun]:
        """The runs, in order."""
        return [view for _, view in sorted({**self._passed, **self._queued}.items(), key=_first)]

    def head(self, table: dict[str, Group]) -> tuple[QueueRun, int] | None:
        """The first message that waits here, by its run and row; ``table``: the groups by their names."""
        heap = self._heap
        while heap:
            view = self._queued.get(heap[0])
            if view is not None:
                row = self.next_row(view, table)
                if row >= 0:
                    return view, row
                del self._queued[heap[0]]
                if self._filter is not None and self._has(view, table):
                    self._passed[heap[0]] = view
            heappop(heap)
        return None

    def next_row(self, view: QueueRun, table: dict[str, Group]) -> int:
        """The first row of a run that waits here and is accepted; -1: none."""
        row = view.states.find(PARKED)
        while row >= 0 and not self.takes(view, row, table):
            row = view.states.find(PARKED, row + 1)
        return row

    def takes(self, view: QueueRun, row: int, table: dict[str, Group]) -> bool:
        """Whether a row waits here and is accepted."""
        return self._is_here(view, row, table) and accepts(self._filter, view, row)

    def _has(self, view: QueueRun, table: dict[str, Group]) -> bool:
        """Whether a row of a run waits here, accepted or not."""
        return any(self._is_here(view, row, table) for row in range(len(view.states)))

    def _is_here(self, view: QueueRun, row: int, table: dict[str, Group]) -> bool:
        if view.states[row] != PARKED or view.groups is None:
            return False
        name = view.groups[row]
        return name is not None and table[name].backlog is self


def key_of(view: QueueRun, row: int) -> Key:
    """Return the place of a message in its queue: priority, then number."""
    assert view.priority_list is not None
    return -view.priority_list.priority, view.first + row


def accepts(filter: Filter | None, view: QueueRun, row: int) -> bool:
    """Whether a filter accepts a message of a group; True where that is not known yet: dispatch asks again."""
    if filter is None:
        return True
    verdicts = (view.verdicts or {}).get(filter)
    return verdicts is None or bool(verdicts[row])


def judged(filter: Filter | None, view: QueueRun) -> bool:
    """Whether it is known which messages of a run a filter accepts."""
    return filter is None or (view.verdicts is not None and filter in view.verdicts)


class GroupFilterScan:
    """Puts runs with messages of groups to filters: as much as one step allows, the rest later."""

    __slots__ = ("_half", "_left", "_waiting")

    def __init__(self) -> None:
        self._left: float = limits.SCAN_MESSAGES_MAX
        # What has to be looked at, in this order.
        self._waiting: dict[tuple[Filter, QueueRun], None] = {}
        # Of the first: the rows that are left, and those that were accepted.
        self._half: tuple[Sequence[int], list[int]] | None = None

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def judge(self, filter: Filter | None, view: QueueRun) -> bool:
        """Whether a filter has judged a run, which is in memory; if not, judge it now or later."""
        if filter is None or judged(filter, view):
            return True
        key = filter, view
        if self._waiting:
            self._waiting[key] = None
            return False
        work = work_of(view.run, cost_of((filter,)))
        if work > self._left:
            self._waiting[key] = None
            return False
        self._left -= work
        _keep(filter, view, accepted(view.run, filter, range(len(view.states))).rows)
        return True

    def forget(self, filter: Filter) -> None:
        """Forget a filter that no consumer has any more."""
        if self._waiting and next(iter(self._waiting))[0] == filter:
            self._half = None
        self._waiting = {key: None for key in self._waiting if key[0] != filter}

    def step(self) -> list[QueueRun]:
        """Scan waiting runs as far as one step allows; return the runs that were judged, or paged meanwhile."""
        self._left = limits.SCAN_MESSAGES_MAX
        found: list[QueueRun] = []
        while self._waiting and self._left > 0:
            filter, view = key = next(iter(self._waiting))
            if view.live and not view.run.paged:
                rows, taken = self._half or (range(len(view.states)), [])
                part, seen, work = accepted(view.run, filter, rows, self._left)
                self._left -= work
                taken += part
                if seen < len(rows):
                    self._half = rows[seen:], taken
                    break
                _keep(filter, view, taken)
            self._half = None
            del self._waiting[key]
            if view.live:
                found.append(view)
        return found


def _keep(filter: Filter, view: QueueRun, rows: Sequence[int]) -> None:
    verdicts = bytearray(len(view.states))
    for row in rows:
        verdicts[row] = True
    if view.verdicts is None:
        view.verdicts = {}
    view.verdicts[filter] = verdicts


def _first(item: tuple[Key, QueueRun]) -> Key:
    return item[0]


def check_holders(consumers: Sequence[AnyConsumer]) -> None:
    """Assert that no two consumers hold messages of one group; ``consumers``: all of a queue."""
    holders: dict[str, AnyConsumer] = {}
    for consumer in consumers:
        for dispatch in consumer.dispatches:
            names = (dispatch.view.groups or ())[dispatch.start : dispatch.stop : dispatch.step]
            settled = dispatch.settled or bytes(dispatch.rows)
            for name, done in zip(names, settled, strict=False):
                if name is not None and not done:
                    holder = holders.setdefault(name, consumer)
                    invariant(holder is consumer, "one consumer at a time holds messages of a group")


def counted(views: Iterable[QueueRun], table: dict[str, Group]) -> dict[str, list[int]]:
    """Return how many messages of each group are waiting, unacked and delayed; assert that each is in its place.

    ``views``: all of a queue.  ``table``: its groups by their names.
    """
    found: dict[str, list[int]] = {}
    for view in views:
        for name, state in zip(view.groups or (), view.states, strict=False):
            if name is not None:
                invariant(state != READY, "a message of a group is found through its group only")
                counts = found.setdefault(name, [0, 0, 0])
                for place, wanted in enumerate((PARKED, UNACKED, DELAYED)):
                    counts[place] += state == wanted
                invariant(state != PARKED or table[name].backlog.knows(view), "what waits is in its place")
    return found


def first_key(view: QueueRun) -> Key:
    """Return the place of the first message of a run in its queue."""
    return key_of(view, 0)


def parked(view: QueueRun) -> list[int]:
    """Return the rows of a run that wait to be dispatched through their groups."""
    return [row for row, state in enumerate(view.states) if state == PARKED]
