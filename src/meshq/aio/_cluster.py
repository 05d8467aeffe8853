"""A cluster connection and a network connector of a broker for asyncio, as tasks ask them."""

from __future__ import annotations

from typing import Final

from meshq import cluster as trio_cluster
from meshq import network as trio_network
from meshq.aio._loop_thread import TaskLoop, forwarded
from meshq.node import ClusterFigures, NetworkFigures


class ClusterConnection(ClusterFigures):
    """A cluster connection of a broker, returned by ``broker.cluster``.

    What a broker is given as a service is ``meshq.ClusterConnection``.
    """

    def __init__(self, inner: trio_cluster.ClusterConnection, loop: TaskLoop) -> None:
        super().__init__(inner, loop)
        self._call = loop.call_active

    wait_for: Final = forwarded(trio_cluster.ClusterConnection.wait_for)
    queue: Final = forwarded(trio_cluster.ClusterConnection.queue)


class NetworkConnector(NetworkFigures):
    """A network connector of a broker, returned by ``broker.network``.

    What a broker is given as a service, or by ``add_network``, is ``meshq.NetworkConnector``.
    """

    def __init__(self, inner: trio_network.NetworkConnector, loop: TaskLoop) -> None:
        super().__init__(inner, loop)
        self._call = loop.call_active

    wait_for: Final = forwarded(trio_network.NetworkConnector.wait_for)
