"""A cluster connection of a broker for asyncio, as tasks ask it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from meshq import cluster as trio_cluster
from meshq.aio._loop_thread import TaskLoop, forwarded
from meshq.cluster import PeerStatistics

T = TypeVar("T")


class ClusterConnection:
    """A cluster connection of a broker, returned by ``broker.cluster``.

    What a broker is given as a service is ``meshq.ClusterConnection``.
    """

    def __init__(self, inner: trio_cluster.ClusterConnection, loop: TaskLoop) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    async def _call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        return await self._loop.call(function, *arguments, **keywords)

    def peers(self) -> list[PeerStatistics]:
        """Return a record of each other node."""
        return self._loop.run_sync(self._inner.peers)

    def nodes(self) -> int:
        """The number of connected and known nodes, including this node."""
        return self._loop.run_sync(self._inner.nodes)

    def consumers(self, queue: str) -> int:
        """The number of consumers of a queue of this name, on this node and on the known nodes.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._loop.run_sync(lambda: self._inner.consumers(queue))

    wait_for: Final = forwarded(trio_cluster.ClusterConnection.wait_for)
