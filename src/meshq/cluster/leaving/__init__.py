"""The leaving of nodes: a node hands all over and goes, and others go on without it."""

from meshq.cluster.leaving._departure import Departure, Successor
from meshq.cluster.leaving._drain import Drain, DrainOrder, DrainProgress

__all__ = ["Departure", "Drain", "DrainOrder", "DrainProgress", "Successor"]
