"""The broker for threads: the same broker, in a trio loop of its own."""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, Unpack

import trio

from meshq.blocking._balancer import BrokerBalancer
from meshq.blocking._block_runner import ThreadBlockRunner
from meshq.blocking._client import Client
from meshq.blocking._cluster import ClusterConnection, NetworkConnector
from meshq.blocking._events import EventStream
from meshq.blocking._high_availability import HighAvailability
from meshq.blocking._loop_thread import ThreadLoop
from meshq.client import ClientOptions
from meshq.errors import ClosedError, UsageError
from meshq.network import NetworkConnector as ServedConnector
from meshq.node import EVENTS_MAX, BrokerFace, watch
from meshq.notifications import Notification


class Broker(BrokerFace):
    """A broker node in this process, in a thread of its own.

    ``with Broker(...)`` enters when the node is active and leaves after a clean stop; ``broker.run()`` is the other
    way, for a thread that does nothing else.  ``data_dir=None`` is a broker in memory only: nothing survives it.
    ``ha``: the policy that says when the node is active; None: from the start to the stop.  With a policy the block is
    entered when the node is active, or already when it waits, as ``wait_for_activation`` of the policy says.
    ``security``: who may connect; with it every acceptor asks for a user and a password, and clients in this process
    are not asked.  Building one touches nothing.  When the broker fails, the block raises its
    error when its body has ended.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    _loop: ThreadLoop

    def _build(self, name: str, clock: trio.abc.Clock | None) -> None:
        self._loop = ThreadLoop(name, clock)
        self._block = ThreadBlockRunner(self._loop, self._inner, name, owner=True)

    def cluster(self, name: str) -> ClusterConnection:
        """Return the cluster connection of this name.

        Raises:
            NotFoundError: the broker has none.
        """
        return ClusterConnection(self._inner.cluster(name), self._loop)

    def balancer(self, name: str) -> BrokerBalancer:
        """Return the balancer of this name.

        Raises:
            NotFoundError: the broker has none.
        """
        return BrokerBalancer(self._inner.balancer(name), self._loop)

    def network(self, name: str) -> NetworkConnector:
        """Return the network connector of this name.

        Raises:
            NotFoundError: the broker has none.
        """
        return NetworkConnector(self._inner.network(name), self._loop)

    def add_network(self, connector: ServedConnector) -> None:
        """Serve a network connector from now on, until it is removed or the broker stops.

        The settings of the broker do not change: a broker that is built anew has to be given the connector again.

        Interrupted: the connector is served or not; ``network`` says which.
        Raises:
            SettingsError: it is no ``NetworkConnector``, the broker has one of its name, or a URL can't be dialed.
            NotActiveError: the broker isn't active.
        """
        self._check_active()
        self._loop.call(self._inner.add_network, connector)

    def remove_network(self, name: str) -> None:
        """End a network connector, whether it was added or is one of ``services``.

        Messages that wait for brokers behind it stay in their queues, those of topics in queues that a connector of
        this name takes up again.

        Interrupted: it ends all the same.
        Raises:
            SettingsError: ``name`` is no text.
            NotFoundError: the broker has none of this name.
            NotActiveError: the broker isn't active.
        """
        self._check_active()
        self._loop.call(self._inner.remove_network, name)

    @property
    def ha(self) -> HighAvailability:
        """The role of the node: which node of its pair serves, and which ones wait."""
        return HighAvailability(self._inner.ha, self._loop)

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
            ClosedError: ``stop`` was called before the broker has started.
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
            self._block.over.set()

    def stop(self, failover: bool = False, *, scale_down: bool | None = None) -> None:
        """Stop the node cleanly within ``stop_timeout``: accept nothing new, finish committed work, tell the clients.

        ``failover``: hand over to another node, which the policy of ``ha`` does; without a policy no node takes over.
        ``scale_down``: first hand all messages over to another node, for which ``stop_timeout`` is no bound; None: if
        ``ha`` says so.

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
                self._loop.call(partial(self._inner.stop, failover, scale_down=scale_down))
        finally:
            self._block.over.set()

    def run(self) -> None:
        """Run the node; returns after ``stop`` by another thread.  Interrupted: it stops in peace.

        Raises:
            UsageError: it was started before.
            JournalBrokenError: the disk failed.
            DamagedError: the store can't be read.
            ConnectionBrokenError: an acceptor can't be bound.
            ClosedError: ``stop`` was called before the broker has started.
        """
        with self:
            self._block.over.wait()
