"""The queue: runs in order, consumers with room, and nothing else; no clock, no I/O, no journal.

A queue is a linked list of runs in placing order.  ``_fresh`` points at the first run with rows that were never
granted; rows that come back are found through a small heap of their runs, and since everything granted stands
before everything fresh, serving the heap first restores the order.

A durable message may be granted only up to ``mark``: the number up to which the journal knows that messages may
have been delivered.  That is how a broker that was killed marks what comes again, and nothing but a block more.

Consumers with filters are served first, by ``_filtered_machine``; what they leave is dealt to the others here.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import Final

from meshq import limits
from meshq.broker._consumer_state import ConsumerState, Grant, Span, fitting, span_bytes
from meshq.broker._filtered_machine import FilteredConsumers
from meshq.broker._run import GONE, GONE_ROWS, HELD, HELD_ROWS, READY, READY_ROWS, QueueRun
from meshq.errors import invariant
from meshq.selector import Filter

#: A mark is moved ahead by so many messages at a time, so that it costs a record in thousands of messages.
MARK_BLOCK: Final = 8_192
#: Runs that are gone may stay in the heap of those with returned rows, but not many more than half of it.
_RETURNED_SLACK: Final = 64


class Queue:
    """One queue.

    Counts for conservation (Q8): ``added = acknowledged + rejected + purged + ready + held``.
    """

    __slots__ = (
        "_dead_returned", "_filtered", "_fresh", "_head", "_plain", "_returned", "_tail", "_turn", "acknowledged",
        "added", "address", "consumers", "durable", "held", "last", "live_runs", "mark", "mark_wanted", "name",
        "number", "purged", "reached", "ready", "redelivered", "rejected", "unfinished",
    )  # fmt: skip

    def __init__(self, number: int, name: str, address: str, *, durable: bool) -> None:
        self.number = number
        self.name = name
        self.address = address
        self.durable = durable
        # The highest message number given.
        self.last = 0
        # Durable messages up to this number may be granted, and the number up to which somebody would like to.
        self.mark: float = 0
        self.mark_wanted = 0
        self.consumers: list[ConsumerState] = []
        # Those without filters, and whoever looks after the others, if there are any.
        self._plain: list[ConsumerState] = []
        self._filtered: FilteredConsumers | None = None
        # The highest number granted to a consumer with a filter.
        self.reached = 0
        # The last dispatch ended before everything was put to the filters.
        self.unfinished = False
        # Whose turn it is among equal consumers.
        self._turn = 0
        self._head: QueueRun | None = None
        self._tail: QueueRun | None = None
        self._fresh: QueueRun | None = None
        # Runs with rows that came back, by their first number.
        self._returned: list[tuple[int, QueueRun]] = []
        self._dead_returned = 0
        self.live_runs = 0
        self.ready = 0
        self.held = 0
        self.added = 0
        self.acknowledged = 0
        self.rejected = 0
        self.purged = 0
        self.redelivered = 0

    # -- what comes in

    def number_rows(self, rows: int) -> int:
        """Give numbers to ``rows`` messages that are being placed; returns the first."""
        first = self.last + 1
        self.last += rows
        return first

    def append(self, view: QueueRun) -> None:
        """A run becomes visible.  Runs are appended in the order of their numbers."""
        tail = self._tail
        invariant(tail is None or tail.first < view.first, "runs become visible in placing order")
        view.previous = tail
        if tail is None:
            self._head = view
        else:
            tail.next = view
        self._tail = view
        if self._fresh is None:
            self._fresh = view
        if self._filtered is not None:
            self._filtered.appended(view)
        self.live_runs += 1
        self.ready += view.live
        self.added += view.live

    def check_filter(self, filter: Filter) -> None:
        """See that a consumer with this filter can join.

        Raises:
            UsageError: the queue has as many filters as it can ask.
        """
        if self._filtered is not None:
            self._filtered.check_room(filter)

    def add_consumer(self, consumer: ConsumerState) -> None:
        """A consumer joins, last in the rotation."""
        self.consumers.append(consumer)
        if consumer.filter is None:
            self._plain.append(consumer)
            return
        if self._filtered is None:
            self._filtered = FilteredConsumers(self, self._head)
        self._filtered.add(consumer, consumer.filter, self._head, self._tail)

    def remove_consumer(self, consumer: ConsumerState) -> None:
        """A consumer leaves.  What it holds must have been given back."""
        invariant(not consumer.grants, "a consumer that leaves holds nothing")
        self.consumers.remove(consumer)
        if consumer.filter is None:
            index = self._plain.index(consumer)
            del self._plain[index]
            if index < self._turn:
                self._turn -= 1
        elif self._filtered is not None:
            self._filtered.remove(consumer)
            if self._filtered.empty:
                self._filtered = None
                self.unfinished = False

    def room_changed(self, consumer: ConsumerState) -> None:
        """A consumer with a filter has room again, or none any more."""
        if self._filtered is not None:
            self._filtered.changed(consumer)

    # -- what goes out

    def dispatch(self, budget: int = limits.STEP_MESSAGES_MAX) -> list[tuple[ConsumerState, Grant]]:
        """Grant ready messages to consumers with room, in order, at most about ``budget`` of them.

        Whoever calls goes on while anything is granted.
        """
        grants: list[tuple[ConsumerState, Grant]] = []
        consumers = self._plain
        if self._filtered is not None:
            budget -= self._filtered.serve(budget, grants)
        elif len(consumers) == 1:
            only = consumers[0]
            while budget > 0 and self.ready and (whole := self._grant_whole(only)) is not None:
                grants.append((only, whole))
                budget -= whole.rows
        while budget > 0 and self.ready and consumers:
            willing = self._willing()
            if not willing:
                break
            span = self._next_span()
            if span is None:
                break
            view, start, stop, fresh = span
            granted = self._deal(willing, view, start, stop, grants)
            if not granted:
                break
            if fresh:
                view.fresh = start + granted
            budget -= granted
        return grants

    def _grant_whole(self, consumer: ConsumerState) -> Grant | None:
        """The next run to the only consumer, if it is untouched and fits: nothing has to be searched or divided."""
        view = self._fresh
        if view is None or view.fresh or self._returned:
            return None
        rows = len(view.states)
        run = view.run
        size = len(run.content.body)
        if (
            view.live != rows
            or rows > consumer.room()
            or size > consumer.window_bytes - consumer.held_bytes
            or (view.first + rows - 1 > self.mark and run.durable and self.durable)
        ):
            return None
        grant = Grant(view, 0, rows, 1, consumer.next_tag)
        grant.size_bytes = size
        self.hold(consumer, grant)
        view.fresh = rows
        self._fresh = view.next
        return grant

    def _willing(self) -> list[ConsumerState]:
        """The consumers with room, whose turn it is first."""
        consumers, turn = self._plain, self._turn
        if len(consumers) == 1:
            return consumers if consumers[0].room() > 0 else []
        if turn:
            consumers = consumers[turn:] + consumers[:turn]
        return [consumer for consumer in consumers if consumer.room() > 0]

    def _next_span(self) -> tuple[QueueRun, int, int, bool] | None:
        while self._returned:
            view = self._returned[0][1]
            span = view.ready_span(0, view.fresh) if view.live else None
            if span is not None:
                return view, *span, False
            heappop(self._returned)
            view.returned = False
            if not view.live:
                self._dead_returned -= 1
        view_or_none = self._fresh
        while view_or_none is not None:
            view = view_or_none
            rows = len(view.states)
            span = view.ready_span(view.fresh, rows) if view.live else None
            if span is not None:
                start, stop = span
                if view.run.durable and self.durable and view.first + stop - 1 > self.mark:
                    self.mark_wanted = max(self.mark_wanted, view.first + stop - 1)
                    stop = start + max(0, int(self.mark) - view.first - start + 1)
                    if stop <= start:
                        self._fresh = view
                        return None
                self._fresh = view
                return view, start, stop, True
            view.fresh = rows
            view_or_none = view.next
        self._fresh = None
        return None

    def _deal(
        self,
        willing: list[ConsumerState],
        view: QueueRun,
        start: int,
        stop: int,
        grants: list[tuple[ConsumerState, Grant]],
    ) -> int:
        """Deal rows to the consumers in turn, by stride; returns how many rows were dealt."""
        count = min(len(willing), stop - start)
        chosen = willing[:count]
        if count == 1:
            share = chosen[0].room()
            room_bytes = chosen[0].window_bytes - chosen[0].held_bytes
        else:
            share = min(consumer.room() for consumer in chosen)
            room_bytes = min(consumer.window_bytes - consumer.held_bytes for consumer in chosen)
        rows = min(stop - start, share * count)
        size = span_bytes(view, start, start + rows)
        if size > room_bytes:
            rows = fitting(view, start, start + rows, room_bytes)
            if rows == 0:
                # The first message is larger than that room: it goes to whoever has room for it, or holds nothing,
                # as one message always fits.
                first = span_bytes(view, start, start + 1)
                chosen = [
                    consumer
                    for consumer in willing
                    if not consumer.held or first <= consumer.window_bytes - consumer.held_bytes
                ][:1]
                rows = len(chosen)
            count = len(chosen)
            size = span_bytes(view, start, start + rows) if rows else 0
        for index, consumer in enumerate(chosen[:rows]):
            grant = Grant(view, start + index, start + rows, count, consumer.next_tag)
            grant.size_bytes = size if grant.rows == rows else span_bytes(view, grant.start, grant.stop, count)
            self.hold(consumer, grant)
            grants.append((consumer, grant))
        if rows:
            last = chosen[(rows - 1) % count]
            self._turn = (self._plain.index(last) + 1) % len(self._plain) if len(self._plain) > 1 else 0
        return rows

    def hold(self, consumer: ConsumerState, grant: Grant) -> None:
        """The rows of a grant are the consumer's."""
        rows = grant.rows
        grant.view.states[grant.start : grant.stop : grant.step] = HELD_ROWS[:rows]
        consumer.next_tag += rows
        consumer.held += rows
        consumer.held_bytes += grant.size_bytes
        consumer.grants.append(grant)
        self.ready -= rows
        self.held += rows

    # -- what is settled

    def settled(self, span: Span, *, rejected: bool) -> bool:
        """Rows of a grant are done; True if this queue has no more use for their run."""
        rows = span.rows
        self.held -= rows
        if rejected:
            self.rejected += rows
        else:
            self.acknowledged += rows
        return self._gone(span.view, span.start, span.stop, span.step, rows)

    def give_back(self, span: Span, *, counted: bool) -> None:
        """Rows of a grant return to their places; ``counted``: they may have reached an application."""
        view, rows = span.view, span.rows
        view.states[span.start : span.stop : span.step] = READY_ROWS[:rows]
        self.held -= rows
        self.ready += rows
        if counted:
            self.redelivered += rows
            counts = view.counts
            if counts is None:
                counts = view.counts = {}
            for row in range(span.start, span.stop, span.step):
                counts[row] = counts.get(row, 0) + 1
        if not view.returned:
            view.returned = True
            heappush(self._returned, (view.first, view))
        if view.lanes and self._filtered is not None:
            self._filtered.returned(view)

    def purge(self, budget: int) -> tuple[list[Span], list[bool]]:
        """Take up to about ``budget`` ready messages out, oldest first.

        Returns them in parts that stand side by side in a run, and for each whether it was the last of its run here.
        """
        spans: list[Span] = []
        ended: list[bool] = []
        view = self._head
        while view is not None and budget > 0:
            following = view.next
            start = 0
            while view.live and (span := view.ready_span(start, len(view.states))) is not None:
                low, start = span
                rows = start - low
                self.ready -= rows
                self.purged += rows
                budget -= rows
                spans.append(Span(view, low, start, 1))
                ended.append(self._gone(view, low, start, 1, rows))
            view = following
        return spans, ended

    def _gone(self, view: QueueRun, start: int, stop: int, step: int, rows: int) -> bool:
        view.states[start:stop:step] = GONE_ROWS[:rows]
        view.live -= rows
        if view.live:
            return False
        self._unlink(view)
        return True

    def _unlink(self, view: QueueRun) -> None:
        before, after = view.previous, view.next
        if before is None:
            self._head = after
        else:
            before.next = after
        if after is None:
            self._tail = before
        else:
            after.previous = before
        if self._fresh is view:
            self._fresh = after
        self.live_runs -= 1
        if self._filtered is not None:
            self._filtered.unlinked(view)
        if view.returned:
            # Where nobody takes what comes back, what is gone must not be kept for its place in the heap.
            self._dead_returned += 1
            if 2 * self._dead_returned > len(self._returned) + _RETURNED_SLACK:
                self._returned = [entry for entry in self._returned if entry[1].live]
                heapify(self._returned)
                self._dead_returned = 0

    # -- what may be asked

    def runs(self) -> list[QueueRun]:
        """The runs it holds, in order."""
        found = []
        view = self._head
        while view is not None:
            found.append(view)
            view = view.next
        return found

    @property
    def filters(self) -> tuple[Filter, ...]:
        """What its consumers want, if each of them wants something in particular; else nothing."""
        return self._filtered.filters if self._filtered is not None and not self._plain else ()

    @property
    def granted(self) -> int:
        """No message above this number may ever have been delivered, in this life of the broker or an earlier one."""
        return max(self.reached, self._granted_in_order)

    @property
    def _granted_in_order(self) -> int:
        view = self._fresh
        if view is None:
            return self._tail.first + len(self._tail.states) - 1 if self._tail is not None else self.last
        number = view.first + view.fresh - 1
        # What an earlier life may have delivered stands at the front.
        while view is not None and view.maybe:
            number = max(number, view.first + view.maybe - 1)
            view = view.next
        return number

    def check(self) -> None:
        """Assert what must hold between steps."""
        ready = held = 0
        first = 0
        for view in self.runs():
            invariant(view.first > first, "runs stand in the order of their numbers")
            first = view.first
            row_ready, row_held = view.states.count(READY), view.states.count(HELD)
            invariant(view.live == row_ready + row_held, "a run's live count is that of its states")
            invariant(view.live + view.states.count(GONE) == len(view.states), "each row has one of three states")
            invariant(
                view.returned or view.states.find(READY, 0, view.fresh) < 0,
                "a ready row before the fresh ones is found through the heap",
            )
            ready += row_ready
            held += row_held
        invariant((ready, held) == (self.ready, self.held), "ready and held are what the states say")
        invariant(
            self._dead_returned == sum(not view.live for _, view in self._returned),
            "what is gone in the heap is counted",
        )
        if self._filtered is not None:
            self._filtered.check()
        invariant(held == sum(consumer.held for consumer in self.consumers), "what is held, a consumer holds")
        out = self.acknowledged + self.rejected + self.purged
        invariant(self.added == out + ready + held, "added = acknowledged + rejected + purged + ready + held")
