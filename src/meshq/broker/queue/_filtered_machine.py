"""Consumers with filters, of one priority: the messages of one list that each gets, and the scan of the runs.

Consumers with the same filter are a filter group.  All groups scan the queue's runs together, each run once: the run's
messages are put to the filters, and the accepted rows are noted beside the run, by group.  Filters that compare one
name with values are not asked but looked up.  A group that joins later scans alone, from the head of the queue to the
run that the others have reached.  No scan goes further than the credit of the consumers.

So a message that no filter accepts is looked at once for each filter, and never again; a returned message is found by
the noted rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from meshq import limits
from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch, span_bytes, weight
from meshq.broker.queue._filter_group import FilterGroup, filter_of, fitting_rows, stride
from meshq.broker.queue._message_counts import MessageCounts
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._run import GONE, QueueRun
from meshq.broker.queue._run_messages import RunMessages, accepted
from meshq.broker.queue._unfinished_work import UnfinishedWork
from meshq.errors import invariant
from meshq.selector import Filter, MessageView, index_key


class _Lookup:
    """Filter groups whose filters compare one name with values, by these values."""

    __slots__ = ("filter_groups", "read")

    def __init__(self, read: Callable[[MessageView], Any]) -> None:
        self.read = read
        self.filter_groups: dict[Any, dict[FilterGroup, None]] = {}


class FilteredConsumers:
    """All consumers of a queue that have filters and one priority, and one of its priority lists.

    A filter group with credit stands in exactly one of four sets.  ``_waiting``: a run with messages for the group is
    known.  ``_blocked``: such a run is known, and its messages can't be dispatched yet.  ``_behind``: no such run is
    known, and the group scans alone.  ``_seeking``: no such run is known, and the group scans with the others.  A group
    without credit stands in none of these until ``changed`` is called; but one that waits for memory stands in
    ``_blocked``, as nobody says a word when a little memory is free again.
    """

    __slots__ = (
        "_asked", "_behind", "_blocked", "_catching", "_counts", "_filter_groups", "_filters", "_front", "_half",
        "_lookups", "_pending", "_priority_list", "_properties", "_searches", "_seeking", "_terms", "_until",
        "_used", "_waiting", "even",
    )  # fmt: skip

    def __init__(self, priority_list: PriorityList, counts: MessageCounts, pending: UnfinishedWork) -> None:
        self._counts = counts
        self._pending = pending
        self._priority_list = priority_list
        self._filter_groups: dict[Filter, FilterGroup] = {}
        # What ``filters`` said last; None: it has changed.
        self._filters: tuple[Filter, ...] | None = None
        # The run that all look at next; None: they have seen everything.
        self._front = priority_list.head
        self._lookups: dict[Any, _Lookup] = {}
        # Lanes whose filters no value tells anything about.
        self._asked: dict[FilterGroup, None] = {}
        # How many filters look at properties; how many LIKE they have, and terms those to which each message is put.
        self._properties = self._searches = self._terms = 0
        # Of the run at the front, if it is not looked at to its end: the rows that are left, what was found in the
        # others, and the filter groups that have scanned these.
        self._half: tuple[list[int], dict[FilterGroup, list[int]], dict[FilterGroup, None] | None] | None = None
        # Filter groups that still scan alone, hungry or not.
        self._catching: dict[FilterGroup, None] = {}
        self._waiting: dict[FilterGroup, None] = {}
        self._blocked: dict[FilterGroup, None] = {}
        self._behind: dict[FilterGroup, None] = {}
        self._seeking: dict[FilterGroup, None] = {}
        # Up to which number the messages of the list may be dispatched in this step.
        self._until = math.inf
        #: Whether messages are shared evenly by all consumers, whatever their filters; else each filter group gets what
        #: it wants of a run before the next one.
        self.even: bool = False
        # The share that the filter group had that was served last.
        self._used = 0.0

    @property
    def empty(self) -> bool:
        """Whether no consumer is left."""
        return not self._filter_groups

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The filters, in the order in which they came."""
        if self._filters is None:
            self._filters = tuple(self._filter_groups)
        return self._filters

    @property
    def asked(self) -> int:
        """The number of filters that each message is put to."""
        return len(self._asked)

    # -- who is there

    def add(self, consumer: AnyConsumer, filter: Filter) -> None:
        """Add a consumer."""
        filter_group = self._filter_groups.get(filter)
        if filter_group is None:
            filter_group = self._filter_groups[filter] = FilterGroup(filter)
            self._filters = None
            if self._front is not None:
                filter_group.until = self._front.first + (self._half is not None)
            elif self._priority_list.tail is not None:
                filter_group.until = self._priority_list.tail.first + 1
            self._step_behind(filter_group, self._priority_list.head)
            self._properties += filter.uses_properties
            self._searches += filter.searches
            index = filter.index
            if index is None:
                self._asked[filter_group] = None
                self._terms += filter.terms
            else:
                lookup = self._lookups.get(index.name)
                if lookup is None:
                    lookup = self._lookups[index.name] = _Lookup(index.read)
                for key in index.keys:
                    lookup.filter_groups.setdefault(key, {})[filter_group] = None
        filter_group.consumers.append(consumer)
        self.changed(consumer)

    def remove(self, consumer: AnyConsumer) -> None:
        """Remove a consumer, and its filter group with the last one."""
        filter_group = self._filter_groups[filter_of(consumer)]
        filter_group.remove(consumer)
        if filter_group.consumers:
            return
        del self._filter_groups[filter_group.filter]
        self._filters = None
        self._drop(filter_group)
        self._catching.pop(filter_group, None)
        self._properties -= filter_group.filter.uses_properties
        self._searches -= filter_group.filter.searches
        for view in filter_group.runs.values():
            if view.filter_groups is not None:
                del view.filter_groups[filter_group]
        index = filter_group.filter.index
        if index is None:
            del self._asked[filter_group]
            self._terms -= filter_group.filter.terms
            return
        lookup = self._lookups[index.name]
        for key in index.keys:
            del lookup.filter_groups[key][filter_group]
            if not lookup.filter_groups[key]:
                del lookup.filter_groups[key]
        if not lookup.filter_groups:
            del self._lookups[index.name]

    def changed(self, consumer: AnyConsumer) -> None:
        """Note that the credit of a consumer has changed between none and some."""
        filter_group = self._filter_groups.get(filter_of(consumer))
        if filter_group is None:
            return
        if consumer.credit() > 0:
            if filter_group not in self._blocked and filter_group not in self._waiting:
                self._wake(filter_group)
        elif not filter_group.willing():
            self._set_aside(filter_group)

    def _wake(self, filter_group: FilterGroup) -> None:
        """Put a filter group with credit into the set where it belongs."""
        self._drop(filter_group)
        # What stands further back than where it looks for itself has to wait for that.
        if filter_group.queued and filter_group.next_rows() is not None:
            self._waiting[filter_group] = None
        elif filter_group.behind is not None:
            self._behind[filter_group] = None
        else:
            self._seeking[filter_group] = None

    def _set_aside(self, filter_group: FilterGroup) -> None:
        """Put a filter group without credit where it is looked at again: in each step, or when it has some."""
        self._drop(filter_group)
        if filter_group.waits_for_memory():
            self._blocked[filter_group] = None

    def _drop(self, filter_group: FilterGroup) -> None:
        for filter_groups in (self._waiting, self._blocked, self._behind, self._seeking):
            filter_groups.pop(filter_group, None)

    # -- what happens to runs

    def appended(self, view: QueueRun) -> None:
        """Scan a run that became visible, later."""
        if self._front is None:
            self._front = view

    def unlinked(self, view: QueueRun) -> None:
        """Forget a run that was unlinked."""
        if self._front is view:
            self._front, self._half = view.next, None
        for filter_group in [filter_group for filter_group in self._catching if filter_group.behind is view]:
            self._step_behind(filter_group, view.next)
            if filter_group in self._behind:
                self._wake(filter_group)
        if view.filter_groups is not None:
            for accepting in view.filter_groups:
                accepting.forget(view.first)
            view.filter_groups = None

    def returned(self, view: QueueRun) -> None:
        """Note that rows of a run are ready again."""
        for accepting in view.filter_groups or ():
            filter_group = self._filter_groups.get(accepting.filter)
            if filter_group is accepting:
                filter_group.push(view.first)
                if filter_group not in self._blocked:
                    self._wake(filter_group)

    # -- what goes out

    def serve(self, budget: int, dispatches: list[tuple[AnyConsumer, Dispatch]], until: float = math.inf) -> int:
        """Give ready messages with numbers below ``until`` to consumers whose filters accept them; return the part of
        the step's budget that was used."""
        priority_list = self._priority_list
        self._until = until
        self._waiting.update(self._blocked)
        self._blocked.clear()
        looks = limits.SCAN_MESSAGES_MAX
        dispatched = 0
        while dispatched < budget and priority_list.ready:
            if self._waiting:
                before = len(dispatches)
                self._serve(self._next_group(), dispatches)
                dispatched += weight(dispatches[before:])
                continue
            if not self._behind and (not self._seeking or self._front is None):
                break
            if looks <= 0:
                self._pending.unfinished = True
                break
            ahead = next(iter(self._behind)).behind if self._behind else self._front
            if ahead is not None and ahead.run.paged:
                self._fault_in(ahead)
                break
            if self._behind:
                looks -= self._look_alone(next(iter(self._behind)), looks)
            else:
                looks -= self._look_together(looks)
        return dispatched

    def _next_group(self) -> FilterGroup:
        """Return the filter group that is served next: the one with the smallest share, if these are to be even."""
        if self.even:
            return min(self._waiting, key=lambda filter_group: filter_group.used)
        return next(iter(self._waiting))

    def _serve(self, filter_group: FilterGroup, dispatches: list[tuple[AnyConsumer, Dispatch]]) -> int:
        """Give a filter group messages of the first run that is known to have some for it."""
        self._drop(filter_group)
        willing = filter_group.willing()
        if not willing:
            self._set_aside(filter_group)
            return 0
        found = filter_group.next_rows()
        if found is None:
            self._wake(filter_group)
            return 0
        view, rows = found
        if view.run.paged:
            self._fault_in(view)
            self._blocked[filter_group] = None
            return 0
        if view.first + rows[-1] >= self._until:
            rows = [row for row in rows if view.first + row < self._until]
        rows = self._below_watermark(view, rows) if rows else []
        if self.even and len(self._filter_groups) > 1:
            rows = rows[:1]
        dispatched = self._deal(filter_group, view, rows, willing, dispatches) if rows else 0
        if dispatched and self.even:
            # Who had nothing to get for a while does not get it all at once.
            share = max(filter_group.used, self._used - 1) + dispatched / len(filter_group.consumers)
            filter_group.used = self._used = share
        # Those that got something stand behind the others; the others may get something when the mark has moved, or
        # when the message that is too large for them is gone.
        (self._waiting if dispatched else self._blocked)[filter_group] = None
        return dispatched

    def _fault_in(self, view: QueueRun) -> None:
        """Ask for the content of a paged run; no less urgent message is dispatched before it is in memory."""
        self._priority_list.absent = view
        self._pending.fault_in(view)

    def _below_watermark(self, view: QueueRun, rows: list[int]) -> list[int]:
        """Return the rows up to the watermark."""
        priority_list = self._priority_list
        last = view.first + rows[-1]
        if last <= priority_list.high_watermark or not view.run.durable or not priority_list.durable:
            return rows
        priority_list.wanted_watermark = max(priority_list.wanted_watermark, last)
        return [row for row in rows if view.first + row <= priority_list.high_watermark]

    def _deal(
        self,
        filter_group: FilterGroup,
        view: QueueRun,
        rows: list[int],
        willing: list[AnyConsumer],
        dispatches: list[tuple[AnyConsumer, Dispatch]],
    ) -> int:
        """Distribute rows of the same distance among the consumers of a filter group; return how many."""
        most, step = stride(rows)
        count = min(len(willing), most)
        chosen = willing[:count]
        most = min(most, count * min(consumer.credit() for consumer in chosen))
        credit_bytes = min(consumer.window_bytes - consumer.unacked_bytes for consumer in chosen)
        dealt = fitting_rows(view, rows[:most], credit_bytes)
        if not dealt:
            # As for consumers without filters: one message always fits.
            size = span_bytes(view, rows[0], rows[0] + 1)
            chosen = [consumer for consumer in willing if consumer.fits(size)][:1]
            dealt = len(chosen)
        count = min(len(chosen), dealt)
        for place, consumer in enumerate(chosen[:count]):
            start = rows[0] + place * step
            dispatch = Dispatch(view, start, rows[0] + (dealt - 1) * step + 1, step * count, consumer.next_tag)
            dispatch.size_bytes = span_bytes(view, dispatch.start, dispatch.stop, dispatch.step)
            self._counts.record_dispatch(consumer, dispatch)
            dispatches.append((consumer, dispatch))
        if dealt:
            filter_group.served(chosen[(dealt - 1) % count])
            self._priority_list.reached = max(self._priority_list.reached, view.first + rows[dealt - 1])
        return dealt

    # -- who looks at what

    def _look_alone(self, filter_group: FilterGroup, looks: int) -> int:
        """Scan the next run for a group that joined late, as far as ``looks`` allows; return the work done."""
        view = filter_group.behind
        assert view is not None
        rows, found = filter_group.half or (_live(view), [])
        accepted_rows, seen, work = accepted(view.run, filter_group.filter, rows, looks)
        found += accepted_rows
        if seen < len(rows):
            filter_group.half = rows[seen:], found
            return work
        self._step_behind(filter_group, view.next)
        if found:
            self._note(filter_group, view, found)
        self._wake(filter_group)
        return max(work, len(view.states) - len(rows))

    def _step_behind(self, filter_group: FilterGroup, view: QueueRun | None) -> None:
        """Let a group scan ``view`` next by itself, unless the common scan has not yet passed that run."""
        filter_group.half = None
        if view is not None and view.first < filter_group.until:
            filter_group.behind = view
            self._catching[filter_group] = None
        else:
            filter_group.behind = None
            self._catching.pop(filter_group, None)

    def _look_together(self, looks: int) -> int:
        """Scan the next run for all groups, as far as ``looks`` allows; return the work done."""
        view = self._front
        assert view is not None
        half, self._half = self._half, None
        rows, found, filter_groups = half or (_live(view), {}, None)
        asked = [(filter_group, filter_group.filter.verdict) for filter_group in self._asked]
        lookups = [(lookup.read, lookup.filter_groups) for lookup in self._lookups.values()]
        messages, properties = RunMessages(view.run), self._properties > 0
        part, work = messages.portion(rows, self._terms, self._searches, looks)
        seen = len(part)
        by_path = not lookups and all(filter_group.filter.asks_path for filter_group in self._asked)
        for filter_group, verdict in asked if by_path else ():
            if rows_on_way := messages.accepted_by_path(verdict, part):
                found.setdefault(filter_group, []).extend(rows_on_way)
        for row in () if by_path else part:
            messages.move(row, properties=properties)
            for read, by_value in lookups:
                for filter_group in by_value.get(index_key(read(messages)), ()):
                    index = filter_group.filter.index
                    if index is not None and index.exact:
                        found.setdefault(filter_group, []).append(row)
                        continue
                    work += 1 + filter_group.filter.terms // limits.SCAN_TERMS
                    if filter_group.filter.verdict(messages) is True:
                        found.setdefault(filter_group, []).append(row)
            for filter_group, verdict in asked:
                if verdict(messages) is True:
                    found.setdefault(filter_group, []).append(row)
            if lookups and work > looks:
                seen = part.index(row) + 1
                break
        work += len(view.states) - len(rows) if half is None else 0
        if seen < len(rows):
            # Whoever comes before it goes on here looks at this run alone.
            self._half = rows[seen:], found, filter_groups or dict.fromkeys(self._filter_groups.values())
            return max(work, looks)
        self._front = view.next
        for filter_group, accepted_rows in found.items():
            if self._filter_groups.get(filter_group.filter) is filter_group and (
                filter_groups is None or filter_group in filter_groups
            ):
                self._note(filter_group, view, accepted_rows)
                if filter_group in self._seeking:
                    self._wake(filter_group)
        return work

    def _note(self, filter_group: FilterGroup, view: QueueRun, rows: list[int]) -> None:
        """Note the rows that a filter has accepted."""
        if view.filter_groups is None:
            view.filter_groups = {}
        view.filter_groups[filter_group] = bytes(rows)
        filter_group.runs[view.first] = view
        filter_group.push(view.first)

    def check(self) -> None:
        """Assert the invariants between steps."""
        for filter_group in (*self._waiting, *self._blocked, *self._behind, *self._seeking):
            invariant(
                self._filter_groups.get(filter_group.filter) is filter_group,
                "a filter group stands where its consumers are",
            )
        for filter_group in self._filter_groups.values():
            places = [
                filter_group in filter_groups
                for filter_groups in (self._waiting, self._blocked, self._behind, self._seeking)
            ]
            invariant(sum(places) <= 1, "a filter group is in one set")
            invariant(any(places) or not filter_group.willing(), "a filter group with credit is not forgotten")
            for first, view in filter_group.runs.items():
                rows = (view.filter_groups or {}).get(filter_group)
                invariant(
                    rows is not None and view.live and first == view.first, "the runs of a filter group are there"
                )
                ready = any(not view.states[row] for row in rows or ())
                invariant(first in filter_group.queued or not ready, "a ready message that a filter accepts is found")
                invariant(
                    not ready or filter_group not in self._seeking,
                    "a filter group that scans further knows no ready message",
                )


def _live(view: QueueRun) -> list[int]:
    """The rows that are not gone and have no group."""
    states = view.states
    if view.groups is not None:
        return [row for row, state in enumerate(states) if state != GONE and view.groups[row] is None]
    if view.live == len(states):
        return list(range(len(states)))
    return [row for row, state in enumerate(states) if state != GONE]
