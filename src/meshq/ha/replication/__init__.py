"""Replication: a pair of nodes, each with a store of its own, of which one follows the log of the other."""

from meshq.ha.replication._node_directory import NodeDirectory
from meshq.ha.replication._replication_rules import HostedAt
from meshq.ha.replication._replication_settings import ReplicationBackup, ReplicationPrimary

__all__ = ["HostedAt", "NodeDirectory", "ReplicationBackup", "ReplicationPrimary"]
