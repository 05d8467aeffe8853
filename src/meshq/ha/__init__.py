"""High availability: the policies by which a node is active, and the order to scale down at its stop."""

from meshq.ha._live_only import LiveOnly
from meshq.ha._scale_down import ScaleDown
from meshq.ha._shared_directory import SharedDirectory
from meshq.ha._store_claim import StoreClaim
from meshq.ha._store_claim_plan import MARK_S, StoreFacts, doubts, told
from meshq.ha._store_settings import SharedStoreBackup, SharedStorePrimary
from meshq.ha.colocated import Colocated
from meshq.ha.quorum import MajorityVote, Vote, VoteSchedule
from meshq.ha.quorum.mesh import MeshQuorum, QuorumNode, QuorumNodeStatistics
from meshq.ha.quorum.zookeeper import ZooKeeperQuorum
from meshq.ha.replication import ReplicationBackup, ReplicationPrimary

__all__ = [
    "MARK_S",
    "Colocated",
    "LiveOnly",
    "MajorityVote",
    "MeshQuorum",
    "QuorumNode",
    "QuorumNodeStatistics",
    "ReplicationBackup",
    "ReplicationPrimary",
    "ScaleDown",
    "SharedDirectory",
    "SharedStoreBackup",
    "SharedStorePrimary",
    "StoreClaim",
    "StoreFacts",
    "Vote",
    "VoteSchedule",
    "ZooKeeperQuorum",
    "doubts",
    "told",
]
