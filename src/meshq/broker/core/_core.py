"""The core of a node: its parts, connected to each other, and the pass that does pending work.

Every entry point (frames that arrived, a position that became durable, a session that ended) changes state and then
calls ``run_pending``: queues that changed are dispatched, and each session with something to send is flushed once.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import attrs

from meshq import limits
from meshq.abc import Controllable
from meshq.address import Target
from meshq.broker.access._access import Access
from meshq.broker.bodies._bodies import Bodies, MemoryBodies
from meshq.broker.bodies._body import Body
from meshq.broker.catalog._definitions import Definitions
from meshq.broker.catalog._known_peers import KnownPeers
from meshq.broker.catalog._router import Router
from meshq.broker.catalog._settings_table import SettingsTable
from meshq.broker.core._internal_producer import InternalProducer
from meshq.broker.events._event_bus import EventBus, NotificationPublisher
from meshq.broker.ingress._ingress import Ingress
from meshq.broker.ingress._memory import MemoryBound
from meshq.broker.ingress._producers import ProducerSequences
from meshq.broker.log._high_watermarks import HighWatermarks
from meshq.broker.log._release_queue import Log, ReleaseQueue, Views
from meshq.broker.paging._pager import Pager
from meshq.broker.queue._consumer_state import ConsumerState
from meshq.broker.queue._priority_list import PriorityList
from meshq.broker.queue._queue_machine import Queue
from meshq.broker.queue._timers import TimerService
from meshq.broker.queue._unacked_memory import UNACKED_SHARE, UnackedMemory
from meshq.broker.records import LINKS, encode_links
from meshq.broker.session._peering import DemandUpdates
from meshq.broker.settlement._acknowledger import Acknowledger
from meshq.broker.settlement._delayed_delivery import DelayedDelivery
from meshq.broker.settlement._expiry import Expiry
from meshq.broker.settlement._message_mover import MessageMover
from meshq.broker.settlement._redelivery import Redelivery
from meshq.broker.transactions import TransactionManager
from meshq.broker.work._fair_scheduler import FairScheduler
from meshq.broker.work._long_operations import (
    DiskSpaceWait,
    FairTurnWait,
    FaultInWait,
    LongOperation,
    PendingMovesWait,
)
from meshq.errors import MeshqError
from meshq.notifications import AddressFull, MemoryFull, MessageDeadLettered, MessageExpired, SecurityRefused
from meshq.settings import AddressSettings, Security
from meshq.wire import LinkOpening

if TYPE_CHECKING:
    from meshq.broker.session._session import ServerSession


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
    #: Takes the notifications of the node.
    event_bus: EventBus = attrs.field(factory=EventBus)
    #: Services of the node that an operator can pause, by name.
    controlled: dict[str, Controllable] = attrs.field(factory=dict)
    #: For how long an open transaction may be idle.
    transaction_timeout_s: float = limits.TRANSACTION_TIMEOUT_S


class Core:
    """Queues, routes, watermarks and sessions of one node, without any I/O of its own."""

    def __init__(self, settings: CoreSettings, log: Log | None, bodies: Bodies | None = None) -> None:
        self.settings = settings
        self.access: Access = Access(settings.security)
        self.event_bus: EventBus = settings.event_bus
        #: Costly work that waits for its turn.
        self.fair_scheduler: FairScheduler = FairScheduler(self._wake, settings.failpoint)
        self.router: Router = Router(settings.address_settings, pages=log is not None)
        self.release_queue: ReleaseQueue = ReleaseQueue(log, self._release)
        #: The memory that unacked messages keep.
        self.unacked_memory: UnackedMemory = UnackedMemory(
            settings.memory_limit_bytes // UNACKED_SHARE, self.schedule_dispatch
        )
        self.watermarks: HighWatermarks = HighWatermarks(self.release_queue, settings.failpoint)
        self.definitions: Definitions = Definitions(self.router, self.release_queue, self.watermarks, self.event_bus)
        self.definitions.check_settings = self.check_windows
        self.producers: ProducerSequences = ProducerSequences()
        self.memory: MemoryBound = MemoryBound(settings.memory_limit_bytes)
        #: The timers of queues.  The node calls ``clock_moved`` when the next one is due.
        self.timers: TimerService = TimerService(settings.now_ms, settings.elapsed_ms)
        #: The queues of other nodes, as far as known.
        self.peers: KnownPeers = KnownPeers(self.release_queue, self._warn)
        parts = self.release_queue, self.definitions, self.watermarks, self.producers, self.memory
        self.ingress: Ingress = Ingress(*parts, timers=self.timers, peers=self.peers, warn=self._warn)
        self.delayed_delivery: DelayedDelivery = DelayedDelivery(self.release_queue, self.watermarks, self.timers)
        #: Tells other nodes about the queues here and their consumers.
        self.demand: DemandUpdates = DemandUpdates()
        self.router.on_queue = self.demand.changed
        #: Called when a node came that has our node id.
        self.on_stranger: Callable[[LinkOpening, MeshqError], None] = _ignore
        self.acknowledger: Acknowledger = Acknowledger(self.release_queue, self.router, self.watermarks, self.memory)
        #: The large bodies; in memory if there is no disk.
        self.bodies: Bodies | MemoryBodies = (
            bodies if bodies is not None else MemoryBodies(settings.token, self.memory.released)
        )
        self.mover: MessageMover = MessageMover(
            self.ingress, self.acknowledger, self.release_queue, self.router, self.fair_scheduler
        )
        #: Sends messages of the node's own.
        self.internal_producer: InternalProducer = InternalProducer(self)
        self.publisher: NotificationPublisher = NotificationPublisher(self)
        self.expiry: Expiry = Expiry(self.mover, self.timers)
        self.redelivery: Redelivery = Redelivery(self.release_queue, self.mover, self.expiry, self.timers)
        #: Returns the statistics of the whole node; set by the node.
        self.describe: Callable[[], dict[str, Any]] = dict
        #: Called with warnings for an operator: the name of the event, and a sentence.
        self.on_warning: Callable[[str, str], None] = _ignore
        #: Decides which runs are in memory, and which on the disk only.
        self.pager: Pager = Pager(self.router, self.memory, self.schedule_dispatch)
        self.transactions: TransactionManager = TransactionManager(self, settings.transaction_timeout_s)
        #: Sessions by number, linked or not.
        self.sessions: dict[int, ServerSession] = {}
        #: Why nothing new is accepted: None while the node is active.
        self.closing: str | None = None
        self._clear_work()
        self._connect_parts()
        self._connect_events()

    def _clear_work(self) -> None:
        """Begin with no pending work."""
        #: Called when work is left for another step: the node calls ``resume`` soon, after other tasks have run.  None:
        #: all work is done at once.
        self.on_unfinished: Callable[[], None] | None = None
        self._unfinished: dict[Queue, None] = {}
        # Operations of many steps that operators have asked for.
        self._operations: list[LongOperation] = []
        # Queues to be dispatched, and sessions to be flushed; ordered sets.
        self._dirty: dict[Queue, None] = {}
        self._to_flush: dict[ServerSession | NotificationPublisher, None] = {}
        # Sessions with a delivery are flushed first: what another process does with its confirm delays a waiting
        # consumer; a pipelined producer is delayed by nothing.
        self._to_deliver: dict[ServerSession | NotificationPublisher, None] = {}
        self._running = False

    def _warn(self, event: str, text: str) -> None:
        self.on_warning(event, text)

    def _connect_parts(self) -> None:
        """Give each part the callbacks that need parts made after it."""
        self.acknowledger.on_unneeded = self._release_body
        self.mover.on_taken = self.redelivery.on_ready = self.expiry.on_ready = self.schedule_dispatch
        self.redelivery.on_back = self.memory.look_again
        self.acknowledger.on_spill_gone = self.pager.ended
        self.expiry.fault_in = self.mover.fault_in = self.pager.fault_in
        self.acknowledger.resident = self.pager.resident
        self.expiry.settings_of = self.router.settings

    def _connect_events(self) -> None:
        """Connect the parts that notice events with the event bus."""
        self.event_bus.now_ms = self.settings.now_ms
        self.access.on_refused = self._emit_refused
        self.router.on_full = self._emit_address_full
        self.memory.on_full = self._emit_memory_full
        self.mover.on_moved = self._emit_moved
        self.event_bus.open(self.publisher)

    @property
    def durable(self) -> bool:
        """Whether anything survives the process."""
        return self.release_queue.log is not None

    @property
    def store(self) -> bytes:
        """The id of the journal; without a journal the id of this life of the node."""
        return self.release_queue.log.journal_id if self.release_queue.log is not None else self.settings.instance

    def schedule_dispatch(self, queue: Queue) -> None:
        """Dispatch a queue in the next pass."""
        self._dirty[queue] = None

    def schedule_all_dispatches(self) -> None:
        """Dispatch every queue in the next pass."""
        self._dirty.update(dict.fromkeys(self.router.queues.values()))

    def schedule_flush(self, session: ServerSession | NotificationPublisher) -> None:
        """Flush a session, or the publisher of notifications, at the end of the pass."""
        self._to_flush[session] = None

    def schedule_delivery(self, session: ServerSession) -> None:
        """Flush a session that has a delivery, before the others."""
        self._to_deliver[session] = None
        self._to_flush.pop(session, None)

    def durable_moved(self, position: int) -> None:
        """Release the entries up to ``position``, which the journal has synced."""
        self.release_queue.durable_moved(position)
        self.run_pending()

    def clock_moved(self) -> bool:
        """Run the timers that are due.  Return True if any of these are left."""
        if self.closing is not None:
            # The next life of the node runs these timers.
            return False
        left = self.timers.run()
        self.run_pending()
        return left

    def checkpoint(self) -> list[tuple[int, bytes]]:
        """Return records, as kinds and payloads, to be written anew at the beginning of a segment."""
        soft = self.producers.checkpoint()
        if self.ingress.links:
            soft.append((LINKS, encode_links(self.ingress.links)))
        return soft

    def _release(self, views: Views) -> None:
        for queue, view in views:
            if queue.number in self.router.by_number:
                if view.first:
                    queue.append(view)
                    if view.run.options is not None:
                        self.expiry.watch(queue, view)
                    self._dirty[queue] = None
                else:
                    self.delayed_delivery.schedule(queue, view)
            else:
                # Deleted while the run waited for its sync.
                self.acknowledger.discard(queue, view)

    def _release_body(self, body: Body) -> None:
        """Count a run less for a large body; without runs the body is removed, once that is durable."""
        body.refs -= 1
        if not body.refs:
            self.release_queue.when_all_is_durable(partial(self._remove_body, body))

    def _remove_body(self, body: Body) -> None:
        # It may have been moved in the meantime.
        if not body.refs:
            self.bodies.remove(body)

    def run_pending(self) -> None:
        """Dispatch queues and flush sessions until nothing is pending; a nested call does nothing.

        In-process links hand frames over within this call, so more may become pending during the call.
        """
        if self._running:
            return
        self._running = True
        try:
            while self._dirty or self._to_deliver or self._to_flush:
                while self._dirty:
                    queue = next(iter(self._dirty))
                    del self._dirty[queue]
                    self._dispatch(queue)
                while (pending := self._to_deliver or self._to_flush) and not self._dirty:
                    session = next(iter(pending))
                    del pending[session]
                    session.flush()
        finally:
            self._running = False

    def schedule(self, operation: LongOperation) -> None:
        """Begin an operation of many steps; the first step is done now."""
        self._step(operation)
        self._resume_operations()

    def resume(self) -> None:
        """Go on with unfinished dispatches, long operations and costly filters."""
        if self._unfinished:
            # One at a time, the one that has waited longest: each takes as much time as a step may.
            queue = next(iter(self._unfinished))
            del self._unfinished[queue]
            self._dirty[queue] = None
            if self._unfinished and self.on_unfinished is not None:
                self.on_unfinished()
        if self._operations:
            self._step_operations()
        self.fair_scheduler.step(ending=self.closing is not None)
        self.run_pending()

    def _wake(self) -> bool:
        if self.on_unfinished is not None:
            self.on_unfinished()
        return self.on_unfinished is not None

    def _resume_operation(self, operation: LongOperation) -> None:
        self._step(operation)
        self._resume_operations()
        self.run_pending()

    def _resume_operations(self) -> None:
        """Have long operations resumed soon; at once if ``resume`` would not be called."""
        if self._operations and not self._wake():
            self._step_operations()

    def _step_operations(self) -> None:
        """Do a step of each operation; all steps if ``resume`` would not be called."""
        while self._operations:
            operations, self._operations = self._operations, []
            for operation in operations:
                self._step(operation)
            if self._operations and self._wake():
                break

    def _step(self, operation: LongOperation) -> None:
        ended = operation.step(self.closing)
        while isinstance(ended, (DiskSpaceWait, FairTurnWait, PendingMovesWait)):
            if isinstance(ended, PendingMovesWait):
                if not self.mover.pending_moves.when_done(ended.queue, partial(self._resume_operation, operation)):
                    return
            elif isinstance(ended, FairTurnWait):
                if self.on_unfinished is not None:
                    self.fair_scheduler.begin(
                        ended.owner, ended.key, ended.costly, partial(self._resume_operation, operation), ended.alive
                    )
                    return
                for _ in ended.costly.steps:
                    pass
            elif not self.release_queue.request_space(ended.size_bytes, partial(self._resume_operation, operation)):
                return
            ended = operation.step(self.closing)
        if isinstance(ended, FaultInWait):
            self.pager.fault_in(ended.queue, ended.view, partial(self.schedule, operation))
        elif not ended:
            self._operations.append(operation)

    def _dispatch(self, queue: Queue) -> None:
        if self.closing is not None or queue.number not in self.router.by_number:
            # A node that stops has written how far messages were delivered, and delivers nothing more.
            return
        if queue in self._unfinished:
            # It was dispatched in this round; the next round is after the other queues.
            return
        # The timer may be late: an expired message must not be delivered.
        overdue = queue.expires and self.timers.expire()
        if queue.outdated:
            self.acknowledger.settle_outdated(queue)
        if queue.browsers and not overdue:
            self._dispatch_to_browsers(queue)
        if queue.auto_delete and not queue.consumers and not queue.browsers and self._can_auto_delete(queue):
            if self.prepare_removal(queue):
                self.remove(queue)
            return
        if overdue:
            # It is more than a step may take.
            self._dispatch_later(queue)
            return
        suspended = queue in self.mover.pending_moves.suspended
        while queue.ready and not suspended and ((dispatches := queue.dispatch()) or queue.unfinished):
            for consumer, dispatch in dispatches:
                session: ServerSession = consumer.owner  # type: ignore[assignment]
                session.deliver(consumer, dispatch)
            if queue.unfinished and self.on_unfinished is not None:
                self._unfinished[queue] = None
                self.on_unfinished()
                break
        if queue.ready:
            # Messages that wait for a watermark are ready.
            for priority_list in queue.priority_lists:
                if priority_list.wanted_watermark > priority_list.high_watermark:
                    self._wait_for_watermark(queue, priority_list)
        if queue.to_fault_in:
            self.pager.fault_in_all(queue)

    def open_credits(self) -> None:
        """Give producers credit anew after address settings have changed."""
        for session in self.sessions.values():
            session.producers.credits.open_all()

    def check_windows(self, settings: SettingsTable) -> None:
        """Check that settings fit the open producers.

        Raises:
            UsageError: a producer has more messages under way than duplicate ids would be remembered.
        """
        for session in self.sessions.values():
            session.producers.check_windows(settings)

    def begin_browse(self, consumer: ConsumerState | None) -> None:
        """Begin a browse, unless its consumer is gone."""
        if consumer is not None and consumer.browser is not None:
            consumer.browser.begin()
            self.schedule_dispatch(consumer.queue)

    def _dispatch_to_browsers(self, queue: Queue) -> None:
        for browser in list(queue.browsers):
            session: ServerSession = browser.consumer.owner  # type: ignore[assignment]
            for dispatch in browser.look():
                session.deliver(browser.consumer, dispatch)
            if browser.ended and not any(dispatch.view.run.body for dispatch in browser.consumer.dispatches):
                # A consumer that has a large body to read stays.
                session.lose_consumer(browser.consumer, 0, "")
            elif browser.unfinished:
                # One browser in each pass, in rotation.
                queue.browsers[browser] = queue.browsers.pop(browser)
                self._dispatch_later(queue)
                break

    def _dispatch_later(self, queue: Queue) -> None:
        if self.on_unfinished is None:
            self._dirty[queue] = None
        else:
            self._unfinished[queue] = None
            self.on_unfinished()

    def _emit_refused(self, session: ServerSession, permission: str, address: str) -> None:
        user = session.owner[1]
        self.on_warning("forbidden", f"{user!r} lacks the permission {permission!r} at {address!r}")
        self.event_bus.emit(SecurityRefused, user=user, permission=permission, address=address, peer=session.peer)

    def _emit_address_full(self, address: str, policy: str) -> None:
        self.event_bus.emit(AddressFull, address=address, policy=policy)

    def _emit_memory_full(self, policy: str) -> None:
        memory = self.memory
        self.event_bus.emit(MemoryFull, policy=policy, used=memory.used_bytes, limit=memory.limit_bytes)

    def _emit_moved(self, queue: Queue, target: Target | None, reason: str, messages: int) -> None:
        about: dict[str, Any] = {"address": queue.address, "queue": queue.name, "messages": messages}
        about["target"] = target.address if target is not None else ""
        if reason == "expired":
            self.event_bus.emit(MessageExpired, **about)
        elif reason in ("rejected", "attempts"):
            self.event_bus.emit(MessageDeadLettered, reason=reason, **about)

    def _can_auto_delete(self, queue: Queue) -> bool:
        """Whether a queue without consumers is deleted now."""
        if self.transactions.two_phase.keeps(queue) or queue in self.mover.pending_moves:
            return False
        owner = queue.spec.owner
        if owner is not None:
            return owner.ended
        empty = not (
            queue.ready
            or queue.unacked
            or queue.delayed
            or queue.scheduled
            or self.release_queue.has_entries_for(queue)
        )
        return queue.used and (empty or not queue.spec.auto_created)

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
            queue.spec.owner.owned.pop(queue, None)
        return removed

    def _wait_for_watermark(self, queue: Queue, priority_list: PriorityList) -> None:
        before = priority_list.high_watermark
        self.watermarks.cover_delivered(queue, priority_list, priority_list.wanted_watermark)
        if priority_list.high_watermark > before:
            self._dirty[queue] = None
            return
        self.release_queue.when_all_is_durable(lambda: self.schedule_dispatch(queue))


def _ignore(*_: object) -> None:
    """The default of a callback: do nothing."""
