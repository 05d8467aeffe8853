"""The queue: runs in order, consumers and counts, without clock, I/O and journal.

A queue is made of parts, each with its own file: the counts of its messages and their states (``_message_counts``), a
list of runs for each priority (``_priority_lists``), the consumers (``_consumer_roster``), and the machine that says
which consumer gets which messages (``_dispatch_machine``).  Here the parts are kept in step.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from meshq import limits
from meshq.address import Target
from meshq.broker.queue._branches_machine import ForwardBranches
from meshq.broker.queue._browser import Browser, BrowseSink
from meshq.broker.queue._consumer_roster import ConsumerRoster
from meshq.broker.queue._consumer_state import AnyConsumer, ConsumerState, Dispatch, RowSpan
from meshq.broker.queue._dispatch_machine import Dispatcher, whole
from meshq.broker.queue._grouped_machine import GroupedMessages
from meshq.broker.queue._last_value_machine import LastValues
from meshq.broker.queue._message_counts import MessageCounts, lowest_number
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._priority_lists import PriorityLists, ScheduledRuns
from meshq.broker.queue._queue_spec import DEFAULT_SPEC, QueueKind, QueueSpec
from meshq.broker.queue._run import DELAYED_ROWS, PARKED, UNACKED_ROWS, QueueRun, StoredRun
from meshq.broker.queue._unfinished_work import UnfinishedWork
from meshq.broker.records._row_ranges import pieces
from meshq.errors import UsageError, invariant
from meshq.selector import Filter
from meshq.settings import DEFAULT_ADDRESS_SETTINGS, AddressSettings

#: A watermark is moved ahead by so many messages at a time: one record is written for thousands of messages.
WATERMARK_BLOCK: Final = 8_192


class Queue:
    """A queue.

    Invariant of the counts (Q8): ``added = acknowledged + removed + ready + unacked + delayed``.
    """

    __slots__ = (
        "_dispatcher", "address", "auto_delete", "branches", "counts", "durable", "expires", "forwards",
        "grouped", "last", "last_values", "lists", "name", "number", "paused", "pending", "roster", "scheduled",
        "settings", "spec",
    )  # fmt: skip

    def __init__(self, number: int, name: str, address: str, *, durable: bool, spec: QueueSpec = DEFAULT_SPEC) -> None:
        self.number: int = number
        self.name: str = name
        self.address: str = address
        self.durable: bool = durable
        self.spec: QueueSpec = spec
        # Whether its messages are on their way elsewhere, first in, first out for all priorities: to another node, or
        # out of a stage.
        self.forwards: bool = self.kind in (QueueKind.STORE_AND_FORWARD, QueueKind.STAGE)
        # The queue is deleted when it is no longer used.
        self.auto_delete: bool = spec.owner is not None or (bool(spec.subscription) and not durable)
        # A paused queue takes messages and gives none to consumers.
        self.paused: bool = False
        # The highest message number given.
        self.last: int = 0
        self.counts: MessageCounts = MessageCounts()
        self.pending: UnfinishedWork = UnfinishedWork()
        # A store-and-forward queue keeps the order of placing: it has only the main list, and its branches.
        self.lists: PriorityLists = PriorityLists(durable=durable)
        self.roster: ConsumerRoster = ConsumerRoster(self.lists, self.counts, self.pending, self)
        self._dispatcher = Dispatcher(self.lists, self.roster, self.counts, self.pending)
        # Of a store-and-forward queue: addresses whose messages others overtake.
        self.branches: ForwardBranches | None = None
        if self.forwards:
            self.branches = ForwardBranches(self.lists, self.roster, self.counts, self.pending)
        # Runs that are not due yet.
        self.scheduled: ScheduledRuns = ScheduledRuns()
        # Messages with a group; None before the first such message.
        self.grouped: GroupedMessages | None = None
        # Of a last-value queue: the newest message of each value.
        self.last_values: LastValues | None = None
        # A message with a time to live has been in the queue.
        self.expires: bool = False
        self.settings: AddressSettings = DEFAULT_ADDRESS_SETTINGS

    @property
    def kind(self) -> QueueKind:
        """The kind of queue, which its name and its fixed settings say."""
        return self.spec.kind_of(self.name)

    # -- what comes in

    def number_rows(self, rows: int) -> int:
        """Reserve numbers for ``rows`` messages that are being placed; return the first number."""
        first = self.last + 1
        self.last += rows
        return first

    def append(self, view: QueueRun) -> None:
        """Make a run visible.  Runs are appended in the order of their numbers."""
        self.counts.appended(view)
        if self.branches is not None:
            self.branches.appended(view.run)
        if view.run.options is None and self.last_values is None:
            (self.list_for(view.run) if self.forwards else self.lists.main).append(view)
            return
        options = view.run.options
        if options is not None and options.groups is not None and not self.forwards:
            view.groups = options.groups
        self.list_for(view.run).append(view)
        if view.groups is not None:
            self.groups().appended(view)
        if self.last_values is not None:
            self.last_values.appeared(RowSpan(view, 0, len(view.states), 1))

    def append_with_unacked(self, view: QueueRun) -> None:
        """Make a run visible that has unacked rows already."""
        self.append(view)
        self.counts.restore_unacked(view)
        if view.groups is not None:
            self.groups().restore_unacked(view)

    def content_loaded(self, view: QueueRun) -> None:
        """Take in the content of a paged run: its messages can be put to filters and dispatched again."""
        priority_list = view.priority_list
        if priority_list is None or not view.live:
            return
        if priority_list.absent is view:
            priority_list.absent = None
        if view.groups is not None:
            self.groups().arrived(view)
        if self.last_values is not None:
            self.last_values.arrived(view)

    def groups(self) -> GroupedMessages:
        """Return the messages with a group, for the first time or again."""
        grouped = self.grouped
        if grouped is None:
            grouped = self.grouped = GroupedMessages(self.lists, self.counts, self.pending)
            grouped.may_offer, grouped.claim = self.roster.may_offer, self.roster.claim
            for consumer in self.roster.consumers:
                if consumer.served:
                    grouped.joined(consumer)
        return grouped

    def target_of(self, reason: str) -> Target | None:
        """Return the target of messages that leave for this reason; None: the messages are dropped.

        A message of the target address itself is dropped: it would come back for ever.
        """
        settings = self.settings
        name = settings.expiry_address if reason == "expired" else settings.dead_letter_address
        return Target(name, None) if name is not None and name != self.address else None

    def list_for(self, run: StoredRun) -> PriorityList:
        """Return the list for the messages of a run."""
        if self.branches is not None:
            return self.branches.list_for(run)
        options = run.options
        return self.lists.main if options is None or self.forwards else self.priority_list(options.priority)

    def branch(self) -> ForwardBranches:
        """Return the branches of a store-and-forward queue."""
        invariant(self.branches is not None, "a store-and-forward queue has branches")
        assert self.branches is not None
        return self.branches

    def priority_list(self, priority: int) -> PriorityList:
        """Return the list of a priority; made on first use."""
        priority_list = self.lists.get(priority)
        if priority_list is None:
            priority_list = self.lists.add(priority)
            self.roster.list_added(priority_list)
        return priority_list

    def keep_last_values(self, key: str | None) -> None:
        """Keep only the newest message of each value of a property; None: keep all messages."""
        known = self.last_values
        if key is None:
            self.last_values = None
        elif known is None or known.key != key:
            self.last_values = LastValues(self, key)
            self.last_values.take_up()

    # -- consumers

    def check_filter(self, filter: Filter, priority: int = 0) -> None:
        """Check that a consumer with this filter can join.

        Raises:
            UsageError: the queue has the maximum of different filters.
        """
        if filter.index is not None or self.roster.has_filter(filter, priority):
            return
        if self.roster.asked >= limits.FILTERS_SCANNED_MAX:
            raise UsageError(
                f"the queue {self.name!r} has its {limits.FILTERS_SCANNED_MAX} different filters of the kind that each "
                "message is put to; those with 'name = literal' are not counted"
            )

    def add_consumer(self, consumer: AnyConsumer) -> None:
        """Add a consumer, last in the rotation."""
        consumer.exclusive = consumer.exclusive or self.settings.default_exclusive
        self.roster.add(consumer)

    def remove_consumer(self, consumer: AnyConsumer) -> None:
        """Remove a consumer, which has no unacked messages any more."""
        self.roster.remove(consumer)

    def serving_started(self, consumer: AnyConsumer) -> None:
        """Note that a consumer is served from now on."""
        if self.grouped is not None:
            self.grouped.joined(consumer)
            if self.settings.default_group_rebalance:
                self.grouped.renew()

    def serving_stopped(self, consumer: AnyConsumer) -> None:
        """Note that a consumer is served no more."""
        if self.grouped is not None:
            self.grouped.left(consumer)

    def credit_changed(self, consumer: AnyConsumer) -> None:
        """Note that the credit of a consumer with a filter has changed between none and some."""
        self.roster.credit_changed(consumer)

    def browse(self, consumer: AnyConsumer, filter: Filter | None, sink: BrowseSink) -> Browser:
        """Return a browse, which is still to begin."""
        return Browser(self, consumer, filter, sink)

    def begin_browse(self, browser: Browser) -> None:
        """Let a browse look at each dispatch of the queue."""
        self.roster.browsers[browser] = None

    def end_browse(self, browser: Browser) -> None:
        """Let a browse look no more, if it has begun."""
        self.roster.browsers.pop(browser, None)

    # -- dispatch

    def dispatch(self, budget: int = limits.STEP_MESSAGES_MAX) -> list[tuple[AnyConsumer, Dispatch]]:
        """Give ready messages to consumers with credit, in order, at most about ``budget`` messages.

        The caller repeats the call while any message is dispatched.
        """
        self.pending.unfinished = False
        dispatches: list[tuple[AnyConsumer, Dispatch]] = []
        only = self.roster.only
        if self.paused or (only is None and self.roster.waits_for_others()):
            return dispatches
        if self.branches is not None and self.branches.active:
            self.branches.dispatch(budget, dispatches)
            return dispatches
        if self.last_values is not None and self.last_values.unread:
            # Something newer may stand there.
            return dispatches
        priority_list = self.lists.main
        if only is not None and not priority_list.grouped_runs:
            counts = self.counts
            while (dispatch := whole(counts, priority_list, only)) is not None:
                dispatches.append((only, dispatch))
                budget -= dispatch.rows + dispatch.size_bytes // limits.STEP_MESSAGE_BYTES
                if not priority_list.ready or budget <= 0:
                    return dispatches
        self._dispatcher.run(budget, dispatches, self.grouped)
        return dispatches

    # -- settlement

    def settled(self, span: RowSpan) -> bool:
        """Count dispatched rows as acknowledged; return True if no message of their run is left in this queue."""
        self.counts.settled(span)
        view = span.view
        if view.groups is not None or self.last_values is not None:
            self._gone(span, UNACKED_ROWS)
        if view.live:
            return False
        view.priority_list.unlink(view)  # type: ignore[union-attr]  # it was visible
        return True

    def remove(self, span: RowSpan, fate: str) -> bool:
        """Remove rows, of any state, visible or not; return True if no message of their run is left in this queue."""
        if span.view in self.scheduled:
            return self.scheduled.leave(span.view, range(span.start, span.stop, span.step))
        self._gone(span, self.counts.remove(span, fate))
        view = span.view
        if view.live:
            return False
        view.priority_list.unlink(view)  # type: ignore[union-attr]  # it was visible
        return True

    def _gone(self, span: RowSpan, before: bytes | bytearray) -> None:
        if span.view.groups is not None:
            self.groups().changed(span, before)
        if self.last_values is not None:
            self.last_values.gone(span)

    def give_back(self, span: RowSpan, *, counted: bool, waits: bool = False) -> None:
        """Return dispatched rows to their places; ``counted``: an application may have seen the rows; ``waits``: the
        rows are delayed until ``wake``."""
        self.counts.give_back(span, counted=counted, waits=waits)
        if span.view.groups is not None:
            self.groups().changed(span, UNACKED_ROWS)
        if self.last_values is not None:
            self.last_values.appeared(span)

    def delay(self, span: RowSpan) -> None:
        """Delay ready rows until ``wake``."""
        before = self.counts.delay(span)
        if PARKED in before:
            self.groups().changed(span, before)

    def wake(self, span: RowSpan) -> None:
        """End the delay of those rows that are still delayed."""
        for woken in self.counts.wake(span):
            if woken.view.groups is not None:
                self.groups().changed(woken, DELAYED_ROWS)

    def waiting(self, budget: int) -> list[RowSpan]:
        """Return up to about ``budget`` messages that are not unacked, from the highest priority down, oldest first."""
        spans: list[RowSpan] = []
        for view in self.lists.walk():
            if budget <= 0:
                break
            rows = view.enqueued_rows()
            spans += [RowSpan(view, found.start, found.stop, found.step) for found in pieces(rows)]
            budget -= len(rows)
        return spans

    def purge(self, budget: int) -> tuple[list[RowSpan], list[bool]]:
        """Remove up to about ``budget`` messages that are not unacked; return their spans, and for each whether it was
        the last of its run here."""
        spans = self.waiting(budget)
        return spans, [self.remove(span, "purged") for span in spans]

    # -- reading

    def runs(self) -> list[QueueRun]:
        """Return the visible runs, from the highest priority down, and in order."""
        return self.lists.runs()

    def all_runs(self) -> list[QueueRun]:
        """Return all runs, the scheduled runs included."""
        return [*self.lists.walk(), *self.scheduled]

    @property
    def oldest(self) -> int:
        """The lowest number of a message that is not settled, or not visible yet; the next number if there is none."""
        heads = [one.head for one in self.lists.all]
        return min([self.counts.high, *(lowest_number(view) for view in heads if view is not None)])

    @property
    def paged(self) -> tuple[int, int]:
        """The number of messages that are on the disk only, and the bytes of their runs."""
        views = [view for view in self.all_runs() if view.run.paged]
        return sum(view.live for view in views), sum(view.run.paged for view in views)

    @property
    def delivered_up_to(self) -> dict[int, int]:
        """By priority: the highest number that may have been delivered, in this life or an earlier one."""
        return self.lists.delivered_up_to(self.last)

    def check(self) -> None:
        """Assert the invariants of the queue between steps."""
        for priority_list in self.lists.all:
            priority_list.check()
        self.counts.check(self.lists.all)
        self.roster.check()
        self.scheduled.check()
        if self.grouped is not None:
            self.grouped.check(self.roster.consumers)
        if self.last_values is not None:
            self.last_values.check()


#: A consumer of such a queue, as its session knows it.
QueueConsumer: TypeAlias = ConsumerState[Queue]
