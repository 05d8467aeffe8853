"""A group of messages: who has it, how many of it there are, and where those stand that wait.

What waits of a group that nobody has stands in a place of the group's own; what waits of those that a consumer has
stands together, in that consumer's place, so that it gets them in the order of the queue.
"""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final

from meshq.broker.queue._run import PARKED, QueueRun
from meshq.broker.queue._run_messages import accepted

if TYPE_CHECKING:
    from meshq.broker.queue._consumer_state import ConsumerState
    from meshq.selector import Filter

#: What goes first: the more urgent, then the lower number.
Key = tuple[int, int]
#: Runs that are gone may stay in a heap, but not many more than there are runs.
_SLACK: Final = 64


class Group:
    """One group of a queue.

    ``owner`` has it; None: nobody has, and nobody may get it while ``held`` messages are still with who had it.
    """

    __slots__ = ("delayed", "firsts", "held", "name", "offers", "owner", "place", "unjudged", "waiting")

    def __init__(self, name: str) -> None:
        self.name = name
        self.owner: ConsumerState | None = None
        self.held = 0
        self.waiting = 0
        # Handed back, and not to be had before somebody wakes them; nothing else waits for these.
        self.delayed = 0
        self.place = Place(None)
        self.place.groups[self] = None
        # While it is to be had: the first message that each filter accepts.
        self.offers: dict[Filter | None, Key] = {}
        # And the runs in which these stand.
        self.firsts: dict[Key, QueueRun] = {}
        # The filters that have to look at something on the disk before it can be said what they accept first.
        self.unjudged: dict[Filter | None, None] = {}

    def withdraw(self) -> None:
        """It is not to be had."""
        self.offers.clear()
        self.firsts.clear()
        self.unjudged.clear()


class Place:
    """Where the messages of some groups wait: their runs, in order, and whose filter has to accept them."""

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
        """Messages of a run wait here."""
        key = key_of(view, 0)
        if key not in self._queued:
            self._queued[key] = view
            heappush(self._heap, key)

    def forget(self, view: QueueRun) -> None:
        """Nothing of a run waits here any more."""
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
        return name is not None and table[name].place is self


def key_of(view: QueueRun, row: int) -> Key:
    """Where a message stands in its queue."""
    assert view.level is not None
    return -view.level.priority, view.first + row


def accepts(filter: Filter | None, view: QueueRun, row: int) -> bool:
    """Whether a filter accepts a message of a group; a run's messages are put to it once, all together."""
    if filter is None:
        return True
    if view.verdicts is None:
        view.verdicts = {}
    verdicts = view.verdicts.get(filter)
    if verdicts is None:
        if view.run.paged:
            # It is looked at when it is here, before it is granted.
            return True
        verdicts = view.verdicts[filter] = bytearray(len(view.states))
        for index in accepted(view.run, filter, range(len(verdicts))).rows:
            verdicts[index] = True
    return bool(verdicts[row])


def judged(filter: Filter | None, view: QueueRun) -> bool:
    """Whether it can be said now which messages of a run a filter accepts."""
    return filter is None or not view.run.paged or (view.verdicts is not None and filter in view.verdicts)


def _first(item: tuple[Key, QueueRun]) -> Key:
    return item[0]
