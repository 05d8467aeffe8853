"""The core of a node: its parts, connected to each other, and the pass that does pending work.

Every entry point (frames that arrived, a position that became durable, a session that ended) changes state and then
runs the pending work: queues that changed are dispatched, and each session with something to send is flushed once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import attrs

from meshq import limits
from meshq.abc import Controllable, NodeDescription, NodeQuestions, Redirector
from meshq.broker.access._access import Access
from meshq.broker.bodies._bodies import Bodies, MemoryBodies
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._router import Router
from meshq.broker.catalog._settings_table import SettingsTable
from meshq.broker.catalog._topology_board import TopologyBoard
from meshq.broker.core._host_node import HostNode
from meshq.broker.core._internal_producer import InternalProducer
from meshq.broker.core._node_identity import NodeIdentity
from meshq.broker.core._notification_publisher import NotificationPublisher
from meshq.broker.core._pending_work import PendingWork
from meshq.broker.core._recovered_content import ReadPayloads
from meshq.broker.core._recovery import Recovery
from meshq.broker.core._running_operations import RunningOperations
from meshq.broker.core._served_session import ServedSession
from meshq.broker.events._event_bus import EventBus
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.ingress._producer_sequences import ProducerSequences
from meshq.broker.ingress._staged_places import StagedPlaces
from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.log._release_queue import Log, ReleaseQueue, Views
from meshq.broker.paging._pager import Pager, PageRequests
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._run import UNACKED
from meshq.broker.queue._timers import TimerService
from meshq.broker.records import BRANCHES, LINKS, encode_links
from meshq.broker.replay._cursors import Cursors
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.settlement._message_mover import MessageMover
from meshq.broker.settlement._message_times import MessageTimes
from meshq.broker.settlement._redelivery import Redelivery
from meshq.broker.staging._overwriting import Overwriting
from meshq.broker.staging._stage_placing import StagePlacing
from meshq.broker.staging._stages import Stages
from meshq.broker.transactions import TransactionManager
from meshq.broker.work._closing import Closing
from meshq.settings import AddressSettings, Security
from meshq.statistics import BridgeStatistics


@attrs.frozen(kw_only=True)
class CoreSettings:
    """Settings and callbacks for a core."""

    name: str
    node_id: bytes
    #: This life of the node.
    instance: bytes = bytes(16)
    memory_limit_bytes: int
    address_settings: dict[str, AddressSettings]
    #: The permissions of users; None: every client may do everything.
    security: Security | None = None
    #: ``env.entropy.token``: for session keys.
    token: Callable[[int], bytes]
    #: ``env.failpoint``: at named points, whether to take the rare way.
    failpoint: Callable[[str], bool]
    #: ``env.wall.now_ms``: when messages come that live, or wait, for a time of their own.
    now_ms: Callable[[], int]
    #: Time that has passed since some moment, ms, of a clock that nobody can set: for how long messages wait.
    elapsed_ms: Callable[[], float]
    #: Called when a timer is due earlier than all before; None: ``clock_moved`` is called often enough.
    wake_alarm: Callable[[], None] | None = None
    #: Takes the notifications of the node.
    event_bus: EventBus = attrs.field(factory=EventBus)
    #: Tells sessions of the nodes in the clusters of the node.
    topologies: TopologyBoard = attrs.field(factory=TopologyBoard)
    #: The node that runs the core, and what reads and writes pages for the core.
    host: HostNode
    page_requests: PageRequests
    #: Services of the node that an operator can pause, by name.
    controlled: dict[str, Controllable] = attrs.field(factory=dict)
    #: Return the statistics of bridges that services have made by themselves.
    links: list[Callable[[], Sequence[BridgeStatistics]]] = attrs.field(factory=list)
    #: The clusters whose nodes may be asked, by the names of their connections.
    clusters: dict[str, NodeQuestions] = attrs.field(factory=dict)
    #: The balancers of the node, by name.
    redirectors: dict[str, Redirector] = attrs.field(factory=dict)
    #: For how long an open transaction may be idle.
    transaction_timeout_s: float = limits.TRANSACTION_TIMEOUT_S


class Core:
    """Queues, routes, watermarks and sessions of one node, without any I/O of its own."""

    def __init__(self, settings: CoreSettings, log: Log | None, bodies: Bodies | None = None) -> None:
        self.settings = settings
        host, event_bus, wake_pager = settings.host, settings.event_bus, settings.page_requests.wake
        #: The work of the pass, and of the rounds after it.
        self.pending: PendingWork = PendingWork(self._dispatch, host, settings.failpoint)
        self.router: Router = Router(
            settings.address_settings, event_bus=event_bus, press=wake_pager, pages=log is not None
        )
        self.release_queue: ReleaseQueue = ReleaseQueue(log, self._release)
        self.definitions: Definitions = Definitions(
            self.router,
            self.release_queue,
            HighWatermarks(self.release_queue, settings.failpoint),
            event_bus,
            check_settings=self.check_windows,
            warn=host.warn,
        )
        self.access: Access = Access(settings.security, self.definitions, event_bus, host.warn)
        self.memory: MemoryBound = MemoryBound(
            settings.memory_limit_bytes,
            event_bus=event_bus,
            press=wake_pager,
            schedule_dispatch=self.pending.schedule_dispatch,
        )
        timers = TimerService(settings.now_ms, settings.elapsed_ms, settings.wake_alarm)
        self.ingress: Ingress = Ingress(
            self.release_queue,
            self.definitions,
            ProducerSequences(),
            self.memory,
            timers=timers,
            event_bus=event_bus,
            warn=host.warn,
        )
        #: The sessions, linked or not; an ordered set.
        self.sessions: dict[ServedSession, None] = {}
        #: Why nothing new is accepted.
        self.closing: Closing = Closing()
        alone = NodeDescription(node_id=settings.node_id, instance=settings.instance, name=settings.name)
        settings.topologies.open(alone, self.pending.run)
        self._make_settlement(bodies, timers)
        self._make_work()

    def _make_settlement(self, bodies: Bodies | None, timers: TimerService) -> None:
        """Make the parts by which messages leave their queues, or come back."""
        settings, schedule_dispatch = self.settings, self.pending.schedule_dispatch
        #: The large bodies; in memory if there is no disk.
        self.bodies: Bodies | MemoryBodies = (
            bodies if bodies is not None else MemoryBodies(settings.token, self.memory.released)
        )
        #: Decides which runs are in memory, and which on the disk only.
        self.pager: Pager = Pager(self.router, self.memory, schedule_dispatch, settings.page_requests)
        watermarks, event_bus = self.definitions.watermarks, settings.event_bus
        self.acknowledger: Acknowledger = Acknowledger(
            self.release_queue, self.router, watermarks, self.memory, bodies=self.bodies, paging=self.pager
        )
        self.mover: MessageMover = MessageMover(
            self.ingress,
            self.acknowledger,
            self.release_queue,
            self.router,
            self.pending.fair_scheduler,
            loader=self.pager,
            staged_places=StagedPlaces(self.ingress, self.definitions, settings.host.warn),
            event_bus=event_bus,
            schedule_dispatch=schedule_dispatch,
        )
        #: Sets the timers of messages.
        self.times: MessageTimes = MessageTimes(
            self.mover,
            timers,
            self.router,
            self.release_queue,
            watermarks,
            loader=self.pager,
            schedule_dispatch=schedule_dispatch,
        )
        self.redelivery: Redelivery = Redelivery(
            self.release_queue,
            self.mover,
            self.times.expiry,
            timers,
            memory=self.memory,
            schedule_dispatch=schedule_dispatch,
        )

        #: The cursors of the queues.
        self.cursors: Cursors = Cursors(
            self.definitions,
            self.acknowledger,
            self.times.expiry,
            timers,
            self.mover.pending_moves,
            event_bus=event_bus,
            schedule_dispatch=schedule_dispatch,
        )

    def _make_work(self) -> None:
        """Make the parts that do work over many steps, or send messages of the node itself."""
        settings, host, fair_scheduler = self.settings, self.settings.host, self.pending.fair_scheduler
        #: Long operations that are under way.
        self.running_operations: RunningOperations = RunningOperations(
            self.release_queue,
            fair_scheduler,
            self.mover.pending_moves,
            self.pager,
            host=host,
            closing=self.closing,
            run_pending=self.pending.run,
        )
        stages = Stages(
            self.definitions,
            self.ingress,
            StagePlacing(self.mover, self.acknowledger, self.pager, settings.failpoint),
            release_queue=self.release_queue,
            memory=self.memory,
            timers=self.timers,
            event_bus=settings.event_bus,
            overwriting=Overwriting(self.router, self.acknowledger, self.pending.schedule_dispatch),
            schedule=self.running_operations.schedule,
        )
        self.transactions: TransactionManager = TransactionManager(
            self.ingress,
            self.definitions,
            self.acknowledger,
            self.redelivery,
            fair_scheduler,
            stages=stages,
            release_queue=self.release_queue,
            memory=self.memory,
            timers=self.timers,
            event_bus=settings.event_bus,
            schedule_dispatch=self.pending.schedule_dispatch,
            timeout_s=settings.transaction_timeout_s,
            held_rows=self.mover.transfer_places.held,
            warn=host.warn,
        )
        #: Sends messages of the node's own.
        self.internal_producer: InternalProducer = InternalProducer(
            self.ingress, self.router, fair_scheduler, settings.instance, self.closing
        )
        publisher = NotificationPublisher(
            self.router,
            self.internal_producer,
            self.acknowledger,
            schedule_flush=self.pending.schedule_flush,
            warn=host.warn,
            closing=self.closing,
            advisory_support=settings.event_bus.advisory_support,
        )
        settings.event_bus.open(publisher, settings.now_ms)

    @property
    def timers(self) -> TimerService:
        """The timers of queues.  The node calls ``clock_moved`` when the next one is due."""
        return self.times.timers

    @property
    def durable(self) -> bool:
        """Whether anything survives the process."""
        return self.release_queue.durable

    @property
    def identity(self) -> NodeIdentity:
        """The name and the ids of the node, which do not change."""
        settings, log = self.settings, self.release_queue.log
        return NodeIdentity(
            name=settings.name,
            node_id=settings.node_id,
            instance=settings.instance,
            store=log.journal_id if log is not None else settings.instance,
        )

    def recovery(self, read: ReadPayloads | None = None) -> Recovery:
        """Return a recovery that fills this core, which is empty.  ``read`` gets whole what records lack."""
        return Recovery(
            self.definitions,
            self.ingress,
            self.pager,
            release_queue=self.release_queue,
            redelivery=self.redelivery,
            times=self.times,
            transactions=self.transactions,
            held_rows=self.mover.transfer_places.held,
            read=read,
        )

    def schedule_all_dispatches(self) -> None:
        """Dispatch every queue in the next pass."""
        self.pending.schedule_dispatches(self.router.queues.values())

    def durable_moved(self, position: int) -> None:
        """Release the entries up to ``position``, which the journal has synced."""
        self.release_queue.durable_moved(position)
        self.pending.run()

    def clock_moved(self) -> bool:
        """Run the timers that are due.  Return True if any of these are left."""
        if self.closing.stopping is not None:
            # The next life of the node runs these timers.
            return False
        left = self.timers.run()
        self.pending.run()
        return left

    def second_passed(self) -> None:
        """Roll back transactions that were idle for too long, and look after stages and cursors."""
        self.transactions.tick()
        self.transactions.stages.tick()
        self.cursors.tick()
        self.pending.run()

    def checkpoint(self) -> list[tuple[int, bytes]]:
        """Return records, as kinds and payloads, to be written anew at the beginning of a segment."""
        soft = self.ingress.producers.checkpoint()
        if self.ingress.links:
            soft.append((LINKS, encode_links(self.ingress.links)))
        if (branches := self.ingress.branches.checkpoint()) is not None:
            soft.append((BRANCHES, branches))
        return soft

    def _release(self, views: Views) -> None:
        for queue, view in views:
            if queue.number in self.router.by_number:
                if view.first:
                    if UNACKED in view.states:
                        queue.append_with_unacked(view)
                    else:
                        queue.append(view)
                    if view.run.options is not None:
                        self.redelivery.take_up(queue, view)
                        self.times.watch(queue, view)
                    self.pending.schedule_dispatch(queue)
                else:
                    self.times.hold_back(queue, view)
            else:
                # Deleted while the run waited for its sync.
                self.acknowledger.discard(queue, view)

    def resume(self) -> None:
        """Go on with unfinished dispatches, long operations and costly filters."""
        self.pending.next_round()
        if self.running_operations:
            self.running_operations.next_round()
        self.pending.fair_scheduler.step(ending=self.closing.stopping is not None)
        self.pending.run()

    def _dispatch(self, queue: Queue) -> None:
        if self.closing.stopping is not None or queue.number not in self.router.by_number:
            # A node that stops has written how far messages were delivered, and delivers nothing more.
            return
        if queue in self.pending.unfinished:
            # It was dispatched in this round; the next round is after the other queues.
            return
        # The timer may be late: an expired message must not be delivered.
        overdue = queue.expires and self.timers.expire()
        if queue.roster.cursor is not None:
            self.cursors.look(queue, queue.roster.cursor)
        if queue.pending.outdated:
            self.acknowledger.settle_outdated(queue)
        if queue.roster.browsers and not overdue:
            self._dispatch_to_browsers(queue)
        if queue.auto_delete and self._can_auto_delete(queue):
            if self.prepare_removal(queue):
                self.remove(queue)
            return
        if overdue:
            # It is more than a step may take.
            self.pending.dispatch_later(queue)
            return
        counts, waits = queue.counts, self.mover.pending_moves.suspended
        while counts.ready and queue not in waits and ((dispatches := queue.dispatch()) or queue.pending.unfinished):
            for consumer, dispatch in dispatches:
                consumer.sink.deliver(consumer, dispatch)
            if queue.pending.unfinished and self.settings.host.resumes:
                self.pending.dispatch_later(queue)
                break
        if counts.ready:
            movable = not queue.roster.consumers or queue.settings.redistribute_unmatched
            # A look at the queue may read paged messages, whose queue is dispatched then: that is no reason to look.
            if movable and counts.take_news():
                self.router.demand.mobility_changed(queue.name)
            # Messages that wait for a watermark are ready.
            for priority_list in queue.lists.all:
                if priority_list.wanted_watermark > priority_list.high_watermark:
                    self._wait_for_watermark(queue, priority_list)
        if queue.pending.to_fault_in:
            self.pager.fault_in_all(queue)
        if queue.pending.emptied:
            self.release_queue.when_all_is_durable(partial(queue.branch().end, queue.pending.take_emptied()))

    def open_credits(self) -> None:
        """Give producers credit anew after address settings have changed."""
        for session in self.sessions:
            session.producers.credits.open_all()

    def check_windows(self, settings: SettingsTable) -> None:
        """Check that settings fit the open producers.

        Raises:
            UsageError: a producer has more messages under way than duplicate ids would be remembered.
        """
        for session in self.sessions:
            session.producers.check_windows(settings)

    def _dispatch_to_browsers(self, queue: Queue) -> None:
        for browser in list(queue.roster.browsers):
            for dispatch in browser.look():
                browser.sink.deliver(browser.consumer, dispatch)
            if browser.ended and not any(dispatch.view.run.body for dispatch in browser.consumer.dispatches):
                # A consumer that has a large body to read stays.
                browser.sink.lose_consumer(browser.consumer, 0, "")
            elif browser.unfinished:
                # One browser in each pass, in rotation.
                queue.roster.browsers[browser] = queue.roster.browsers.pop(browser)
                self.pending.dispatch_later(queue)
                break

    def _can_auto_delete(self, queue: Queue) -> bool:
        """Whether a queue that is deleted when it is no longer used is deleted now."""
        if queue.roster.consumers or queue.roster.browsers or queue.roster.cursor is not None:
            return False
        if self.transactions.two_phase.keeps(queue) or queue in self.mover.pending_moves:
            return False
        owner = queue.spec.owner
        if owner is not None:
            return owner.ended
        empty = not (
            queue.counts.ready
            or queue.counts.unacked
            or queue.counts.delayed
            or queue.scheduled
            or self.release_queue.has_entries_for(queue)
        )
        return queue.roster.used and (empty or not queue.spec.auto_created)

    def prepare_removal(self, queue: Queue) -> bool:
        """Roll back transactions that have messages of a queue; return whether all moves from the queue are done."""
        self.transactions.leave_queue(queue)
        return queue not in self.mover.pending_moves

    def remove(self, queue: Queue) -> int:
        """Delete a queue after ``prepare_removal``; return how many messages were removed with it.

        Raises:
            JournalBrokenError: the disk has failed.
        """
        removed = self.acknowledger.purge(queue)
        self.definitions.delete_queue(queue)
        if queue.spec.owner is not None:
            queue.spec.owner.queue_deleted(queue.number)
        return removed

    def _wait_for_watermark(self, queue: Queue, priority_list: PriorityList) -> None:
        before = priority_list.high_watermark
        self.definitions.watermarks.cover_delivered(queue, priority_list, priority_list.wanted_watermark)
        if priority_list.high_watermark > before:
            self.pending.schedule_dispatch(queue)
            return
        self.release_queue.when_all_is_durable(partial(self.pending.schedule_dispatch, queue))
