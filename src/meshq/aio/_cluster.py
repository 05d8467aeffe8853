"""A cluster connection of a broker for asyncio, as tasks ask it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from meshq import cluster as trio_cluster
from meshq.aio._loop_thread import TaskLoop, forwarded
from meshq.cluster import PeerStatistics

T = TypeVar("T")


class ClusterConnection:
    """Joins a broker to others; handed out by ``broker.cluster``.

    What a broker is given as a service is ``meshq.ClusterConnection``.
    """

    def __init__(self, inner: trio_cluster.ClusterConnection, loop: TaskLoop) -> None:
        self.name = inner.name
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    async def _call(self, function: Callable[..., Awaitable[T]], *arguments: Any, **keywords: Any) -> T:
        return await self._loop.call(function, *arguments, **keywords)

    def peers(self) -> list[PeerStatistics]:
        """The other nodes now."""
        return self._loop.run_sync(self._inner.peers)

    def nodes(self) -> int:
        """Nodes that are connected and known, this one included."""
        return self._loop.run_sync(self._inner.nodes)

    def consumers(self, queue: str) -> int:
        """Consumers of a queue of this name, here and on the nodes that are known.

        Raises:
            NotActiveError: the broker isn't active.
        """
        return self._loop.run_sync(lambda: self._inner.consumers(queue))

    wait_for = forwarded(trio_cluster.ClusterConnection.wait_for)
