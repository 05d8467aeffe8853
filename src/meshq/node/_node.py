"""A node's parts in the order in which they start and stop: journal, core, sessions, acceptors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations
from typing import Any

import trio

from meshq import abc
from meshq.broker import (
    ConnectionCounts,
    Core,
    CoreSettings,
    Credentials,
    EventBus,
    FileBodies,
    LinkServer,
    Listeners,
    ServerConnection,
    SessionBounds,
    SessionRegistry,
    answer_call,
    at_once,
    connection_bounds,
)
from meshq.client import MessageRoute
from meshq.errors import DamagedError, MeshqError
from meshq.ids import IDENTITY_BYTES, NodeId
from meshq.logs import Warnings, logger
from meshq.node._core_host import CoreHost, elapsed_ms
from meshq.node._credentials import credentials_of
from meshq.node._inproc import InprocAcceptor
from meshq.node._loop_lag import LoopLag
from meshq.node._node_statistics import node_statistics
from meshq.node._paging import PagingTask
from meshq.node._queue_declarer import QueueDeclarer
from meshq.node._scale_down import HandoverService
from meshq.node._served_services import ServedServices
from meshq.node._settings import BrokerSettings
from meshq.node._stranded_messages import LocalRedirectors, local_broker
from meshq.node._transfer import LocalTransfer
from meshq.node.hosting._requesters import requesters
from meshq.node.terms._guarded_links import GuardedStream
from meshq.node.terms._node_term import NodeTerm
from meshq.notifications import StoreDamaged
from meshq.settings import check_user
from meshq.statistics import BrokerStatistics
from meshq.store import CheckpointRecord, Journal, JournalOwner
from meshq.wire import BY_NAME

_log = logger("node")
#: How often open transactions grow older; what ``Core.second_passed`` counts.
TRANSACTIONS_TICK_S = 1.0
#: The share of the host's memory that a broker takes unless told otherwise.
MEMORY_SHARE = 4
#: Seconds after which the wall clock is looked at again, whatever it said before.
ALARM_S_MAX = 60.0
#: A start that waits for the disk for longer says so.
PATIENCE_S = 2.0
#: A step of a filter that takes longer than that is followed by a pause, so many times as long.
LONG_STEP_S = 0.05
LONG_STEP_PAUSE = 3


class Node:
    """A node that is running.  ``open`` makes it, ``start`` lets it serve, ``stop`` and ``close`` end it."""

    def __init__(
        self,
        settings: BrokerSettings,
        env: abc.Env,
        journal: Journal | None,
        node_id: NodeId,
        credentials: Credentials | None,
        *,
        event_bus: EventBus,
        bodies: FileBodies | None = None,
        term: NodeTerm | None = None,
    ) -> None:
        self._settings = settings
        self._term = term or NodeTerm()
        self._env = env
        self._journal = journal
        memory_limit = settings.memory_limit
        if memory_limit is None:
            memory_limit = env.memory_bytes // MEMORY_SHARE
        self._warnings = Warnings("node", trio.current_time)
        self._host = CoreHost(self._warnings, self._described, self._term.office)
        self.core = Core(
            CoreSettings(
                name=settings.name,
                node_id=bytes(node_id),
                instance=env.entropy.token(IDENTITY_BYTES),
                memory_limit_bytes=memory_limit,
                address_settings=settings.address_settings,
                security=settings.security,
                token=env.entropy.token,
                failpoint=env.failpoint,
                now_ms=env.wall.now_ms,
                elapsed_ms=elapsed_ms,
                wake_alarm=lambda: self._sooner.set(),
                event_bus=event_bus,
                host=self._host,
                page_requests=self._host.page_requests,
                transaction_timeout_s=settings.transaction_timeout,
            ),
            None if journal is None else journal.log,
            bodies,
        )
        self.bodies = bodies
        bounds = connection_bounds(env.descriptors, settings.max_sessions_per_user)
        admission = SessionBounds(per_user=bounds.sessions_per_user)
        self._detached = trio.Event()
        self.sessions = SessionRegistry(
            self.core,
            trio.current_time,
            settings.max_session_ttl,
            detached=self._wake_reaper,
            admission=admission,
        )
        self.counts = ConnectionCounts()
        links = LinkServer(self.core, self.sessions, self.counts, credentials, board=self._term.board)
        self.inproc = InprocAcceptor(settings.name, links, self._term.guard)
        self.listeners = Listeners(links, env.network, tls=env.tls, bounds=bounds)
        self.handover = HandoverService(settings)
        self._declarer = QueueDeclarer(self.core, journal, settings.queues, self._warnings.say)
        self._lag = LoopLag()
        #: The services, those of the settings and those that are added.
        self.served: ServedServices = ServedServices(self.core.settings.links)
        # Something is due earlier than what the alarm waits for.
        self._sooner = trio.Event()
        self._failure: MeshqError | None = None
        self._failed = trio.Event()

    @property
    def node_id(self) -> NodeId:
        """The identity of the node."""
        return NodeId(self.core.settings.node_id)

    @classmethod
    async def open(
        cls,
        settings: BrokerSettings,
        env: abc.Env,
        journal: Journal | None,
        event_bus: EventBus | None = None,
        *,
        term: NodeTerm | None = None,
    ) -> Node:
        """Open the store, if any, and recover its contents.

        ``journal``: the store, not open yet.  ``event_bus``: takes the events of the node.  ``term``: its term.

        Checkpoint: always.
        Cancellation: the store is closed again.
        Raises:
            BusyError: another broker has the store open.
            DamagedError: it can't be read.
            SettingsError: it is of a newer version, or of another node, or encrypted with a key that is not here; or
                everybody may write to its directory.
            JournalBrokenError: the disk failed.
        """
        credentials = await credentials_of(settings, env)
        event_bus = event_bus or EventBus()
        if journal is None:
            node_id = NodeId(settings.node_id or env.entropy.token(IDENTITY_BYTES))
            return cls(settings, env, None, node_id, credentials, event_bus=event_bus, term=term)
        await journal.open()
        try:
            bounds = connection_bounds(env.descriptors)
            bodies = FileBodies(env.entropy.token, journal.large_files(), env.threads, uploads_max=bounds.uploads)
            about: dict[str, Any] = {"event_bus": event_bus, "bodies": bodies, "term": term}
            node = cls(settings, env, journal, NodeId(journal.node_id), credentials, **about)
            recovery = node.core.recovery(journal.read_recovered)
            for _ in recovery.steps(journal.recovered(deleted=True, prefixes=True)):
                await trio.lowlevel.checkpoint()
            await bodies.open(recovery.bodies)
        except BaseException:
            with trio.CancelScope(shield=True):
                await journal.aclose()
            raise
        _log.info("%d messages were taken up", recovery.messages, extra={"event": "recovered"})
        return node

    async def start(self, nursery: trio.Nursery) -> None:
        """Begin to serve, with tasks in ``nursery``.

        Checkpoint: always.
        Cancellation: the nursery's owner closes the node.
        Raises:
            ConnectionBrokenError: an acceptor can't be bound.
        """
        core, journal = self.core, self._journal
        if journal is not None:
            journal.attach(
                JournalOwner(
                    durable_moved=core.durable_moved,
                    failed=self._journal_failed,
                    full_changed=self._room,
                    damaged=self._damaged,
                    checkpoint=self._checkpoint,
                )
            )
            if self.bodies is not None:
                await nursery.start(self.bodies.run, core.pending.run, self._journal_failed)
            await nursery.start(journal.run)
            nursery.start_soon(self._raise_failure)
        await nursery.start(self._declarer.run)
        if journal is not None:
            await self._written(journal)
        self._host.resumes = True
        nursery.start_soon(self._reap)
        if journal is not None:
            await nursery.start(self._page)
        nursery.start_soon(self._sift)
        # The first look at the timers needs no call.
        self._sooner = trio.Event()
        nursery.start_soon(self._alarm)
        nursery.start_soon(self._lag.watch)
        nursery.start_soon(self._age)
        control, services = self._control(), self.served.all
        services += (self.handover, *self._settings.services, *requesters(self._settings, self._term.root))
        self._warn_of_conflicts()
        for service in services:
            service.announce(control)
            if isinstance(service, abc.Controllable):
                core.settings.controlled[service.name] = service
            core.settings.links.append(service.bridges)
        broker = local_broker(
            core,
            control,
            self.inproc,
            transfer=LocalTransfer(core, self.sessions, self._connections),
            redirectors=LocalRedirectors(core, self.sessions),
            services=services,
        )
        for service in services:
            service.take_up(broker)
        await self.listeners.listen(self._settings.acceptors, nursery)
        await self.served.start(nursery, broker)

    def _warn_of_conflicts(self) -> None:
        for first, second in combinations(self._settings.services, 2):
            conflict = first.conflict(second)
            if conflict is not None:
                event, text = conflict
                self._warnings.say(event, text, f"{first.name} {second.name}")

    def _control(self) -> abc.NodeControl:
        settings, core = self._settings, self.core.settings
        return abc.NodeControl(
            name=settings.name,
            node_id=core.node_id,
            instance=core.instance,
            store=self.core.identity.store,
            connectors=settings.connectors,
            env=self._env,
            acceptors=self._dialed,
            data_dir=settings.data_dir,
            wanted_id=settings.node_id,
            board=self._term.board,
        )

    def _dialed(self) -> tuple[str, ...]:
        return self._settings.dialed(self.listeners.urls)

    def _described(self) -> dict[str, Any]:
        return self.statistics("active" if self.core.closing.stopping is None else "stopping").values()

    def _checkpoint(self) -> list[CheckpointRecord]:
        return [CheckpointRecord(kind, payload) for kind, payload in self.core.checkpoint()]

    async def _written(self, journal: Journal) -> None:
        """Wait until the records of the start are durable, with a warning if the disk is full."""
        with trio.move_on_after(PATIENCE_S) as scope:
            await journal.wait_durable(journal.last)
        if not scope.cancelled_caught:
            return
        text = f"the start waits for the disk, which has no room for {journal.last - journal.durable} records"
        self._warnings.say("start_waits", text)
        await journal.wait_durable(journal.last)

    def _room(self) -> None:
        """Handle a disk that is full, or has room again: senders wait or go on."""
        journal = self._journal
        full = journal is not None and journal.full
        self.core.memory.block(full)
        if full:
            text = f"the disk of {self._settings.data_dir} is full: consumers are served, senders wait or are refused"
            self._warnings.say("disk_full", text)
        else:
            _log.info("the disk has room for messages again", extra={"event": "disk_has_room"})
        self._declarer.room()
        self.core.pending.run()

    def _damaged(self, error: DamagedError) -> None:
        """Report damage in a part of the store that was not read before."""
        about = {"file": error.file, "offset": error.offset, "expected": error.expected, "found": error.found}
        self.core.settings.event_bus.emit(StoreDamaged, **about)
        self.core.pending.run()

    def _journal_failed(self, error: MeshqError) -> None:
        """End the node, because the journal has failed and nothing can be confirmed any more."""
        self._failure = error
        self.core.closing.begin(str(error))
        self._failed.set()

    async def _raise_failure(self) -> None:
        await self._failed.wait()
        self._close_links("journal_broken", str(self._failure))
        if self._failure is not None:
            raise self._failure

    def _wake_reaper(self) -> None:
        self._detached.set()

    async def _reap(self) -> None:
        """End the sessions whose clients don't come back."""
        while True:
            deadline = self.sessions.expire()
            if deadline is None:
                await self._detached.wait()
            else:
                with trio.move_on_at(deadline):
                    await self._detached.wait()
            self._detached = trio.Event()

    async def _sift(self) -> None:
        """Continue unfinished filter scans, after all other tasks had a turn."""
        while True:
            await self._host.unfinished()
            began = trio.current_time()
            self.core.resume()
            lasted = trio.current_time() - began
            if lasted > LONG_STEP_S:
                # The others need several turns for what they do: they have more time than who keeps them waiting.
                await trio.sleep(LONG_STEP_PAUSE * lasted)

    async def _page(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Run the paging task."""
        if self._journal is not None:
            requests = self._host.page_requests
            paging = PagingTask(self.core, self._journal, self._env, requests, failed=self._journal_failed)
            await paging.run(task_status=task_status)

    async def _age(self) -> None:
        """Tell the core of each second that passes while a transaction or a stage is there, or a cursor may be given
        up."""
        transactions = self.core.transactions
        while True:
            await trio.sleep(TRANSACTIONS_TICK_S)
            if len(transactions) or transactions.stages.watched or self.core.cursors.watched:
                self.core.second_passed()

    async def _alarm(self) -> None:
        """Run the timers that are due; the wall clock may be set meanwhile."""
        timers = self.core.timers
        # While the node stops, nothing becomes due.
        while self.core.closing.stopping is None:
            wait_ms = timers.wait_ms
            # Rounded up: a wait below the resolution of the clock would never end where only waiting moves it.
            wait_s = ALARM_S_MAX if wait_ms is None else math.ceil(wait_ms) / 1000
            with trio.move_on_after(min(max(wait_s, 0), ALARM_S_MAX)):
                await self._sooner.wait()
            self._sooner = trio.Event()
            while self.core.clock_moved():
                await trio.lowlevel.checkpoint()

    async def stop(self, *, step_back: str = "") -> None:
        """Stop within the stop timeout: accept nothing new, finish committed work, tell the clients.

        ``step_back``: why the node is not the active one any more; empty: the broker is stopped.

        Checkpoint: always.
        Cancellation: what was confirmed is safe.
        """
        refusal = self._begin_stop(step_back)
        with trio.move_on_after(self._settings.stop_timeout):
            await self._finish()
            await self._tell(refusal)

    def take_leave(self, step_back: str = "") -> None:
        """Accept nothing new, and say good-bye to the clients, without waiting until the clients have heard it.

        For a node that stops before it is active; ``step_back`` as for ``stop``.
        """
        self._close_links(self._begin_stop(step_back), str(self.core.closing.why))

    def _begin_stop(self, step_back: str) -> str:
        """Accept nothing new; return the refusal that the clients are told."""
        self.listeners.close()
        self.served.cancel()
        doing = f"steps back ({step_back})" if step_back else "is stopping"
        self.core.closing.begin(f"the node {self._settings.name!r} {doing}")
        return "not_active" if step_back else "stopping"

    def abandon(self, reason: str) -> None:
        """Serve no client from this moment: another node may be active already.  ``close`` follows.

        No confirm and no message leaves the node any more, although records that are placed are still written.
        """
        why = f"the node {self._settings.name!r} steps back ({reason})"
        self.core.closing.begin(why)
        if self._journal is not None:
            self._journal.detach()
        self.listeners.close()
        self.inproc.close("not_active", why, goodbye=False)

    async def _finish(self) -> None:
        journal, core = self._journal, self.core
        if journal is None:
            # Nothing is written meanwhile: services would warn that their own node stops.
            await self.served.wait_ended()
            return
        await journal.wait_durable(journal.last)
        for session in list(self.sessions.by_number.values()):
            if session.stream.link is None:
                self.sessions.end(session)
        for queue in core.router.queues.values():
            core.definitions.watermarks.settle(queue, queue.delivered_up_to)
        await journal.wait_durable(journal.last)

    async def _tell(self, refusal: str) -> None:
        connections = self.listeners.connections
        self._close_links(refusal, str(self.core.closing.why))
        async with trio.open_nursery() as nursery:
            for connection in connections:
                nursery.start_soon(connection.flushed)

    def _connections(self) -> list[ServerConnection]:
        return [*self.inproc.connections, *(connection.server for connection in self.listeners.connections)]

    def _close_links(self, refusal: str, text: str) -> None:
        self.inproc.close(refusal, text)
        for connection in self.listeners.connections:
            connection.server.say_close(BY_NAME[refusal].number, text)

    async def close(self) -> None:
        """Give everything back; the store's lock last.

        Checkpoint: always.
        Cancellation: not here: the caller shields it.
        """
        self.listeners.close()
        # A clean stop has said good-bye before.
        self.inproc.close("stopping", "the node has stopped", goodbye=False)
        if self._journal is not None:
            guard = self._term.guard
            # Nothing is confirmed any more where another node may act: nobody waits for its sink.
            waits = guard is None or guard.may_act()
            await self._journal.aclose(sink_timeout=self._settings.stop_timeout if waits else 0.0)

    def take(self, stream: abc.Stream) -> None:
        """Serve a client of this process that runs in another loop."""
        guard = self._term.guard
        self.listeners.take(stream if guard is None else GuardedStream(stream, guard))

    def explain_route(self, address: str, properties: Mapping[str, Any] | None, user: str | None) -> MessageRoute:
        """Explain where a message would go."""
        if user is not None:
            check_user("user", user)
        steps: list[dict[str, Any]] = []
        more = True
        about = {"address": address, "user": user, "properties": None if properties is None else dict(properties)}
        while more:
            values: Any = at_once(answer_call(self.core, "explain_route", {**about, "after": len(steps)}))
            steps += values["steps"]
            more = values["more"]
        return MessageRoute.of(values, steps)

    def statistics(self, state: str) -> BrokerStatistics:
        """The node at this moment."""
        return node_statistics(
            self.core,
            self.sessions,
            self.counts,
            state=state,
            connections=len(self.listeners.connections) + len(self.inproc.connections),
            loop_lag=self._lag.last,
            journal=self._journal.statistics() if self._journal is not None else None,
        )
