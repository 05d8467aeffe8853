"""The broker: one node put together.  What starts when, and what stops when; nothing is decided here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

import attrs
import trio

from meshq import abc, limits
from meshq.broker import EventBus
from meshq.client import Client, ClientOptions, EventSink, EventStream, MessageRoute
from meshq.concurrency import BackgroundBlock
from meshq.directories import StoreDirectories
from meshq.env import default_env
from meshq.errors import ClosedError, NotActiveError, UsageError
from meshq.ids import NodeId
from meshq.lifecycle import LifeCycle
from meshq.loops import check_in_trio, check_on_clock
from meshq.message import PropertyValue
from meshq.node._broker_in_thread import BrokerInThread
from meshq.node._broker_life import BROKER_TRANSITIONS, log_state
from meshq.node._credentials import credentials_of
from meshq.node._kept_listeners import KeptListeners
from meshq.node._node import Node
from meshq.node._policy_block import PolicyBlock
from meshq.node._scale_down import LeavingBroker, hand_over, order_of
from meshq.node._settings import BrokerSettings
from meshq.node._store import journal_of
from meshq.node._turn import StartReport, Turn, checked_activation, checked_block, checked_term, only_cancelled
from meshq.node._waiting_node import WaitingNode, waiting_control
from meshq.notifications import BrokerStateChanged, Notification
from meshq.settings import Acceptor, AddressSettings, JournalSettings, Security
from meshq.statistics import BrokerStatistics
from meshq.wire import Link

if TYPE_CHECKING:
    from meshq.cluster import ClusterConnection, Drain
    from meshq.lb.balancer import BrokerBalancer

#: Notifications kept for a program that does not look.
EVENTS_MAX = 4_096


class Broker:
    """A broker node in this process.

    ``async with Broker(...)`` enters when the node is active and leaves after a clean stop; ``await
    nursery.start(broker.run)`` is the other way.  ``data_dir=None`` is a broker in memory only: nothing survives it.
    ``ha``: the policy that says when the node is active; None: from the start to the stop.  With a policy the block is
    entered when the node is active, or already when it waits, as ``wait_for_activation`` of the policy says.
    ``security``: who may connect; with it every acceptor asks for a user and a password, and clients in this process
    are not asked.  ``memory_limit``: bytes of messages that the node keeps in memory, past which ``full_policy`` of
    their addresses decides; None: a quarter of the machine's memory.  ``max_session_ttl``: seconds for which a session
    outlives its connection at most, whatever its client's ``connection_ttl`` says.  ``max_sessions_per_user``: sessions
    that a user of ``security`` may have, those that wait for their clients included; None: 4,096, and at most 75 % of
    the connections that the process's limit of open files allows.  Building one touches nothing.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    def __init__(
        self,
        name: str,
        *,
        data_dir: str | os.PathLike[str] | None,
        journal: JournalSettings | None = None,
        directories: StoreDirectories | None = None,
        acceptors: Sequence[str | Acceptor] = (),
        connectors: Mapping[str, str] | None = None,
        queues: Sequence[str] = (),
        address_settings: dict[str, AddressSettings] | None = None,
        security: Security | None = None,
        services: Sequence[abc.Service] = (),
        ha: abc.HAPolicy | None = None,
        node_id: bytes | None = None,
        memory_limit: int | None = None,
        stop_timeout: float = 10,
        transaction_timeout: float = limits.TRANSACTION_TIMEOUT_S,
        max_session_ttl: float = limits.SESSION_TTL_S,
        max_sessions_per_user: int | None = None,
        env: abc.Env | None = None,
    ) -> None:
        self._settings = BrokerSettings(
            name=name,
            data_dir=data_dir,
            journal=journal,
            directories=directories,
            acceptors=acceptors,
            connectors=connectors,
            services=services,
            ha=ha,
            queues=queues,
            address_settings=address_settings,
            node_id=node_id,
            memory_limit=memory_limit,
            stop_timeout=stop_timeout,
            transaction_timeout=transaction_timeout,
            max_session_ttl=max_session_ttl,
            max_sessions_per_user=max_sessions_per_user,
            security=security,
        )
        self._env = env
        self._life = LifeCycle(f"the broker {name!r}", BROKER_TRANSITIONS)
        self._event_bus = EventBus()
        self._block = BackgroundBlock(f"the broker {name!r}")
        self._stop = trio.Event()
        self._stopped = trio.Event()
        # Where it runs, or has run.
        self._loop: trio.lowlevel.TrioToken | None = None
        # At most one of the two is there.
        self._node: Node | None = None
        self._waiting: WaitingNode | None = None
        self._turn: Turn | None = None
        # Whether the one who stopped the broker wants another node to take over.
        self._failover = False
        self._node_id: NodeId | None = NodeId(node_id) if node_id is not None else None

    # -- what it is

    @property
    def name(self) -> str:
        """The broker's name."""
        return self._settings.name

    @property
    def security(self) -> Security | None:
        """The users, roles and permissions as given; None: every client may do everything."""
        return self._settings.security

    @property
    def state(self) -> str:
        """``new``, ``starting``, ``waiting``, ``active``, ``stopping``, ``stopped`` or ``failed``."""
        return self._life.state

    @property
    def durable(self) -> bool:
        """Whether anything survives the process."""
        return self._settings.data_dir is not None

    @property
    def node_id(self) -> NodeId:
        """The identity of the node, kept for life in the first file of its store.

        Raises:
            NotActiveError: it isn't known before the broker has started.
        """
        if self._node_id is None:
            raise NotActiveError(f"the broker {self.name!r} has not started: its node id stands in its store")
        return self._node_id

    @property
    def urls(self) -> list[str]:
        """The acceptors' URLs with the ports that are really bound; empty unless the node waits or is active."""
        serving = self._node or self._waiting
        return [] if serving is None else list(serving.listeners.urls)

    def __repr__(self) -> str:
        return f"<Broker {self.name!r} {self._life.state} durable={self.durable}>"

    def cluster(self, name: str) -> ClusterConnection:
        """Return the cluster connection of this name.

        Raises:
            NotFoundError: the broker has none.
        """
        # A broker without one does not load what a cluster needs.
        from meshq.cluster import ClusterConnection

        return cast(ClusterConnection, self.service(name, kind=ClusterConnection.kind))

    def balancer(self, name: str) -> BrokerBalancer:
        """Return the balancer of this name.

        Raises:
            NotFoundError: the broker has none.
        """
        return cast("BrokerBalancer", self.service(name, kind="broker_balancer"))

    def service(self, name: str, *, kind: str | None = None) -> abc.Service:
        """Return the service of this name: a bridge, a cluster connection, or a class of your own.

        ``kind``: the service's kind, ``"bridge"`` or ``"cluster_connection"``; required if services of several kinds
        have the name.

        Raises:
            NotFoundError: the broker has no such service.
            UsageError: services of several kinds have this name.
        """
        return self._settings.service(name, kind)

    def statistics(self) -> BrokerStatistics:
        """Return the contents and counters of the broker as a frozen record.

        Raises:
            NotActiveError: it has not started, or has stopped.
        """
        return self._active().statistics(self._life.state)

    def explain_route(
        self, address: str, properties: Mapping[str, PropertyValue] | None = None, *, user: str | None = None
    ) -> MessageRoute:
        """Explain where a message to ``address`` would go on this node, and why; nothing is sent.

        Without ``properties`` it is asked of any message: filters then may or may not accept it.  ``user``: who would
        send it; None: a client in this process.

        Raises:
            SettingsError: a part of the message is not allowed.
            NotActiveError: it has not started, or has stopped.
        """
        return self._active().explain_route(address, properties, user)

    def events(self) -> EventStream[Notification]:
        """Return an async iterator of the broker's notifications from now on, also before the broker has started.

        Of what nobody takes the oldest go, and are counted in ``missed``.
        """
        stream: EventStream[Notification] = EventStream(EVENTS_MAX)
        self._watch(stream)
        return stream

    def _watch(self, stream: EventSink[Notification]) -> None:
        if self._life.ended:
            stream.close()
        else:
            self._event_bus.watch(stream)

    def _change_state(self, change: str, error: BaseException | None = None) -> None:
        state = self._life.on(change)
        log_state(self.name, state, error)
        self._event_bus.emit(BrokerStateChanged, state=state)

    def client(self, **settings: Unpack[ClientOptions]) -> Client:
        """Create a client in this process, without a socket, to be used as ``async with``.  ``settings`` as for
        ``connect``."""
        return self._client_over(self._connect_local, settings)

    def run_in_thread(self) -> BrokerInThread:
        """This broker in a thread and a loop of its own, for a program whose loop is busy; ``async with`` starts it.

        Its ``client()`` is for tasks of this program, without a socket.
        """
        return BrokerInThread(self)

    def _client_over(self, open_link: Callable[[], Link], settings: ClientOptions) -> Client:
        if self._settings.policy is None:
            # A broker that has stopped doesn't come back: there is nothing to reconnect to.
            settings.setdefault("reconnect_attempts", 0)
        return Client.over(open_link, env=self._environment(), name=f"inproc://{self.name}", **settings)

    def _serve_stream(self, stream: abc.Stream) -> None:
        """Serve a client of this process that runs in another loop."""
        if self._node is None:
            stream.close()
        else:
            self._node.listeners.take(stream)

    def _connect_local(self) -> Link:
        return self._active().inproc.connect_local("in process")

    def _active(self) -> Node:
        if self._node is None:
            # A node that has stepped back closes its store, and waits after that.
            state = "stepping back" if self._life.state == "active" else self._life.state
            raise NotActiveError(f"the broker {self.name!r} is {state}")
        return self._node

    def _environment(self) -> abc.Env:
        if self._env is None:
            self._env = default_env()
        return self._env

    # -- life

    async def __aenter__(self) -> Self:
        check_in_trio("Broker")
        await self._block.open(self.run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await self._block.close(error, self.stop)

    async def stop(self, failover: bool = False, *, scale_down: bool | None = None) -> None:
        """Stop the node cleanly within ``stop_timeout``: accept nothing new, finish committed work, tell the clients.

        A node that is not active yet is stopped at once.
        ``failover``: hand over to another node, which the policy of ``ha`` does; without a policy no node takes over.
        ``scale_down``: first drain the node, for which ``stop_timeout`` is no bound; None: if ``ha`` says so.

        Checkpoint: always.
        Cancellation: the stop goes on, and hands over nothing more.
        Raises:
            UsageError: the broker never started, or runs in another thread.
        """
        check_in_trio("Broker")
        if self._life.state == "new":
            raise UsageError(f"the broker {self.name!r} has not started")
        if trio.lowlevel.current_trio_token() is not self._loop:
            raise UsageError(f"the broker {self.name!r} runs in another thread: stop what run_in_thread has given")
        self._failover = self._failover or failover  # a later stop does not take the order back
        try:
            order = order_of(self._settings.ha, scale_down)
            if order is not None and self._life.state == "active":
                await hand_over(self._leaving(), self.name, order)
        finally:
            self._stop.set()
            if self._turn is not None:
                self._turn.end()
        await self._stopped.wait()

    def drain(self, target: str | None = None, dry_run: bool = False) -> Drain:
        """Return a drain of the node, to be used as ``async with``: all that the node holds goes to another node.

        The node takes nothing in from then on, until it is started again, and sends its clients away.  The block is
        left when the other node has everything; ``stop`` follows.  A drain that is cut leaves the rest to the next.
        ``target``: the name or URL of a connector, which is dialed unless a cluster connection links it, or the name or
        id of a node; None: any node that is linked within ten seconds.  With ``dry_run`` only the target is found, and
        counted what would move.

        The block raises:
            NotFoundError: no such node is linked, or takes the link; nothing changed.
            SettingsError: the connector can't be dialed; nothing changed.
            BusyError, CursorHeldError: transactions are prepared for which that node is too old; cursors are there.
            RefusedError: something is left that the other node can't take; what has moved has moved.
            NotActiveError: the node is not active, or has ended meanwhile.
        """
        from meshq.cluster import Drain, DrainOrder

        order = DrainOrder(targets=() if target is None else (target,), dry_run=dry_run)
        return Drain(self.name, self._leaving(), order)

    def _leaving(self) -> LeavingBroker:
        return LeavingBroker(self._settings, lambda: self._active().handover, lambda: self._loop)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Run the node; reports started once it is active, or waits by its policy; returns after ``stop``.

        Checkpoint: always.
        Cancellation: it is ``stopped`` at once, as after a crash: what was confirmed is safe, clients aren't told.
        Raises:
            JournalBrokenError: the disk failed.
            DamagedError: the store can't be read.
            ConnectionBrokenError: an acceptor can't be bound.
            ClosedError: ``stop`` was called before the broker has started, and a caller waits for the start.
        """
        check_in_trio("Broker")
        if self._life.state != "new":
            raise UsageError(f"the broker {self.name!r} was started before; make another one")
        env = self._environment()
        check_on_clock(self.name, env.clock)
        self._loop = trio.lowlevel.current_trio_token()
        self._event_bus.set_clock(env.wall.now_ms)
        self._change_state("start")
        report = StartReport(task_status)
        try:
            policy = self._settings.policy
            if policy is None:
                self._turn = turn = Turn()
                with turn.scope:
                    await self._serve(self._settings, env, turn, report)
            else:
                await self._take_turns(policy, env, report)
            if self._life.state != "stopping":
                # The order came while the node started, or stepped back.
                self._change_state("stop")
        except BaseException as error:
            self._ended_by(error)
            raise
        finally:
            if self._life.state == "stopping":
                self._change_state("close")
            self._event_bus.close()
            self._stopped.set()
        if report.missed:
            raise ClosedError(f"the broker {self.name!r} was stopped before it has started")

    def _ended_by(self, error: BaseException) -> None:
        if self._life.ended:
            return
        if not only_cancelled(error):
            self._change_state("fail", error)
        elif self._life.state != "stopping":
            # Whoever cancels it wants it to go, at once; nothing has failed.
            self._change_state("stop")

    async def _serve(self, settings: BrokerSettings, env: abc.Env, turn: Turn, report: StartReport) -> None:
        """Open the store, be active until the turn is over, and close the store."""
        node: Node | None = None
        try:
            node = await Node.open(settings, env, journal_of(settings, env, turn.sink), self._event_bus)
            self._node_id = node.node_id
            turn.node = node
            async with trio.open_nursery() as nursery:
                await node.start(nursery)
                self._node = node
                env.local[self.name] = node.inproc
                self._change_state("activate")
                turn.active = True
                report.make()
                await turn.over.wait()
                if turn.step_back is None:
                    self._change_state("stop")
                    await node.stop()
                else:
                    await node.stop(step_back=turn.step_back.reason)
                nursery.cancel_scope.cancel()
        except BaseException as error:
            if not (turn.scope.cancel_called and only_cancelled(error)):
                self._ended_by(error)
            raise
        finally:
            self._node = None
            if node is not None:
                if env.local.get(self.name) is node.inproc:
                    del env.local[self.name]
                with trio.CancelScope(shield=True):
                    await node.close()

    async def _take_turns(self, policy: abc.HAPolicy, env: abc.Env, report: StartReport) -> None:
        """Wait and be active by turns, as the policy says, until the broker is stopped."""
        settings, listeners = self._settings, KeptListeners(env.network)
        env = attrs.evolve(env, network=listeners)
        credentials = await credentials_of(settings, env)
        control = waiting_control(settings, env)
        # Until the policy has let the broker join, a stop cancels the policy.
        self._turn = joining = Turn()
        if self._stop.is_set():
            joining.end()
        block = PolicyBlock(joining.scope, settings.stop_timeout)
        try:
            with joining.scope:
                async with checked_block(policy.activation(control)) as given:
                    activation = checked_activation(given)
                    joining.active = True
                    with block.used():
                        while not self._stop.is_set():
                            waiting = WaitingNode(settings, env, control, credentials, self._event_bus)
                            told = None if policy.wait_for_activation else report
                            term = await self._wait(waiting, env, activation, told)
                            if self._stop.is_set():
                                listeners.close()
                                self._change_state("stop")
                            if term is not None:
                                await self._hold(term, env, activation, report)
            block.conclude()
        finally:
            listeners.close()

    async def _wait(
        self, waiting: WaitingNode, env: abc.Env, activation: abc.Activation, report: StartReport | None
    ) -> abc.ActiveTerm | None:
        """Be passive until the node may be active, or the broker is stopped; return the term, if there is one."""
        term: abc.ActiveTerm | None = None
        try:
            async with trio.open_nursery() as nursery:

                async def wait_for_term() -> None:
                    nonlocal term
                    term = checked_term(await activation.wait())
                    nursery.cancel_scope.cancel()

                await waiting.start(nursery)
                self._waiting = waiting
                env.local[self.name] = waiting.inproc
                self._change_state("wait")
                if report is not None:
                    report.make()
                nursery.start_soon(wait_for_term)
                await self._stop.wait()
                nursery.cancel_scope.cancel()
        finally:
            self._waiting = None
            if env.local.get(self.name) is waiting.inproc:
                del env.local[self.name]
            waiting.close()
        return term

    async def _hold(self, term: abc.ActiveTerm, env: abc.Env, activation: abc.Activation, report: StartReport) -> None:
        """Be active until the node has to step back, or the broker is stopped; then give the role up."""
        settings = self._settings
        if not self._stop.is_set():
            self._turn = turn = Turn(term.sink)
            self._change_state("start")
            if term.data_dir is not None:
                settings = attrs.evolve(settings, data_dir=term.data_dir)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(turn.watch, activation)
                with turn.scope:
                    await self._serve(settings, env, turn, report)
                nursery.cancel_scope.cancel()
        # The role is given up also where the policy does not come to an end.
        with trio.move_on_after(settings.stop_timeout):
            await activation.release(failover=self._failover)
