"""Clusters: who is there, who consumes what, and how messages get there."""

from meshq.cluster._cluster_connection import ClusterConnection, PeerStatistics
from meshq.cluster._overlaps import overlaps

__all__ = ["ClusterConnection", "PeerStatistics", "overlaps"]
