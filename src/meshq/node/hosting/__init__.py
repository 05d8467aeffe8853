"""Nodes that run the backups of other nodes, and nodes that ask for one."""

from meshq.node.hosting._hosted_backup import HostedBackup
from meshq.node.hosting._requesters import requesters

__all__ = ["HostedBackup", "requesters"]
