"""Message groups over all nodes of a cluster: each is consumed on one node at a time."""

from meshq.cluster.grouping._grouping import Grouping

__all__ = ["Grouping"]
