"""A cluster connection and a network connector of a blocking broker, as threads ask them."""

from __future__ import annotations

import math

from meshq import cluster as trio_cluster
from meshq import network as trio_network
from meshq.blocking._loop_thread import ThreadLoop
from meshq.client import ClusterQueue
from meshq.node import ClusterFigures, NetworkFigures


class ClusterConnection(ClusterFigures):
    """A cluster connection of a broker, returned by ``broker.cluster``.

    What a broker is given as a service is ``meshq.ClusterConnection``.
    """

    def __init__(self, inner: trio_cluster.ClusterConnection, loop: ThreadLoop) -> None:
        super().__init__(inner, loop)
        self._call = loop.call_active

    def wait_for(
        self,
        *,
        nodes: int = 1,
        queue: str | None = None,
        queues: int | None = None,
        consumers: int = 0,
        address: str | None = None,
        exactly: bool = False,
        timeout: float = math.inf,
    ) -> None:
        """Return when so many nodes are known, and so many queues of a name or an address on all of them, with so many
        consumers.

        ``exactly``: when there are not more of them, either; nodes may be more where queues or consumers are counted.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed, or can't be counted.
            CallTimeoutError: the time is up; the error says how far it came.
            NotActiveError: the broker isn't active.
        """
        self._call(
            self._inner.wait_for,
            nodes=nodes,
            queue=queue,
            queues=queues,
            consumers=consumers,
            address=address,
            exactly=exactly,
            timeout=timeout,
        )

    def queue(self, name: str) -> ClusterQueue:
        """Return the queue of a name on all nodes of the broker's clusters; each is asked, for a few seconds at most.

        A node that does not answer is listed, too, with what it has described before and how long ago it was heard.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: no queue can have that name.
            NotActiveError: the broker isn't active.
        """
        return self._call(self._inner.queue, name)


class NetworkConnector(NetworkFigures):
    """A network connector of a broker, returned by ``broker.network``.

    What a broker is given as a service, or by ``add_network``, is ``meshq.NetworkConnector``.
    """

    def __init__(self, inner: trio_network.NetworkConnector, loop: ThreadLoop) -> None:
        super().__init__(inner, loop)
        self._call = loop.call_active

    def wait_for(
        self, *, bridges: int = 1, queue: str | None = None, consumers: int = 0, timeout: float = math.inf
    ) -> None:
        """Return when so many links are up, and so many consumers of a queue are known behind them to which messages
        are forwarded; with 0 ``consumers`` when none is left.

        Interrupted: nothing has changed.
        Raises:
            SettingsError: what is waited for is not allowed.
            CallTimeoutError: the time is up; the error says how far it came.
            NotActiveError: the broker isn't active, or the connector was removed.
        """
        self._call(self._inner.wait_for, bridges=bridges, queue=queue, consumers=consumers, timeout=timeout)
