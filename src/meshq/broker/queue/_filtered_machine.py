"""Consumers with filters, of one priority: which messages of one list each gets, and who has to look at what.

Consumers with the same filter are a lane.  All lanes look at the queue's runs together, each run once: the run's
messages are put to the filters, and what they accept is noted beside the run, as rows by lane.  Filters that want one
name to have certain values are not asked but looked up.  A lane that comes later looks alone, from the head of the
queue to where the others have come.  Nobody looks further than somebody has room for.

So a message that nobody wants is looked at once for each filter, and never again; a message that comes back is found
by what was noted.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from meshq import limits
from meshq.broker.queue._consumer_state import ConsumerState, Dispatch, span_bytes, weight
from meshq.broker.queue._filter_group import FilterGroup, fitting_rows, stride
from meshq.broker.queue._run import GONE, QueueRun
from meshq.broker.queue._run_messages import RunMessages, accepted
from meshq.errors import invariant
from meshq.selector import Filter, MessageView, index_key

if TYPE_CHECKING:
    from meshq.broker.queue._priority_list import PriorityList
    from meshq.broker.queue._queue_machine import Queue


class _Lookup:
    """Lanes whose filters want one name to have certain values, by these."""

    __slots__ = ("lanes", "read")

    def __init__(self, read: Callable[[MessageView], Any]) -> None:
        self.read = read
        self.lanes: dict[Any, dict[FilterGroup, None]] = {}


class FilteredConsumers:
    """All consumers of a queue that have filters and one priority.

    A lane that may have something to get stands in exactly one of ``_waiting`` (a run with messages for it is known),
    ``_stuck`` (so it is, and they can't be granted yet), ``_behind`` and ``_hungry`` (nothing is known; alone, or with
    the others, it would have to look further).  One without room stands in none and is woken by ``changed``.
    """

    __slots__ = (
        "_asked",
        "_behind",
        "_catching",
        "_filters",
        "_front",
        "_half",
        "_hungry",
        "_lanes",
        "_level",
        "_lookups",
        "_properties",
        "_queue",
        "_searches",
        "_stuck",
        "_terms",
        "_until",
        "_waiting",
    )  # fmt: skip

    def __init__(self, queue: Queue, level: PriorityList) -> None:
        self._queue = queue
        self._level = level
        self._lanes: dict[Filter, FilterGroup] = {}
        # What ``filters`` said last; None: it has changed.
        self._filters: tuple[Filter, ...] | None = None
        # The run that all look at next; None: they have seen everything.
        self._front = level.head
        self._lookups: dict[Any, _Lookup] = {}
        # Lanes whose filters no value tells anything about.
        self._asked: dict[FilterGroup, None] = {}
        # How many filters look at properties; how many LIKE they have, and terms those to which each message is put.
        self._properties = self._searches = self._terms = 0
        # Of the run at the front, if it is not looked at to its end: the rows that are left, what was found in the
        # others, and the lanes that have looked at these.
        self._half: tuple[list[int], dict[FilterGroup, list[int]], dict[FilterGroup, None] | None] | None = None
        # Lanes that still look alone, hungry or not.
        self._catching: dict[FilterGroup, None] = {}
        self._waiting: dict[FilterGroup, None] = {}
        self._stuck: dict[FilterGroup, None] = {}
        self._behind: dict[FilterGroup, None] = {}
        self._hungry: dict[FilterGroup, None] = {}
        # Up to which number the messages of the list may be granted in this step.
        self._until = math.inf

    @property
    def empty(self) -> bool:
        """Whether there is no consumer with a filter."""
        return not self._lanes

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The filters, in the order in which they came."""
        if self._filters is None:
            self._filters = tuple(self._lanes)
        return self._filters

    @property
    def asked(self) -> int:
        """How many filters each message is put to."""
        return len(self._asked)

    # -- who is there

    def add(self, consumer: ConsumerState, filter: Filter) -> None:
        """A consumer joins."""
        lane = self._lanes.get(filter)
        if lane is None:
            lane = self._lanes[filter] = FilterGroup(filter)
            self._filters = None
            if self._front is not None:
                lane.until = self._front.first + (self._half is not None)
            elif self._level.tail is not None:
                lane.until = self._level.tail.first + 1
            self._step_behind(lane, self._level.head)
            self._properties += filter.uses_properties
            self._searches += filter.searches
            index = filter.index
            if index is None:
                self._asked[lane] = None
                self._terms += filter.terms
            else:
                lookup = self._lookups.get(index.name)
                if lookup is None:
                    lookup = self._lookups[index.name] = _Lookup(index.read)
                for key in index.keys:
                    lookup.lanes.setdefault(key, {})[lane] = None
        lane.consumers.append(consumer)
        self.changed(consumer)

    def remove(self, consumer: ConsumerState) -> None:
        """A consumer leaves, and its lane with it if it was the last there."""
        assert consumer.filter is not None
        lane = self._lanes[consumer.filter]
        lane.remove(consumer)
        if lane.consumers:
            return
        del self._lanes[lane.filter]
        self._filters = None
        self._drop(lane)
        self._catching.pop(lane, None)
        self._properties -= lane.filter.uses_properties
        self._searches -= lane.filter.searches
        for view in lane.runs.values():
            if view.lanes is not None:
                del view.lanes[lane]
        index = lane.filter.index
        if index is None:
            del self._asked[lane]
            self._terms -= lane.filter.terms
            return
        lookup = self._lookups[index.name]
        for key in index.keys:
            del lookup.lanes[key][lane]
            if not lookup.lanes[key]:
                del lookup.lanes[key]
        if not lookup.lanes:
            del self._lookups[index.name]

    def changed(self, consumer: ConsumerState) -> None:
        """A consumer has room again, or none any more."""
        lane = self._lanes.get(consumer.filter) if consumer.filter is not None else None
        if lane is None:
            return
        if consumer.room() > 0:
            if lane not in self._stuck and lane not in self._waiting:
                self._wake(lane)
        elif not lane.willing():
            self._drop(lane)

    def _wake(self, lane: FilterGroup) -> None:
        """The lane wants something."""
        self._drop(lane)
        # What stands further back than where it looks for itself has to wait for that.
        if lane.queued and lane.next_rows() is not None:
            self._waiting[lane] = None
        elif lane.behind is not None:
            self._behind[lane] = None
        else:
            self._hungry[lane] = None

    def _drop(self, lane: FilterGroup) -> None:
        for lanes in (self._waiting, self._stuck, self._behind, self._hungry):
            lanes.pop(lane, None)

    # -- what happens to runs

    def appended(self, view: QueueRun) -> None:
        """A run became visible."""
        if self._front is None:
            self._front = view

    def unlinked(self, view: QueueRun) -> None:
        """A run is gone."""
        if self._front is view:
            self._front, self._half = view.next, None
        for lane in [lane for lane in self._catching if lane.behind is view]:
            self._step_behind(lane, view.next)
            if lane in self._behind:
                self._wake(lane)
        if view.lanes is not None:
            for lane in view.lanes:
                lane.forget(view.first)
            view.lanes = None

    def returned(self, view: QueueRun) -> None:
        """Rows of a run came back."""
        for lane in view.lanes or ():
            if self._lanes.get(lane.filter) is lane:
                lane.push(view.first)
                if lane not in self._stuck:
                    self._wake(lane)

    # -- what goes out

    def serve(self, budget: int, grants: list[tuple[ConsumerState, Dispatch]], until: float = math.inf) -> int:
        """Grant ready messages to consumers whose filters accept them, with numbers below ``until``; returns
        what they take of the step."""
        level = self._level
        self._until = until
        self._waiting.update(self._stuck)
        self._stuck.clear()
        looks = limits.SCAN_MESSAGES_MAX
        granted = 0
        while granted < budget and level.ready:
            if self._waiting:
                before = len(grants)
                self._serve(next(iter(self._waiting)), grants)
                granted += weight(grants[before:])
                continue
            if not self._behind and (not self._hungry or self._front is None):
                break
            if looks <= 0:
                self._queue.unfinished = True
                break
            ahead = next(iter(self._behind)).behind if self._behind else self._front
            if ahead is not None and ahead.run.paged:
                self._lack(ahead)
                break
            if self._behind:
                looks -= self._look_alone(next(iter(self._behind)), looks)
            else:
                looks -= self._look_together(looks)
        return granted

    def _serve(self, lane: FilterGroup, grants: list[tuple[ConsumerState, Dispatch]]) -> int:
        """Grant a lane some of the first run that it knows to have messages for it."""
        self._drop(lane)
        willing = lane.willing()
        if not willing:
            return 0
        found = lane.next_rows()
        if found is None:
            self._wake(lane)
            return 0
        view, rows = found
        if view.run.paged:
            self._lack(view)
            self._stuck[lane] = None
            return 0
        if view.first + rows[-1] >= self._until:
            rows = [row for row in rows if view.first + row < self._until]
        rows = self._below_mark(view, rows) if rows else []
        granted = self._deal(lane, view, rows, willing, grants) if rows else 0
        # Those that got something stand behind the others; the others may get something when the mark has moved, or
        # when the message that is too large for them is gone.
        (self._waiting if granted else self._stuck)[lane] = None
        return granted

    def _lack(self, view: QueueRun) -> None:
        """The content of a run is on the disk only: nothing less urgent goes before that is looked at."""
        self._level.absent = view
        self._queue.want(view)

    def _below_mark(self, view: QueueRun, rows: list[int]) -> list[int]:
        """The rows that may be granted now."""
        level = self._level
        last = view.first + rows[-1]
        if last <= level.mark or not view.run.durable or not level.durable:
            return rows
        level.mark_wanted = max(level.mark_wanted, last)
        return [row for row in rows if view.first + row <= level.mark]

    def _deal(
        self,
        lane: FilterGroup,
        view: QueueRun,
        rows: list[int],
        willing: list[ConsumerState],
        grants: list[tuple[ConsumerState, Dispatch]],
    ) -> int:
        """Deal rows of the same distance to the consumers of a lane in turn; returns how many."""
        most, step = stride(rows)
        count = min(len(willing), most)
        chosen = willing[:count]
        most = min(most, count * min(consumer.room() for consumer in chosen))
        room_bytes = min(consumer.window_bytes - consumer.held_bytes for consumer in chosen)
        dealt = fitting_rows(view, rows[:most], room_bytes)
        if not dealt:
            # As for consumers without filters: one message always fits.
            size = span_bytes(view, rows[0], rows[0] + 1)
            chosen = [consumer for consumer in willing if consumer.fits(size)][:1]
            dealt = len(chosen)
        count = min(len(chosen), dealt)
        for place, consumer in enumerate(chosen[:count]):
            start = rows[0] + place * step
            grant = Dispatch(view, start, rows[0] + (dealt - 1) * step + 1, step * count, consumer.next_tag)
            grant.size_bytes = span_bytes(view, grant.start, grant.stop, grant.step)
            self._queue.hold(consumer, grant)
            grants.append((consumer, grant))
        if dealt:
            lane.served(chosen[(dealt - 1) % count])
            self._level.reached = max(self._level.reached, view.first + rows[dealt - 1])
        return dealt

    # -- who looks at what

    def _look_alone(self, lane: FilterGroup, looks: int) -> int:
        """A lane that came late looks at the next run, as far as ``looks`` allows; returns how much work that was."""
        view = lane.behind
        assert view is not None
        rows, found = lane.half or (_live(view), [])
        accepted_rows, seen, work = accepted(view.run, lane.filter, rows, looks)
        found += accepted_rows
        if seen < len(rows):
            lane.half = rows[seen:], found
            return work
        self._step_behind(lane, view.next)
        if found:
            self._note(lane, view, found)
        self._wake(lane)
        return max(work, len(view.states) - len(rows))

    def _step_behind(self, lane: FilterGroup, view: QueueRun | None) -> None:
        """The lane looks at ``view`` next, unless all lanes have begun to look together before it."""
        lane.half = None
        if view is not None and view.first < lane.until:
            lane.behind = view
            self._catching[lane] = None
        else:
            lane.behind = None
            self._catching.pop(lane, None)

    def _look_together(self, looks: int) -> int:
        """All lanes look at the next run, as far as ``looks`` allows; returns how much work that was."""
        view = self._front
        assert view is not None
        half, self._half = self._half, None
        rows, found, lanes = half or (_live(view), {}, None)
        asked = [(lane, lane.filter.verdict) for lane in self._asked]
        lookups = [(lookup.read, lookup.lanes) for lookup in self._lookups.values()]
        messages, properties = RunMessages(view.run), self._properties > 0
        part, work = messages.portion(rows, self._terms, self._searches, looks)
        seen = len(part)
        for row in part:
            messages.move(row, properties=properties)
            for read, by_value in lookups:
                for lane in by_value.get(index_key(read(messages)), ()):
                    index = lane.filter.index
                    if index is not None and index.exact:
                        found.setdefault(lane, []).append(row)
                        continue
                    work += 1 + lane.filter.terms // limits.SCAN_TERMS
                    if lane.filter.verdict(messages) is True:
                        found.setdefault(lane, []).append(row)
            for lane, verdict in asked:
                if verdict(messages) is True:
                    found.setdefault(lane, []).append(row)
            if lookups and work > looks:
                seen = part.index(row) + 1
                break
        work += len(view.states) - len(rows) if half is None else 0
        if seen < len(rows):
            # Whoever comes before it goes on here looks at this run alone.
            self._half = rows[seen:], found, lanes or dict.fromkeys(self._lanes.values())
            return max(work, looks)
        self._front = view.next
        for lane, accepted_rows in found.items():
            if self._lanes.get(lane.filter) is lane and (lanes is None or lane in lanes):
                self._note(lane, view, accepted_rows)
                if lane in self._hungry:
                    self._wake(lane)
        return work

    def _note(self, lane: FilterGroup, view: QueueRun, rows: list[int]) -> None:
        """Keep what a filter has accepted."""
        if view.lanes is None:
            view.lanes = {}
        view.lanes[lane] = bytes(rows)
        lane.runs[view.first] = view
        lane.push(view.first)

    def check(self) -> None:
        """Assert what must hold between steps."""
        for lane in (*self._waiting, *self._stuck, *self._behind, *self._hungry):
            invariant(self._lanes.get(lane.filter) is lane, "a lane stands where its consumers are")
        for lane in self._lanes.values():
            places = [lane in lanes for lanes in (self._waiting, self._stuck, self._behind, self._hungry)]
            invariant(sum(places) <= 1, "a lane stands in one place")
            invariant(any(places) or not lane.willing(), "a lane with room is not forgotten")
            for first, view in lane.runs.items():
                rows = (view.lanes or {}).get(lane)
                invariant(rows is not None and view.live and first == view.first, "what a lane knows of is there")
                ready = any(not view.states[row] for row in rows or ())
                invariant(first in lane.queued or not ready, "a ready message that a filter accepts is found")
                invariant(not ready or lane not in self._hungry, "a lane that looks further has nothing at hand")


def _live(view: QueueRun) -> list[int]:
    """The rows that are ready, or may come back; those of groups are found another way."""
    states = view.states
    if view.groups is not None:
        return [row for row, state in enumerate(states) if state != GONE and view.groups[row] is None]
    if view.live == len(states):
        return list(range(len(states)))
    return [row for row, state in enumerate(states) if state != GONE]
