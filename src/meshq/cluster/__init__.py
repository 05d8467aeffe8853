"""Clusters: who is there, who consumes what, and how messages get there."""

from meshq.cluster._cluster_connection import ClusterConnection, PeerStatistics

__all__ = ["ClusterConnection", "PeerStatistics"]
