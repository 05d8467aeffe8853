"""A broker in a thread and a trio loop of its own, for a trio program whose loop is busy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack, cast

import attrs
import outcome
import trio

from meshq import portal
from meshq.client import Client, ClientOptions, EventStream, MessageRoute
from meshq.concurrency import BackgroundBlock
from meshq.errors import ClosedError, NotActiveError, UsageError
from meshq.ids import NodeId
from meshq.loops import check_in_trio
from meshq.message import PropertyValue
from meshq.node._cluster_in_thread import ClusterConnectionInThread
from meshq.node._service_in_thread import BrokerBalancerInThread, NetworkConnectorInThread, ServiceInThread
from meshq.node.terms._high_availability import HighAvailabilityInThread
from meshq.notifications import Notification
from meshq.portal import PipeStream
from meshq.statistics import BrokerStatistics
from meshq.wire import Link, StreamLink

if TYPE_CHECKING:
    from meshq.network import NetworkConnector
    from meshq.node._broker import Broker

T = TypeVar("T")


class _HostTaskCompletion(portal.PortalCompletion):
    """A completion of the broker's loop for which a task of the host's loop waits, in another thread."""

    __slots__ = ("_event", "_token")

    def __init__(self) -> None:
        super().__init__()
        self._token = trio.lowlevel.current_trio_token()
        self._event = trio.Event()

    def _wake_waiter(self) -> None:
        # A host whose loop has ended waits for nothing.
        with suppress(trio.RunFinishedError):
            self._token.run_sync_soon(self._event.set)

    async def wait(self) -> Any:
        """Wait for the operation; return the value or raise the error."""
        await self._event.wait()
        return self.result()


class _BrokerLoopThread(portal.LoopThread):
    """The broker's loop, as the host's tasks see it."""

    WITH = "async with"

    def completion(self) -> _HostTaskCompletion:
        """A completion that a task of the host waits for."""
        return _HostTaskCompletion()

    def _refuse_tasks(self) -> None:
        """Allow tasks of the host, which wait without blocking their loop."""


@attrs.frozen
class _BrokerCalls:
    """Calls of the host into the broker's loop."""

    _broker: BrokerInThread

    def run_sync(self, function: Callable[[], T]) -> T:
        """Call a plain function in the broker's loop."""
        return self._broker._run_sync(function)

    async def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Call an async function in the broker's loop."""
        return await self._broker._call(function)


class BrokerInThread:
    """A broker in a thread of its own; made by ``broker.run_in_thread``, used as ``async with``.

    ``async with`` enters when the node is active and leaves after a clean stop, when the thread is gone.  When the
    broker fails, the body is cancelled and the block raises its error.  However busy the host's loop is, the broker
    syncs, confirms and answers others; its clients here have a link without a socket.
    """

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        name = f"the broker {broker.name!r}"
        self._block = BackgroundBlock(name)
        self._loop = _BrokerLoopThread(name, broker._environment().clock)
        self._scope = trio.CancelScope()

    def __repr__(self) -> str:
        return f"<BrokerInThread {self._broker!r}>"

    @property
    def name(self) -> str:
        """The broker's name."""
        return self._broker.name

    @property
    def state(self) -> str:
        """``new``, ``starting``, ``waiting``, ``active``, ``stopping``, ``stopped`` or ``failed``."""
        return self._broker.state

    @property
    def durable(self) -> bool:
        """Whether anything survives the process."""
        return self._broker.durable

    @property
    def node_id(self) -> NodeId:
        """The identity of the node, kept for life.

        Raises:
            NotActiveError: it isn't known before the broker has started.
        """
        return self._broker.node_id

    @property
    def urls(self) -> list[str]:
        """The acceptors' URLs with the ports that are really bound; empty unless the node waits or is active."""
        return self._broker.urls

    def cluster(self, name: str) -> ClusterConnectionInThread:
        """Return the cluster connection of this name, with the methods of ``ClusterConnection`` for tasks of the host.

        Raises:
            NotFoundError: the broker has none.
        """
        return ClusterConnectionInThread(self._broker.cluster(name), _BrokerCalls(self))

    def balancer(self, name: str) -> BrokerBalancerInThread:
        """Return the balancer of this name, with the methods of ``BrokerBalancer`` for tasks of the host.

        Raises:
            NotFoundError: the broker has none.
        """
        return BrokerBalancerInThread(self._broker.balancer(name), _BrokerCalls(self))

    def network(self, name: str) -> NetworkConnectorInThread:
        """Return the network connector of this name, with the methods of ``NetworkConnector`` for tasks of the host.

        Raises:
            NotFoundError: the broker has none.
        """
        return NetworkConnectorInThread(self._broker.network(name), _BrokerCalls(self))

    async def add_network(self, connector: NetworkConnector) -> None:
        """Serve a network connector from now on, until it is removed or the broker stops; as ``Broker.add_network``.

        Checkpoint: always.
        Cancellation: the connector is served or not; ``network`` says which.
        Raises:
            SettingsError: it is no ``NetworkConnector``, the broker has one of its name, or a URL can't be dialed.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("Broker")
        await self._call(partial(self._broker.add_network, connector))

    async def remove_network(self, name: str) -> None:
        """End a network connector, whether it was added or is one of ``services``; as ``Broker.remove_network``.

        Checkpoint: always.
        Cancellation: it ends all the same.
        Raises:
            SettingsError: ``name`` is no text.
            NotFoundError: the broker has none of this name.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("Broker")
        await self._call(partial(self._broker.remove_network, name))

    @property
    def ha(self) -> HighAvailabilityInThread:
        """The role of the node, for tasks of the host: which node of its pair serves, and which ones wait."""
        return HighAvailabilityInThread(self._broker.ha, _BrokerCalls(self))

    def service(self, name: str, *, kind: str | None = None) -> ServiceInThread:
        """Return the service of this name, for tasks of the host.

        ``kind``: the service's kind, ``"bridge"`` or ``"cluster_connection"``; required if services of several kinds
        have the name.

        Raises:
            NotFoundError: the broker has no such service.
            UsageError: services of several kinds have this name.
        """
        return ServiceInThread(self._broker.service(name, kind=kind), self._loop)

    def statistics(self) -> BrokerStatistics:
        """Return the contents and counters of the broker; ``loop_lag`` is that of the broker's loop, for one turn of
        which the call waits.

        Raises:
            NotActiveError: it has not started, or has stopped.
        """
        return self._run_sync(self._broker.statistics)

    def explain_route(
        self, address: str, properties: Mapping[str, PropertyValue] | None = None, *, user: str | None = None
    ) -> MessageRoute:
        """Explain where a message to ``address`` would go on this node, and why; as ``Broker.explain_route``.

        Raises:
            SettingsError: a part of the message is not allowed.
            NotActiveError: it has not started, or has stopped.
        """
        return self._run_sync(partial(self._broker.explain_route, address, properties, user=user))

    def _run_sync(self, function: Callable[[], T]) -> T:
        if not self._loop.running:
            raise NotActiveError(f"the broker {self.name!r} is {self.state}")
        return self._loop.run_sync(function)

    async def _call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        loop, scope = self._loop, trio.CancelScope()
        if not loop.running:
            raise NotActiveError(f"the broker {self.name!r} is {self.state}")
        completion = loop.completion()
        try:
            loop.start_task(completion, loop.run_call, completion, scope, partial(portal.own_outcome, function))
            found = await completion.wait()
        except ClosedError:
            raise NotActiveError(f"the broker {self.name!r} has stopped") from None
        except trio.Cancelled:
            with suppress(ClosedError):
                loop.call_soon(scope.cancel)
            raise
        # An error of the function is raised as it is, also that something of a living broker is closed.
        return found.unwrap()

    def events(self) -> EventStream[Notification]:
        """Return an async iterator of the broker's notifications, for tasks of the host; as ``Broker.events``."""
        return self._loop.run_sync_if_open(self._broker.events)

    def client(self, **settings: Unpack[ClientOptions]) -> Client:
        """Create a client in this process, without a socket, for tasks of the host; ``settings`` as for ``connect``."""
        return self._broker._client_over(self._open_link, settings)

    def _open_link(self) -> Link:
        if not self._loop.running or self._broker.state != "active":
            raise NotActiveError(f"the broker {self.name!r} is {self.state}")
        here = trio.lowlevel.current_trio_token()
        near, far = PipeStream.pair(f"inproc://{self.name}", here, self._loop.token)
        try:
            self._loop.call_soon(self._broker._serve_stream, far)
        except ClosedError:
            raise NotActiveError(f"the broker {self.name!r} has stopped") from None
        return StreamLink(near, local=True)

    # -- life

    async def __aenter__(self) -> Self:
        """Start the thread, and the node in it.

        Checkpoint: always.  Cancellation: what had started is ended.
        Raises:
            UsageError: the broker was started before.
            JournalBrokenError, DamagedError: the store can't be opened.
            ConnectionBrokenError: an acceptor can't be bound.
        """
        check_in_trio("Broker")
        await self._block.open(self._run)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        """Stop the node cleanly within ``stop_timeout``.

        Checkpoint: always.  Cancellation: it stops all the same.
        """
        return await self._block.close(error, self.stop)

    async def stop(self, failover: bool = False, *, scale_down: bool | None = None) -> None:
        """Stop the node cleanly; as ``Broker.stop``.

        Checkpoint: always.
        Cancellation: the stop goes on.
        Raises:
            UsageError: it never started.
        """
        check_in_trio("Broker")
        # Not whether there is a thread: it runs a moment before its broker has begun to start.
        if self.state == "new":
            raise UsageError(f"the broker {self.name!r} has not started")
        loop, stopped = self._loop, self._loop.completion()
        stop = partial(self._broker.stop, failover, scale_down=scale_down)
        await trio.lowlevel.checkpoint()
        # A loop that has ended, or that ends meanwhile, has no broker that runs.
        with suppress(ClosedError):
            loop.start_task(stopped, loop.run_call, stopped, trio.CancelScope(), stop)
            await stopped.wait()

    async def _run(self, *, task_status: trio.TaskStatus[None]) -> None:
        loop = self._loop
        running = cast("_HostTaskCompletion", loop.launch())
        gone = cast("_HostTaskCompletion", loop.gone)
        try:
            await running.wait()
            active, ended = loop.completion(), loop.completion()
            loop.expect(active)
            loop.start_task(ended, loop.run_call, ended, self._scope, partial(self._serve, active))
            await active.wait()
            task_status.started()
            await ended.wait()
        finally:
            with trio.CancelScope(shield=True):
                # A broker that still runs ends with its loop.
                loop.end()
                await gone.wait()
                loop.join()

    # -- in the broker's loop

    async def _serve(self, active: portal.PortalCompletion) -> None:
        """Run the broker; ``active`` is kept when it has started, or has failed to."""
        loop = self._loop

        class ActiveStatus:
            def started(self, value: None = None) -> None:
                loop.complete(active, outcome.Value(None))

        try:
            await self._broker.run(task_status=ActiveStatus())
        except BaseException as error:
            loop.complete(active, outcome.Error(error))
            raise
