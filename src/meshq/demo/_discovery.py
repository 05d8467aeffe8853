"""How the nodes of the demo find each other: by the ports of all, by multicast, or by a shared directory."""

from __future__ import annotations

from pathlib import Path
from typing import Final, Literal

from meshq.abc import BroadcastEndpoint, Service
from meshq.cluster import ClusterConnection
from meshq.demo._page_format import LARGE_BYTES
from meshq.demo._settings import CLUSTER, CONNECTOR, LINKS
from meshq.discovery import BroadcastGroup, DiscoveryGroup, SharedDirectory, UDPMulticast

#: What carries announcements.
Discovery = Literal["multicast", "directory"]
MULTICAST: Final = "multicast"
DIRECTORY: Final = "directory"
#: The multicast group; its datagrams leave and arrive by the loopback interface only.
GROUP: Final = "231.7.7.7"
LOOPBACK: Final = "127.0.0.1"
CHANNEL: Final = "demo"
#: Seconds between two announcements of a node, and the silence after which a node is dropped.
PERIOD_S: Final = 0.5
REFRESH_S: Final = 3.0


def place_of(discovery: Discovery, data_dir: str, port: int) -> str:
    """Return the place that all nodes are told: a port of the multicast group, or a directory."""
    return f"{MULTICAST}:{port}" if discovery == MULTICAST else f"{DIRECTORY}:{Path(data_dir) / 'members'}"


def endpoint_at(place: str) -> BroadcastEndpoint:
    """Return the endpoint at a place."""
    kind, _, where = place.partition(":")
    if kind == MULTICAST:
        return UDPMulticast(GROUP, int(where), bind_address=LOOPBACK)
    return SharedDirectory(where, CHANNEL)


def discovering(place: str) -> list[Service]:
    """Return the services of a node that is told nothing but a place."""
    endpoint = endpoint_at(place)
    group = DiscoveryGroup(CHANNEL, endpoint, refresh_timeout=REFRESH_S)
    return [
        BroadcastGroup(CHANNEL, endpoint, connectors=[CONNECTOR], broadcast_period=PERIOD_S),
        ClusterConnection(CLUSTER, connector=CONNECTOR, discovery=group, min_large_message_size=LARGE_BYTES, **LINKS),
    ]
