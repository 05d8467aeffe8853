"""Clusters: membership, remote bindings, and the forwarding of messages between nodes."""

from meshq.cluster._cluster_connection import ClusterConnection
from meshq.cluster._peer_statistics import PeerStatistics
from meshq.cluster._remote_queue import RemoteQueue
from meshq.cluster._settings import ClusterSettings, LoadBalancing, NodeLogin
from meshq.cluster.leaving import Departure, Drain, DrainOrder, DrainProgress, HandoverLinks, Successor, check_reach

__all__ = [
    "ClusterConnection",
    "ClusterSettings",
    "Departure",
    "Drain",
    "DrainOrder",
    "DrainProgress",
    "HandoverLinks",
    "LoadBalancing",
    "NodeLogin",
    "PeerStatistics",
    "RemoteQueue",
    "Successor",
    "check_reach",
]
