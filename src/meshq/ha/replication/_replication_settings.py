"""The policies of a pair in which one node follows the log of the other."""

from __future__ import annotations

import math
from contextlib import AbstractAsyncContextManager
from typing import Any, ClassVar

import attrs

from meshq.abc import Activation, HAPolicy, NodeControl, QuorumProvider
from meshq.address import check_name
from meshq.errors import SettingsError
from meshq.ha._hosts_plan import check_hosts_of
from meshq.ha._scale_down import ScaleDown, check_scale_down, never_serves
from meshq.ha.quorum import MajorityVote, node_id_of
from meshq.ha.replication._replication_rules import ReplicationRules
from meshq.settings import in_range, is_bool

RETRY_S = (0.001, 86_400.0)
SYNC_S = (0.001, math.inf)
SAVED = (0, math.inf)


def _name_or_none(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is not None:
        check_name(attribute.name, value)


def _quorum(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if not isinstance(value, MajorityVote | QuorumProvider):
        raise SettingsError(attribute.name, value, "MajorityVote() or a quorum provider, such as MeshQuorum")
    if isinstance(value, MajorityVote) and value.lease != MajorityVote().lease:
        # Who serves asks nobody while its replica is there: there is no lease that could be longer or shorter.
        allowed = f"MajorityVote() with a lease of {MajorityVote().lease:g} s in this version, or a quorum provider"
        raise SettingsError(attribute.name, value, allowed)


def _check(policy: ReplicationPrimary | ReplicationBackup) -> None:
    if policy.max_retry_interval < policy.retry_interval:
        allowed = f"seconds from the retry_interval of {policy.retry_interval:g} s on"
        raise SettingsError("max_retry_interval", policy.max_retry_interval, allowed)
    if policy.check_hosts and isinstance(policy.quorum, MajorityVote):
        raise SettingsError(
            "check_hosts", policy.check_hosts, "() unless quorum= is a quorum provider, in this version"
        )


def _rules(policy: ReplicationPrimary | ReplicationBackup, **of_its_own: Any) -> ReplicationRules:
    shared = {one.name for one in attrs.fields(ReplicationRules)} & {one.name for one in attrs.fields(type(policy))}
    of_votes = ("check_for_live_server", "vote_on_replication_failure")
    by_vote = isinstance(policy.quorum, MajorityVote)
    ignored = () if by_vote else tuple(name for name in of_votes if getattr(policy, name, False))
    return ReplicationRules(ignored=ignored, **{name: getattr(policy, name) for name in shared}, **of_its_own)


def _join(rules: ReplicationRules, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
    from meshq.ha.replication._joined import joined

    if control.data_dir is None:
        raise SettingsError("data_dir", None, "the directory of the node's own store")
    return joined(rules, control, control.data_dir)


@attrs.frozen(kw_only=True)
class ReplicationPrimary(HAPolicy):
    """The policy of the first node of a pair in which the other one has a copy of the store and keeps it up to date.

    ``group_name``: only a backup with the same name, or without one, becomes the replica.  ``cluster_name``: the
    cluster connection whose nodes are asked, and whose user and password a replica needs; None: the first one.
    ``check_for_live_server``: before it serves it asks its ``static_connectors`` whether another node serves for it,
    becomes the replica of that node, and gets its role back once it is in sync.  ``initial_replication_sync_timeout``:
    seconds for which the end of a sync holds confirms.  ``max_saved_replicated_journals``: so many of the stores that a
    copy has taken the place of are kept; ``inf``: all.  ``retry_interval``, ``max_retry_interval``: the first and the
    longest pause between two tries of a node that follows nobody.  ``wait_for_activation``: the broker's block is
    entered when the node is active, not already when it waits.

    ``quorum``: who decides which node serves: ``MajorityVote()``, with which the other nodes of the cluster vote when
    the two lose each other (where there are none the two decide alone), or a quorum provider such as ``MeshQuorum``,
    without whose lock no node serves; nodes with a provider look for the one that serves in any case, and
    ``check_for_live_server`` and ``vote_on_replication_failure`` are ignored, with a warning.  ``coordination_id``: a
    text that peers have in common, nodes of one kind of which one serves; needs a provider, and their node id is made
    of it.  ``vote_on_replication_failure``: a node that serves, and loses its replica and then the vote, steps back
    until it wins one; otherwise it stays, and confirms nothing until it has won.
    ``check_hosts``: with a provider, hosts (``"host:port"``) of which one answers within ``check_hosts_timeout`` unless
    this node is cut off; a node that is cut off does not serve.  They are asked every ``check_hosts_period``.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "replication_primary"

    group_name: str | None = attrs.field(default=None, validator=_name_or_none)
    cluster_name: str | None = attrs.field(default=None, validator=_name_or_none)
    check_for_live_server: bool = attrs.field(default=False, validator=is_bool)
    initial_replication_sync_timeout: float = attrs.field(default=30.0, validator=in_range(*SYNC_S))
    vote_on_replication_failure: bool = attrs.field(default=False, validator=is_bool)
    quorum: MajorityVote | QuorumProvider = attrs.field(default=MajorityVote(), validator=_quorum)
    coordination_id: str | None = attrs.field(default=None)
    wait_for_activation: bool = attrs.field(default=True, validator=is_bool)
    max_saved_replicated_journals: float = attrs.field(default=2, validator=in_range(*SAVED, whole=True))
    retry_interval: float = attrs.field(default=0.5, validator=in_range(*RETRY_S))
    max_retry_interval: float = attrs.field(default=5.0, validator=in_range(*RETRY_S))
    check_hosts: tuple[str, ...] = attrs.field(default=(), converter=check_hosts_of)
    check_hosts_period: float = attrs.field(default=10.0, validator=in_range(*RETRY_S))
    check_hosts_timeout: float = attrs.field(default=1.0, validator=in_range(*RETRY_S))

    def __attrs_post_init__(self) -> None:
        _check(self)
        if self.coordination_id is not None:
            node_id_of(self.coordination_id)
            if isinstance(self.quorum, MajorityVote):
                allowed = "None, unless quorum= is a quorum provider"
                raise SettingsError("coordination_id", self.coordination_id, allowed)

    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Take part in replication, as the node that serves unless another one does."""
        return _join(_rules(self, primary=True, allow_failback=True, restart_backup=True), control)


@attrs.frozen(kw_only=True)
class ReplicationBackup(HAPolicy):
    """The policy of a node that follows the log of a primary, and takes over when the primary is gone.

    It asks the ``static_connectors`` of its cluster connection one after the other until one of them serves and has no
    replica.  ``group_name``: only a primary with the same name, or without one; None: any.  ``allow_failback``: once it
    serves, it gives the role back to a primary that has come back and is in sync.  ``restart_backup``: it becomes the
    replica of that one; otherwise its broker stops.  ``scale_down``: it never serves clients: what it takes over it
    hands over to another node, and follows its primary again once that is back, which has to look for it
    (``check_for_live_server``).  All other settings are as of ``ReplicationPrimary``.

    Raises:
        SettingsError: a setting isn't allowed.
    """

    kind: ClassVar[str] = "replication_backup"

    group_name: str | None = attrs.field(default=None, validator=_name_or_none)
    cluster_name: str | None = attrs.field(default=None, validator=_name_or_none)
    allow_failback: bool = attrs.field(default=False, validator=is_bool)
    max_saved_replicated_journals: float = attrs.field(default=2, validator=in_range(*SAVED, whole=True))
    restart_backup: bool = attrs.field(default=True, validator=is_bool)
    initial_replication_sync_timeout: float = attrs.field(default=30.0, validator=in_range(*SYNC_S))
    vote_on_replication_failure: bool = attrs.field(default=False, validator=is_bool)
    quorum: MajorityVote | QuorumProvider = attrs.field(default=MajorityVote(), validator=_quorum)
    scale_down: ScaleDown | None = attrs.field(default=None, validator=check_scale_down)
    wait_for_activation: bool = attrs.field(default=False, validator=is_bool)
    retry_interval: float = attrs.field(default=0.5, validator=in_range(*RETRY_S))
    max_retry_interval: float = attrs.field(default=5.0, validator=in_range(*RETRY_S))
    check_hosts: tuple[str, ...] = attrs.field(default=(), converter=check_hosts_of)
    check_hosts_period: float = attrs.field(default=10.0, validator=in_range(*RETRY_S))
    check_hosts_timeout: float = attrs.field(default=1.0, validator=in_range(*RETRY_S))

    def __attrs_post_init__(self) -> None:
        _check(self)
        never_serves(self.scale_down, waits=self.wait_for_activation)

    def activation(self, control: NodeControl) -> AbstractAsyncContextManager[Activation]:
        """Take part in replication, as the node that follows."""
        return _join(_rules(self, primary=False, check_for_live_server=True, coordination_id=None), control)
