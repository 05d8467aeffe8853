"""The run of a broker: its turns as the active node, and how it is seen."""

from meshq.node.terms._guarded_links import GuardedLink, GuardedNetwork, GuardedStream
from meshq.node.terms._high_availability import HighAvailability
from meshq.node.terms._node_term import NodeTerm

__all__ = ["GuardedLink", "GuardedNetwork", "GuardedStream", "HighAvailability", "NodeTerm"]
