"""The consumers of one priority: the rotation among those without filters, and the rows that each of them gets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from meshq.broker.queue._consumer_state import AnyConsumer, Dispatch, fitting, span_bytes
from meshq.broker.queue._filter_group import filter_of
from meshq.broker.queue._filtered_machine import FilteredConsumers
from meshq.broker.queue._message_counts import MessageCounts
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._run import QueueRun
from meshq.broker.queue._unfinished_work import UnfinishedWork
from meshq.errors import invariant
from meshq.selector import Filter


class ConsumerPriorityGroup:
    """The served consumers of one priority.

    Invariant: ``filtered`` has each priority list of the queue while a consumer has a filter, and none otherwise.
    """

    __slots__ = ("_counts", "_even", "_filtering", "_next_index", "_pending", "consumers", "filtered", "priority")

    def __init__(self, priority: int, counts: MessageCounts, pending: UnfinishedWork) -> None:
        self._counts = counts
        self._pending = pending
        self.priority = priority
        #: The consumers without filters.
        self.consumers: list[AnyConsumer] = []
        #: The consumers with filters, for each priority list of the queue.
        self.filtered: dict[PriorityList, FilteredConsumers] = {}
        # The same consumers, each with its filter.
        self._filtering: dict[AnyConsumer, Filter] = {}
        # Whether network consumers are among them: then all of them are served by their filters, and evenly.
        self._even = False
        # The consumer that is next in the rotation.
        self._next_index = 0

    @property
    def empty(self) -> bool:
        """Whether no consumer is left."""
        return not self.consumers and not self.filtered

    def add(self, consumer: AnyConsumer, priority_lists: Iterable[PriorityList]) -> None:
        """Add a consumer, last in the rotation; ``priority_lists``: all of the queue."""
        priority_lists = list(priority_lists)
        if consumer.routes and not self._even:
            self._even = True
            for filtered in self.filtered.values():
                filtered.even = True
            plain, self.consumers, self._next_index = self.consumers, [], 0
            for one in plain:
                self._add_filtered(one, priority_lists)
        if consumer.filter is None and not self._even:
            self.consumers.append(consumer)
        else:
            self._add_filtered(consumer, priority_lists)

    def _add_filtered(self, consumer: AnyConsumer, priority_lists: Iterable[PriorityList]) -> None:
        consumer.levelled = consumer.filter is None
        filter = self._filtering[consumer] = filter_of(consumer)
        for priority_list in priority_lists:
            self._filter(priority_list, consumer, filter)

    @property
    def takes_everything(self) -> bool:
        """Whether a consumer has no filter."""
        return bool(self.consumers) or any(consumer.levelled for consumer in self._filtering)

    def list_added(self, priority_list: PriorityList) -> None:
        """Serve another priority list, too."""
        for consumer, filter in self._filtering.items():
            self._filter(priority_list, consumer, filter)

    def _filter(self, priority_list: PriorityList, consumer: AnyConsumer, filter: Filter) -> None:
        filtered = self.filtered.get(priority_list)
        if filtered is None:
            filtered = self.filtered[priority_list] = FilteredConsumers(priority_list, self._counts, self._pending)
            filtered.even = self._even
            priority_list.watchers[filtered] = None
        filtered.add(consumer, filter)

    def remove(self, consumer: AnyConsumer) -> None:
        """Remove a consumer."""
        if consumer in self._filtering:
            self._remove_filtered(consumer)
            if self._even and not any(one.routes for one in self._filtering):
                self._end_even()
            return
        index = self.consumers.index(consumer)
        del self.consumers[index]
        if index < self._next_index:
            self._next_index -= 1

    def _remove_filtered(self, consumer: AnyConsumer) -> None:
        del self._filtering[consumer]
        for priority_list, filtered in list(self.filtered.items()):
            filtered.remove(consumer)
            if filtered.empty:
                del self.filtered[priority_list]
                del priority_list.watchers[filtered]
        consumer.levelled = False

    def _end_even(self) -> None:
        """Serve consumers without filters as ever: the last network consumer is gone."""
        self._even = False
        for filtered in self.filtered.values():
            filtered.even = False
        for consumer in [one for one in self._filtering if one.levelled]:
            self._remove_filtered(consumer)
            self.consumers.append(consumer)

    def credit_changed(self, consumer: AnyConsumer) -> None:
        """Note that the credit of a consumer with a filter has changed between none and some."""
        for filtered in self.filtered.values():
            filtered.changed(consumer)

    def willing(self) -> list[AnyConsumer]:
        """Return the consumers with credit, in the order of the rotation."""
        consumers, next_index = self.consumers, self._next_index
        if len(consumers) == 1:
            return consumers if consumers[0].credit() > 0 else []
        if next_index:
            consumers = consumers[next_index:] + consumers[:next_index]
        return [consumer for consumer in consumers if consumer.credit() > 0]

    def deal(
        self,
        willing: list[AnyConsumer],
        span: tuple[QueueRun, int, int],
        dispatches: list[tuple[AnyConsumer, Dispatch]],
    ) -> int:
        """Distribute rows of a run among the consumers by stride; return how many rows were dispatched."""
        view, start, stop = span
        count = min(len(willing), stop - start)
        chosen = willing[:count]
        if count == 1:
            share = chosen[0].credit()
            credit_bytes = chosen[0].window_bytes - chosen[0].unacked_bytes
        else:
            share = min(consumer.credit() for consumer in chosen)
            credit_bytes = min(consumer.window_bytes - consumer.unacked_bytes for consumer in chosen)
        rows = min(stop - start, share * count)
        size = span_bytes(view, start, start + rows)
        if size > credit_bytes:
            rows = fitting(view, start, start + rows, credit_bytes)
            if rows == 0:
                # The first message is larger than that credit: it goes to a consumer with enough credit, or without
                # unacked messages, as one message always fits.
                first = span_bytes(view, start, start + 1)
                chosen = [consumer for consumer in willing if consumer.fits(first)][:1]
                rows = len(chosen)
            count = len(chosen)
            size = span_bytes(view, start, start + rows) if rows else 0
        for index, consumer in enumerate(chosen[:rows]):
            dispatch = Dispatch(view, start + index, start + rows, count, consumer.next_tag)
            dispatch.size_bytes = (
                size if dispatch.rows == rows else span_bytes(view, dispatch.start, dispatch.stop, count)
            )
            self._counts.record_dispatch(consumer, dispatch)
            dispatches.append((consumer, dispatch))
        if rows:
            last = chosen[(rows - 1) % count]
            self._next_index = (self.consumers.index(last) + 1) % len(self.consumers) if len(self.consumers) > 1 else 0
        return rows

    def check(self, served: Sequence[AnyConsumer], priority_lists: Sequence[PriorityList]) -> None:
        """Assert the invariants between steps; ``served``: the served consumers of this priority;
        ``priority_lists``: all of the queue."""
        known = [*self.consumers, *self._filtering]
        invariant(known != [], "a group of consumers has some")
        invariant(len(known) == len(served) and set(known) == set(served), "each served consumer is once in its group")
        wanted = priority_lists if self._filtering else []
        invariant(set(self.filtered) == set(wanted), "consumers with filters are served from each list")
        for filtered in self.filtered.values():
            filtered.check()
