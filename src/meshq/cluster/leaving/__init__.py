"""The leaving of nodes: a node hands all over and goes, and others go on without it."""

from meshq.cluster.leaving._departure import Departure, Successor
from meshq.cluster.leaving._drain import Drain, DrainProgress
from meshq.cluster.leaving._handover_links import HandoverLinks, check_reach
from meshq.cluster.leaving._target_search import DrainOrder, LeavingNode

__all__ = [
    "Departure",
    "Drain",
    "DrainOrder",
    "DrainProgress",
    "HandoverLinks",
    "LeavingNode",
    "Successor",
    "check_reach",
]
