"""Clusters: membership, remote bindings, and the forwarding of messages between nodes."""

from meshq.cluster._cluster_connection import ClusterConnection
from meshq.cluster._peer_statistics import PeerStatistics
from meshq.cluster._remote_queue import RemoteQueue
from meshq.cluster._settings import LoadBalancing
from meshq.cluster.leaving import Departure, Drain, DrainOrder, DrainProgress, Successor

__all__ = [
    "ClusterConnection",
    "Departure",
    "Drain",
    "DrainOrder",
    "DrainProgress",
    "LoadBalancing",
    "PeerStatistics",
    "RemoteQueue",
    "Successor",
]
