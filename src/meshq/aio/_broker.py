"""The broker for asyncio: the same broker, in a thread and a trio loop of its own."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import Self, Unpack

import trio

from meshq.aio._balancer import BrokerBalancer
from meshq.aio._block_runner import TaskBlockRunner
from meshq.aio._client import Client
from meshq.aio._cluster import ClusterConnection, NetworkConnector
from meshq.aio._events import EventStream
from meshq.aio._high_availability import HighAvailability
from meshq.aio._loop_thread import TaskLoop
from meshq.client import ClientOptions
from meshq.errors import ClosedError, UsageError
from meshq.network import NetworkConnector as ServedConnector
from meshq.node import EVENTS_MAX, BrokerFace, watch
from meshq.notifications import Notification


class Broker(BrokerFace):
    """A broker node in this process, in a thread of its own.

    ``async with Broker(...)`` enters when the node is active and leaves after a clean stop; ``await broker.run()`` is
    the other way.  ``data_dir=None`` is a broker in memory only: nothing survives it.
    ``ha``: the policy that says when the node is active; None: from the start to the stop.  With a policy the block is
    entered when the node is active, or already when it waits, as ``wait_for_activation`` of the policy says.
    ``security``: who may connect; with it every acceptor asks for a user and a password, and clients in this process
    are not asked.  Building one touches nothing.  When the broker fails, the body is cancelled and the block raises
    its error.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    _loop: TaskLoop

    def _build(self, name: str, clock: trio.abc.Clock | None) -> None:
        # It was told to stop.
        self._over = asyncio.Event()
        self._loop = TaskLoop(name, clock)
        self._block = TaskBlockRunner(self._loop, self._inner, name, owner=True)

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

    async def add_network(self, connector: ServedConnector) -> None:
        """Serve a network connector from now on, until it is removed or the broker stops.

        The settings of the broker do not change: a broker that is built anew has to be given the connector again.

        Checkpoint: always.
        Cancellation: the connector is served or not; ``network`` says which.
        Raises:
            SettingsError: it is no ``NetworkConnector``, the broker has one of its name, or a URL can't be dialed.
            NotActiveError: the broker isn't active.
        """
        self._check_active()
        await self._loop.call(self._inner.add_network, connector)

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
        self._check_active()
        await self._loop.call(self._inner.remove_network, name)

    @property
    def ha(self) -> HighAvailability:
        """The role of the node: which node of its pair serves, and which ones wait."""
        return HighAvailability(self._inner.ha, self._loop)

    def events(self) -> EventStream[Notification]:
        """Return an async iterator of the broker's notifications from now on, also before the broker has started.

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

    async def __aenter__(self) -> Self:
        """Start the node, in a thread that this block owns.

        Checkpoint: always.  Cancellation: what had started is ended.
        Raises:
            UsageError: it was started before; or a trio task is calling.
            JournalBrokenError, DamagedError: the store can't be opened.
            ConnectionBrokenError: an acceptor can't be bound.
            ClosedError: ``stop`` was called before the broker has started.
        """
        await self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop in peace; see ``stop``.

        Checkpoint: always.  Cancellation: it stops all the same, within ``stop_timeout``.
        """
        try:
            return await self._block.leave(error)
        finally:
            self._over.set()

    async def stop(self, failover: bool = False, *, scale_down: bool | None = None) -> None:
        """Stop the node cleanly within ``stop_timeout``: accept nothing new, finish committed work, tell the clients.

        ``failover``: hand over to another node, which the policy of ``ha`` does; without a policy no node takes over.
        ``scale_down``: first hand all messages over to another node, for which ``stop_timeout`` is no bound; None: if
        ``ha`` says so.

        Checkpoint: always.
        Cancellation: the stop goes on.
        Raises:
            UsageError: the broker never started.
        """
        # Not whether a body runs: a broker is active a moment before the body of its block begins.
        if self._inner.state == "new":
            raise UsageError(f"the broker {self.name!r} has not started")
        try:
            # A loop that has ended has no broker that runs.
            with suppress(ClosedError):
                await self._loop.call(partial(self._inner.stop, failover, scale_down=scale_down))
        finally:
            self._over.set()

    async def run(self) -> None:
        """Run the node; returns after ``stop``.

        Checkpoint: always.
        Cancellation: it stops in peace.
        Raises:
            UsageError: it was started before.
            JournalBrokenError: the disk failed.
            DamagedError: the store can't be read.
            ConnectionBrokenError: an acceptor can't be bound.
            ClosedError: ``stop`` was called before the broker has started.
        """
        async with self:
            await self._over.wait()
