"""Discovery: nodes announce where they are reached.  An announcement is only a hint where to dial."""

from meshq.discovery._acceptor_group import AcceptorGroup, acceptor_groups
from meshq.discovery._broadcast_group import BroadcastGroup
from meshq.discovery._datagram_format import Announcement, ConnectorPair, RefusalReason, announced_connector
from meshq.discovery._discovery_group import DiscoveryGroup, DiscoveryListener, DiscoveryStatistics
from meshq.discovery._endpoint_urls import ENDPOINT_SCHEMES, endpoint_at, refresh_timeout_at
from meshq.discovery._known_nodes_machine import NODES_MAX, DiscoveredNode
from meshq.discovery._settings import DiscoverySettings
from meshq.discovery._shared_directory import SharedDirectory
from meshq.discovery._static_unicast import StaticUnicast
from meshq.discovery._udp_multicast import UDPMulticast
from meshq.discovery._zeroconf import Zeroconf

__all__ = [
    "ENDPOINT_SCHEMES",
    "NODES_MAX",
    "AcceptorGroup",
    "Announcement",
    "BroadcastGroup",
    "ConnectorPair",
    "DiscoveredNode",
    "DiscoveryGroup",
    "DiscoveryListener",
    "DiscoverySettings",
    "DiscoveryStatistics",
    "RefusalReason",
    "SharedDirectory",
    "StaticUnicast",
    "UDPMulticast",
    "Zeroconf",
    "acceptor_groups",
    "announced_connector",
    "endpoint_at",
    "refresh_timeout_at",
]
