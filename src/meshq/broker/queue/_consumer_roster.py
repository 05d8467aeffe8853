"""The roster of a queue: its consumers and browsers, and which consumers are served.

With an exclusive consumer no other one is served.  When it is elected, messages of other consumers may still be
unacked: it gets nothing before these are settled or returned.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Final, Protocol

from meshq.broker.cursors._cursor_machine import CursorMachine
from meshq.broker.queue._browser import Browser
from meshq.broker.queue._consumer_priority_group import ConsumerPriorityGroup
from meshq.broker.queue._consumer_state import AnyConsumer
from meshq.broker.queue._message_counts import MessageCounts
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._priority_lists import PriorityLists
from meshq.broker.queue._unfinished_work import UnfinishedWork
from meshq.errors import invariant
from meshq.lifecycle import LifeCycle, Transitions
from meshq.selector import Filter

_PRIORITY: Final = attrgetter("priority")

#: All consumers are served; one consumer alone is to be served, and waits; one consumer alone is served.
SHARED: Final = "shared"
HANDING_OVER: Final = "handing over"
EXCLUSIVE: Final = "exclusive"
#: How the consumers of a queue are served.
SERVING_TRANSITIONS: Final[Transitions] = {
    SHARED: {"elected": HANDING_OVER},
    HANDING_OVER: {"elected": HANDING_OVER, "handed over": EXCLUSIVE, "released": SHARED},
    EXCLUSIVE: {"elected": HANDING_OVER, "released": SHARED},
}


class ServingWatcher(Protocol):
    """Is told which consumers are served."""

    def serving_started(self, consumer: AnyConsumer) -> None:
        """Note that a consumer is served from now on."""

    def serving_stopped(self, consumer: AnyConsumer) -> None:
        """Note that a consumer is served no more."""


class ConsumerRoster:
    """The consumers of one queue.

    Invariant: the groups have the served consumers, each in the group of its priority; no group is empty.
    """

    __slots__ = (
        "_by_priority", "_counts", "_exclusive", "_lists", "_pending", "_serving", "_watcher", "added", "browsers",
        "claim", "consumers", "cursor", "filters_by_text", "filters_version", "groups", "may_offer", "only",
        "replaying",
    )  # fmt: skip

    def __init__(
        self, lists: PriorityLists, counts: MessageCounts, pending: UnfinishedWork, watcher: ServingWatcher
    ) -> None:
        self._lists = lists
        self._counts = counts
        self._pending = pending
        self._watcher = watcher
        self.consumers: list[AnyConsumer] = []
        #: The network consumers to which messages go back, and what their filters were made of; None: to be made.
        self.replaying: dict[AnyConsumer, object] = {}
        #: The filters of all consumers by their texts, and how many have each; None: they have no filter.
        self.filters_by_text: dict[str | None, tuple[Filter | None, int]] = {}
        #: Changes when another filter is there or gone, or is that of one consumer alone or of several.
        self.filters_version: int = 0
        #: The browses that have begun and not ended.
        self.browsers: dict[Browser, None] = {}
        #: The cursor that has the queue; then there is no consumer.  None: the queue has none.
        self.cursor: CursorMachine | None = None
        #: How many consumers the queue had since the node started.
        self.added: int = 0
        # The served consumers by priority; and from the highest priority down.
        self._by_priority: dict[int, ConsumerPriorityGroup] = {}
        self.groups: list[ConsumerPriorityGroup] = []
        #: The only served consumer, if it has no filter and there is one priority list: it gets whole runs, one by one.
        self.only: AnyConsumer | None = None
        #: Whether they may get the messages of a group, given by its name; None: of each.
        self.may_offer: Callable[[str], bool] | None = None
        #: The same where messages of a group wait; if they may not, somebody is asked from then on.
        self.claim: Callable[[str], bool] | None = None
        self._serving = LifeCycle("the consumers of a queue", SERVING_TRANSITIONS, SHARED)
        # The exclusive consumer that alone is served; None exactly if the state is ``SHARED``.
        self._exclusive: AnyConsumer | None = None

    @property
    def used(self) -> bool:
        """Whether the queue had a consumer since the node started."""
        return self.added > 0

    def add(self, consumer: AnyConsumer) -> None:
        """Add a consumer, last in the rotation."""
        self.added += 1
        self.consumers.append(consumer)
        self._count_filter(consumer.filter, 1)
        if consumer.exclusive or self._exclusive is not None:
            self._elect_exclusive()
        else:
            self._start_serving(consumer)
        self._update_only()

    def remove(self, consumer: AnyConsumer) -> None:
        """Remove a consumer, which has no unacked messages any more."""
        invariant(not consumer.dispatches, "a consumer that leaves holds nothing")
        self.consumers.remove(consumer)
        self.replaying.pop(consumer, None)
        self._count_filter(consumer.filter, -1)
        if consumer.served:
            self._stop_serving(consumer)
        if consumer is self._exclusive:
            self._elect_exclusive()
        self._update_only()

    def refilter(self, consumer: AnyConsumer, filter: Filter) -> None:
        """Give a consumer another filter.  It keeps the messages and the groups that it has."""
        former = consumer.filter
        if former is None or former.text != filter.text:
            self._count_filter(former, -1)
            self._count_filter(filter, 1)
        if consumer in self.replaying:
            self.replaying[consumer] = None
        if not consumer.served:
            consumer.filter = filter
            return
        group = self._by_priority[consumer.priority]
        group.remove(consumer)
        consumer.filter = filter
        group.add(consumer, self._lists.all)
        self._update_only()

    def _count_filter(self, filter: Filter | None, change: int) -> None:
        text = filter.text if filter is not None else None
        count = self.filters_by_text.get(text, (filter, 0))[1] + change
        if count:
            self.filters_by_text[text] = filter, count
        else:
            del self.filters_by_text[text]
        # From three to two, or the other way, nothing changes for anybody.
        if count <= 1 or (count == 2 and change > 0):
            self.filters_version += 1

    def list_added(self, priority_list: PriorityList) -> None:
        """Serve another priority list, too."""
        for group in self.groups:
            group.list_added(priority_list)
        self._update_only()

    def lists_changed(self) -> None:
        """Note that the branches of a store-and-forward queue have changed; its one consumer has no filter."""
        self._update_only()

    def _elect_exclusive(self) -> None:
        """Choose the exclusive consumer: the first of the highest priority.  Without one all consumers are served."""
        exclusive = [consumer for consumer in self.consumers if consumer.exclusive]
        elected = max(exclusive, key=_PRIORITY) if exclusive else None
        if elected is self._exclusive is not None:
            return
        served = self.consumers if elected is None else [elected]
        for consumer in self.consumers:
            if consumer.served and consumer not in served:
                self._stop_serving(consumer)
        for consumer in served:
            if not consumer.served:
                self._start_serving(consumer)
        self._exclusive = elected
        self._serving.on("elected" if elected is not None else "released")

    def _start_serving(self, consumer: AnyConsumer) -> None:
        consumer.served = True
        self._watcher.serving_started(consumer)
        group = self._by_priority.get(consumer.priority)
        if group is None:
            group = ConsumerPriorityGroup(consumer.priority, self._counts, self._pending)
            self._by_priority[consumer.priority] = group
            self.groups = sorted(self._by_priority.values(), key=_PRIORITY, reverse=True)
        group.add(consumer, self._lists.all)

    def _stop_serving(self, consumer: AnyConsumer) -> None:
        consumer.served = False
        self._watcher.serving_stopped(consumer)
        group = self._by_priority[consumer.priority]
        filtered = consumer.filter is not None or consumer.levelled
        group.remove(consumer)
        if filtered and not any(other.filtered for other in self.groups):
            # No filter is left that a message could wait for.
            self._pending.unfinished = False
        if group.empty:
            del self._by_priority[consumer.priority]
            self.groups.remove(group)

    def _update_only(self) -> None:
        alone = (
            len(self.groups) == 1
            and len(self.groups[0].consumers) == 1
            and not self.groups[0].filtered
            and len(self._lists.all) == 1
            and self._serving.state != HANDING_OVER
        )
        self.only = self.groups[0].consumers[0] if alone else None

    @property
    def hands_over(self) -> bool:
        """Whether unacked messages of other consumers keep the exclusive one waiting; changes nothing."""
        exclusive = self._exclusive
        if exclusive is None or self._serving.state != HANDING_OVER:
            return False
        return self._counts.unacked - self._counts.acked_in_transaction > exclusive.unacked

    def waits_for_others(self) -> bool:
        """Whether the exclusive consumer waits for unacked messages of other consumers."""
        if self._serving.state != HANDING_OVER:
            return False
        assert self._exclusive is not None
        if self._counts.unacked - self._counts.acked_in_transaction > self._exclusive.unacked:
            return True
        self._serving.on("handed over")
        self._update_only()
        return False

    def credit_changed(self, consumer: AnyConsumer) -> None:
        """Note that the credit of a consumer with a filter has changed between none and some."""
        if consumer.served:
            self._by_priority[consumer.priority].credit_changed(consumer)

    # -- filters

    @property
    def filters(self) -> tuple[Filter, ...]:
        """The filters of the served consumers; empty if one of these has no filter."""
        if any(group.takes_everything for group in self.groups):
            return ()
        main = self._lists.main
        found = [group.filtered[main].filters for group in self.groups]
        if len(found) == 1:
            return found[0]
        return tuple(dict.fromkeys(filter for filters in found for filter in filters))

    @property
    def asked(self) -> int:
        """The number of filters that each message is put to."""
        main = self._lists.main
        return sum(group.filtered[main].asked for group in self.groups if group.filtered)

    def has_filter(self, filter: Filter, priority: int) -> bool:
        """Whether a served consumer of this priority has this filter."""
        group = self._by_priority.get(priority)
        return group is not None and bool(group.filtered) and filter in group.filtered[self._lists.main].filters

    def check(self) -> None:
        """Assert the invariants between steps."""
        invariant(self.cursor is None or not self.consumers, "a queue has consumers or a cursor")
        invariant((self._exclusive is None) == (self._serving.state == SHARED), "an exclusive consumer is served alone")
        served = [consumer for consumer in self.consumers if consumer.served]
        priorities = sorted({consumer.priority for consumer in served}, reverse=True)
        invariant(priorities == [group.priority for group in self.groups], "each served consumer has a group")
        for group in self.groups:
            group.check([consumer for consumer in served if consumer.priority == group.priority], self._lists.all)
        for priority_list in self._lists.all:
            told = {group.filtered[priority_list] for group in self.groups if group.filtered}
            invariant(set(priority_list.watchers) == told, "a list tells the served consumers with filters")
        unacked = sum(consumer.unacked for consumer in self.consumers)
        invariant(
            self._counts.unacked == unacked + self._counts.acked_in_transaction,
            "an unacked message has a consumer or a transaction",
        )
        for consumer in self.consumers:
            _check_share(consumer)


def _check_share(consumer: AnyConsumer) -> None:
    """Assert that a consumer has the content of each run once in its share, as far as dispatches are neighbours."""
    counted = 0
    run = None
    for dispatch in consumer.dispatches:
        invariant(
            dispatch.counts or dispatch.view.run is run, "what is not counted stands behind something of the same run"
        )
        run = dispatch.view.run
        counted += run.content_bytes if dispatch.counts else 0
    invariant(
        consumer.unacked_memory is None or consumer.pinned_bytes == counted, "a consumer's share is what it holds"
    )
