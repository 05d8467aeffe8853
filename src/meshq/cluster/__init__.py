"""Clusters: membership, remote bindings, and the forwarding of messages between nodes."""

from meshq.cluster._cluster_connection import ClusterConnection, PeerStatistics
from meshq.cluster._settings import LoadBalancing

__all__ = ["ClusterConnection", "LoadBalancing", "PeerStatistics"]
