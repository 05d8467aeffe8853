"""The broker: one node put together.  What starts when, and what stops when; nothing is decided here."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Self, Unpack, cast

import trio

from meshq import abc, limits
from meshq.broker import EventBus
from meshq.client import Client, ClientOptions, EventSink, EventStream, MessageRoute
from meshq.concurrency import BackgroundBlock
from meshq.directories import StoreDirectories
from meshq.env import default_env
from meshq.errors import NotActiveError, SettingsError, UsageError
from meshq.ids import NodeId
from meshq.loops import check_in_trio, check_on_clock
from meshq.message import PropertyValue
from meshq.node._broker_in_thread import BrokerInThread
from meshq.node._node import Node
from meshq.node._scale_down import LeavingBroker, hand_over, order_of
from meshq.node._settings import BrokerSettings
from meshq.node.terms._broker_run import BrokerRun
from meshq.node.terms._high_availability import HighAvailability
from meshq.notifications import Notification
from meshq.settings import Acceptor, AddressSettings, JournalSettings, Security
from meshq.statistics import BrokerStatistics
from meshq.wire import Link

if TYPE_CHECKING:
    from meshq.cluster import ClusterConnection, Drain
    from meshq.lb.balancer import BrokerBalancer
    from meshq.network import NetworkConnector

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
    the connections that the process's limit of open files allows.  ``advisory_support``: whether the topics that begin
    with ``ActiveMQ.Advisory.`` tell who consumes, produces and is connected, and whether other brokers of a network are
    told what is wanted here.  Building one touches nothing.

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
        advisory_support: bool = True,
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
            advisory_support=advisory_support,
            security=security,
        )
        self._env = env
        self._event_bus = EventBus(advisory_support=advisory_support)
        self._run = BrokerRun(self._settings, self._event_bus, Broker)
        self._ha = HighAvailability(self._run)
        self._block = BackgroundBlock(f"the broker {name!r}")
        # Where it runs, or has run.
        self._loop: trio.lowlevel.TrioToken | None = None

    @property
    def _node(self) -> Node | None:
        """The node while it is active."""
        return self._run.node

    # -- what it is

    @property
    def ha(self) -> HighAvailability:
        """The role of the node: which node of its pair serves, and which ones wait."""
        return self._ha

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
        return self._run.life.state

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
        if self._run.node_id is None:
            raise NotActiveError(f"the broker {self.name!r} has not started: its node id stands in its store")
        return self._run.node_id

    @property
    def urls(self) -> list[str]:
        """The acceptors' URLs with the ports that are really bound; empty unless the node waits or is active."""
        serving = self._run.listening
        return list(serving.listeners.urls) if serving is not None else []

    def __repr__(self) -> str:
        return f"<Broker {self.name!r} {self._run.life.state} durable={self.durable}>"

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

    def network(self, name: str) -> NetworkConnector:
        """Return the network connector of this name.

        Raises:
            NotFoundError: the broker has none.
        """
        if self._node is not None:
            return cast("NetworkConnector", self._node.served.find(name, "network_connector"))
        return cast("NetworkConnector", self.service(name, kind="network_connector"))

    async def add_network(self, connector: NetworkConnector) -> None:
        """Serve a network connector from now on, until it is removed or the broker stops.

        The settings of the broker do not change: a broker that is built anew has to be given the connector again.

        Checkpoint: always.
        Cancellation: the connector is served or not; ``network`` says which.
        Raises:
            SettingsError: it is no ``NetworkConnector``, the broker has one of its name, or a URL can't be dialed.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("Broker")
        if getattr(connector, "kind", None) != "network_connector":
            raise SettingsError("connector", connector, "a NetworkConnector(...)")
        await self._active().served.add(connector)

    async def remove_network(self, name: str) -> None:
        """End a network connector, whether it was added or is one of ``services``.

        Messages that wait for brokers behind it stay in their queues, those of topics in queues that a connector of
        this name takes up again.

        Checkpoint: always.
        Cancellation: it ends all the same.
        Raises:
            SettingsError: ``name`` is no text.
            NotFoundError: the broker has none of this name.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("Broker")
        if not isinstance(name, str):
            raise SettingsError("name", name, "the name of a network connector")
        served = self._active().served
        await served.remove(served.find(name, "network_connector"))

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
        return self._active().statistics(self._run.life.state)

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
        if self._run.life.ended:
            stream.close()
        else:
            self._event_bus.watch(stream)

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
            self._node.take(stream)

    def _connect_local(self) -> Link:
        return self._active().inproc.connect_local("in process")

    def _active(self) -> Node:
        if self._node is None:
            # A node that has stepped back closes its store, and waits after that.
            state = "stepping back" if self._run.life.state == "active" else self._run.life.state
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
        if self._run.life.state == "new":
            raise UsageError(f"the broker {self.name!r} has not started")
        if trio.lowlevel.current_trio_token() is not self._loop:
            raise UsageError(f"the broker {self.name!r} runs in another thread: stop what run_in_thread has given")
        self._run.failover = self._run.failover or failover  # a later stop does not take the order back
        try:
            order = order_of(self._settings.ha, scale_down)
            if order is not None and self._run.life.state == "active":
                await hand_over(self._leaving(), self.name, order)
        finally:
            self._run.end()
        await self._run.stopped.wait()

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
        if self._run.life.state != "new":
            raise UsageError(f"the broker {self.name!r} was started before; make another one")
        env = self._environment()
        check_on_clock(self.name, env.clock)
        self._loop = trio.lowlevel.current_trio_token()
        await self._run.run(env, task_status)
