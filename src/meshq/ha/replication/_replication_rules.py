"""The rules by which a node takes part in replication."""

from __future__ import annotations

import attrs

from meshq.abc import QuorumProvider
from meshq.ha.quorum import MajorityVote


@attrs.frozen(kw_only=True)
class HostedAt:
    """Where a backup belongs that another node runs in its process: the URL of its own node, and that of its host."""

    node_url: str
    host_url: str


@attrs.frozen(kw_only=True)
class ReplicationRules:
    """The rules by which a node takes part in replication, from its policy."""

    primary: bool
    group_name: str | None
    cluster_name: str | None
    check_for_live_server: bool
    vote_on_replication_failure: bool
    allow_failback: bool
    restart_backup: bool
    initial_replication_sync_timeout: float
    max_saved_replicated_journals: float
    retry_interval: float
    max_retry_interval: float
    wait_for_activation: bool
    quorum: MajorityVote | QuorumProvider
    coordination_id: str | None
    check_hosts: tuple[str, ...]
    check_hosts_period: float
    check_hosts_timeout: float
    #: The settings that were given, and mean nothing with the quorum.
    ignored: tuple[str, ...]
    #: The node and the host of a backup that is hosted; None: the node has a process of its own.
    hosted: HostedAt | None = None
