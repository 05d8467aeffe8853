"""A cluster connection of a broker in a thread, as tasks of its host ask it."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from meshq.errors import ClosedError, NotActiveError
from meshq.loops import check_in_trio
from meshq.portal import own_outcome_sync

if TYPE_CHECKING:
    from meshq.client import ClusterQueue, TopologyNode
    from meshq.cluster import ClusterConnection, PeerStatistics, RemoteQueue
    from meshq.statistics import StuckMessages

T = TypeVar("T")


class RunsSync(Protocol):
    """Calls of plain functions into another loop."""

    def run_sync(self, function: Callable[[], T]) -> T:
        """Call a plain function in the other loop."""


class LoopCalls(RunsSync, Protocol):
    """Calls into another loop; both raise ``NotActiveError`` if that loop does not run."""

    async def call(self, function: Callable[[], Awaitable[Any]]) -> Any:
        """Call an async function in the other loop."""


class ActiveCalls(RunsSync):
    """Calls of plain functions into the loop of a broker, as long as the broker is there."""

    def __init__(self, loop: RunsSync) -> None:
        self._loop = loop

    def run_sync(self, function: Callable[[], T]) -> T:
        """Call a plain function in the loop of the broker.

        Raises:
            NotActiveError: the loop has ended, and the broker with it; an error of the function is raised as it is.
        """
        try:
            found = self._loop.run_sync(partial(own_outcome_sync, function))
        except ClosedError as error:
            raise NotActiveError(f"the broker is not active: {error}") from None
        result: T = found.unwrap()
        return result


class ClusterFigures:
    """The figures of a cluster connection whose broker runs in another loop; the common part of all faces."""

    def __init__(self, inner: ClusterConnection, loop: RunsSync) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._run_sync = ActiveCalls(loop).run_sync

    def __repr__(self) -> str:
        return repr(self._inner)

    def peers(self) -> list[PeerStatistics]:
        """Return a record of each other node."""
        return self._run_sync(self._inner.peers)

    def nodes(self) -> int:
        """The number of connected and known nodes, including this node."""
        return self._run_sync(self._inner.nodes)

    def topology(self) -> tuple[TopologyNode, ...]:
        """Return the nodes of the cluster that are known now, linked or not; the node itself first.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._run_sync(self._inner.topology)

    def consumers(self, queue: str) -> int:
        """The number of consumers of a queue of this name, on this node and on the known nodes.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._run_sync(partial(self._inner.consumers, queue))

    def stuck(self) -> tuple[StuckMessages, ...]:
        """Return the messages on this node that do not move although a consumer wants them, with the cause of each.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._run_sync(self._inner.stuck)

    def bindings(self, address: str | None = None) -> tuple[RemoteQueue, ...]:
        """Return the queues of the known nodes that are not left, away or down; ``address``: only those of an address.

        Raises:
            SettingsError: no address can be so.
        """
        return self._run_sync(partial(self._inner.bindings, address))


class ClusterConnectionInThread(ClusterFigures):
    """A cluster connection of a ``BrokerInThread``, returned by its ``cluster``.

    What a broker is given as a service is ``meshq.ClusterConnection``.
    """

    def __init__(self, inner: ClusterConnection, broker: LoopCalls) -> None:
        super().__init__(inner, broker)
        self._broker = broker

    def peers(self) -> list[PeerStatistics]:
        """Return a record of each other node.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return super().peers()

    def bindings(self, address: str | None = None) -> tuple[RemoteQueue, ...]:
        """Return the queues of the known nodes that are not left, away or down; ``address``: only those of an address.

        Raises:
            SettingsError: no address can be so.
            NotActiveError: the broker isn't active.
        """
        return super().bindings(address)

    def nodes(self) -> int:
        """The number of connected and known nodes, including this node.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return super().nodes()

    async def wait_for(
        self,
        *,
        nodes: int = 1,
        queue: str | None = None,
        queues: int | None = None,
        consumers: int = 0,
        address: str | None = None,
        exactly: bool = False,
        timeout: float = math.inf,  # noqa: ASYNC109
    ) -> None:
        """Return when so many nodes are known, and so many queues of a name or an address on all of them, with so many
        consumers.

        ``exactly``: when there are not more of them, either; nodes may be more where queues or consumers are counted.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            CallTimeoutError: the time is up; the error says how far it came.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("ClusterConnection")
        wait = partial(
            self._inner.wait_for,
            nodes=nodes,
            queue=queue,
            queues=queues,
            consumers=consumers,
            address=address,
            exactly=exactly,
            timeout=timeout,
        )
        await self._broker.call(wait)

    async def queue(self, name: str) -> ClusterQueue:
        """Return the queue of a name on all nodes of the broker's clusters; each is asked, for a few seconds at most.

        A node that does not answer is listed, too, with what it has described before and how long ago it was heard.

        Checkpoint: always.
        Cancellation: nothing has changed.
        Raises:
            SettingsError: no queue can have that name.
            NotActiveError: the broker isn't active.
        """
        check_in_trio("ClusterConnection")
        return cast("ClusterQueue", await self._broker.call(partial(self._inner.queue, name)))
