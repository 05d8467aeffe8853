"""The broker for threads: the same broker, in a trio loop of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, Unpack

from meshq import abc, limits
from meshq import node as trio_node
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._client import Client
from meshq.blocking._cluster import ClusterConnection
from meshq.blocking._events import EventStream
from meshq.blocking._loop_thread import ThreadLoop
from meshq.client import ClientOptions, MessageRoute
from meshq.directories import StoreDirectories
from meshq.errors import ClosedError, UsageError
from meshq.ids import NodeId
from meshq.message import PropertyValue
from meshq.node import EVENTS_MAX, BrokerStatistics, ServiceInThread, watch
from meshq.notifications import Notification
from meshq.settings import Acceptor, AddressSettings, JournalSettings, Security


class Broker:
    """A broker node in this process, in a thread of its own.

    ``with Broker(...)`` enters when the node is active and leaves after a clean stop; ``broker.run()`` is the other
    way, for a thread that does nothing else.  ``data_dir=None`` is a broker in memory only: nothing survives it.
    ``security``: who may connect; with it every acceptor asks for a user and a password, and clients in this process
    are not asked.  Building one touches nothing.  When the broker fails, the block raises its
    error when its body has ended.

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
        self._inner = trio_node.Broker(
            name,
            data_dir=data_dir,
            journal=journal,
            directories=directories,
            acceptors=acceptors,
            connectors=connectors,
            queues=queues,
            address_settings=address_settings,
            security=security,
            services=services,
            ha=ha,
            node_id=node_id,
            memory_limit=memory_limit,
            stop_timeout=stop_timeout,
            transaction_timeout=transaction_timeout,
            max_session_ttl=max_session_ttl,
            max_sessions_per_user=max_sessions_per_user,
            env=env,
        )
        # It was told to stop, or has failed.
        self._over = threading.Event()
        name = f"the broker {name!r}"
        self._loop = ThreadLoop(name, env.clock if env is not None else None)
        self._block = ThreadBlockRunner(self._loop, self._inner, name, owner=True, on_failed=self._over.set)

    # -- what it is

    @property
    def name(self) -> str:
        """The broker's name."""
        return self._inner.name

    @property
    def security(self) -> Security | None:
        """The users, roles and permissions as given; None: every client may do everything."""
        return self._inner.security

    @property
    def state(self) -> str:
        """``new``, ``starting``, ``waiting``, ``active``, ``stopping``, ``stopped`` or ``failed``."""
        return self._inner.state

    @property
    def durable(self) -> bool:
        """Whether anything survives the process."""
        return self._inner.durable

    @property
    def node_id(self) -> NodeId:
        """The identity of the node, kept for life in the first file of its store.

        Raises:
            NotActiveError: it isn't known before the broker has started.
        """
        return self._inner.node_id

    @property
    def urls(self) -> list[str]:
        """The acceptors' URLs with the ports that are really bound; empty unless the node waits or is active."""
        return self._inner.urls

    def __repr__(self) -> str:
        return repr(self._inner)

    def cluster(self, name: str) -> ClusterConnection:
        """Return the cluster connection of this name.

        Raises:
            NotFoundError: the broker has none.
        """
        return ClusterConnection(self._inner.cluster(name), self._loop)

    def service(self, name: str, *, kind: str | None = None) -> ServiceInThread:
        """Return the service of this name, for any thread.

        ``kind``: the service's kind, ``"bridge"`` or ``"cluster_connection"``; required if services of several kinds
        have the name.

        Raises:
            NotFoundError: the broker has no such service.
            UsageError: services of several kinds have this name.
        """
        return ServiceInThread(self._inner.service(name, kind=kind), self._loop)

    def statistics(self) -> BrokerStatistics:
        """Return the contents and counters of the broker as a frozen record.

        Raises:
            NotActiveError: it has not started, or has stopped.
        """
        return self._loop.run_sync_if_open(self._inner.statistics)

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
        return self._loop.run_sync_if_open(partial(self._inner.explain_route, address, properties, user=user))

    def events(self) -> EventStream[Notification]:
        """Return an iterator of the broker's notifications from now on, also before the broker has started.

        Of what nobody takes the oldest go, and are counted in ``missed``.
        """
        stream: EventStream[Notification] = EventStream(self._loop, EVENTS_MAX)
        self._loop.run_sync_if_open(lambda: watch(self._inner, stream))
        return stream

    def client(self, **settings: Unpack[ClientOptions]) -> Client:
        """A client in this process, without a socket; a context manager.  ``settings`` as for ``connect``.

        It lives in the broker's thread.
        """
        return Client(self._inner.client(**settings), self._loop)

    # -- life

    def __enter__(self) -> Self:
        """Start the node, in a thread that this block owns.  Interrupted: what had started is ended.

        Raises:
            UsageError: it was started before; or a trio task is calling.
            JournalBrokenError, DamagedError: the store can't be opened.
            ConnectionBrokenError: an acceptor can't be bound.
        """
        self._block.enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop in peace; see ``stop``.  Interrupted: it stops all the same, within ``stop_timeout``."""
        try:
            return self._block.leave(error)
        finally:
            self._over.set()

    def stop(self, failover: bool = False) -> None:
        """Stop the node cleanly within ``stop_timeout``: accept nothing new, finish committed work, tell the clients.

        ``failover``: hand over to another node, which the policy of ``ha`` does; without a policy no node takes over.

        Interrupted: the stop goes on.
        Raises:
            UsageError: the broker never started.
        """
        # Not whether a body runs: a broker is active a moment before the body of its block begins.
        if self._inner.state == "new":
            raise UsageError(f"the broker {self.name!r} has not started")
        try:
            # A loop that has ended has no broker that runs.
            with suppress(ClosedError):
                self._loop.call(self._inner.stop, failover)
        finally:
            self._over.set()

    def run(self) -> None:
        """Run the node; returns after ``stop`` by another thread.  Interrupted: it stops in peace.

        Raises:
            UsageError: it was started before.
            JournalBrokenError: the disk failed.
            DamagedError: the store can't be read.
            ConnectionBrokenError: an acceptor can't be bound.
        """
        with self:
            self._over.wait()
