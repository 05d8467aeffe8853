"""A cluster connection of a blocking broker, as threads ask it."""

from __future__ import annotations

import math

from meshq import cluster as trio_cluster
from meshq.blocking._loop_thread import ThreadLoop
from meshq.cluster import PeerStatistics


class ClusterConnection:
    """A cluster connection of a broker, returned by ``broker.cluster``.

    What a broker is given as a service is ``meshq.ClusterConnection``.
    """

    def __init__(self, inner: trio_cluster.ClusterConnection, loop: ThreadLoop) -> None:
        self.name: str = inner.name
        self._inner = inner
        self._loop = loop

    def __repr__(self) -> str:
        return repr(self._inner)

    def peers(self) -> list[PeerStatistics]:
        """Return a record of each other node."""

        async def look() -> list[PeerStatistics]:
            return self._inner.peers()

        return self._loop.call(look)

    def nodes(self) -> int:
        """The number of connected and known nodes, including this node."""

        async def look() -> int:
            return self._inner.nodes()

        return self._loop.call(look)

    def consumers(self, queue: str) -> int:
        """The number of consumers of a queue of this name, on this node and on the known nodes.

        Raises:
            NotActiveError: the broker isn't active.
        """

        async def look() -> int:
            return self._inner.consumers(queue)

        return self._loop.call(look)

    def wait_for(
        self, *, nodes: int = 1, queue: str | None = None, consumers: int = 0, timeout: float = math.inf
    ) -> None:
        """Return when so many nodes are known, and so many consumers of a queue on all of them.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed, or can't be counted.
            CallTimeoutError: the time is up; the error says how far it came.
            NotActiveError: the broker isn't active.
        """
        self._loop.call(self._inner.wait_for, nodes=nodes, queue=queue, consumers=consumers, timeout=timeout)
