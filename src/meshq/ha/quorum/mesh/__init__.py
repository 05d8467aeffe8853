"""A quorum of small nodes of our own: witnesses with a journal each, and sessions that ask a majority of them."""

from meshq.ha.quorum.mesh._look import WitnessSight, look, told
from meshq.ha.quorum.mesh._mesh_quorum import MeshQuorum
from meshq.ha.quorum.mesh._quorum_node import QuorumNode, QuorumNodeStatistics

__all__ = ["MeshQuorum", "QuorumNode", "QuorumNodeStatistics", "WitnessSight", "look", "told"]
