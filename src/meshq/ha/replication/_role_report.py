"""The role of a node that replicates, as its broker shows it."""

from __future__ import annotations

from meshq.abc import RoleMember, RoleReport
from meshq.ha.replication._acting_side import ActingSide
from meshq.ha.replication._follower import Follower
from meshq.ha.replication._standing_format import Standing


def role_report(
    before: RoleReport,
    own: RoleMember,
    acting_side: ActingSide,
    follower: Follower | None,
    standing: Standing,
    *,
    phase: str,
    reason: str,
    last_error: str,
) -> RoleReport:
    """Return the report that takes the place of another one; ``own``: the node itself."""
    term = acting_side.term
    node = follower.node if follower is not None and follower.following.state != "ended" else None
    acting = None
    if term is not None:
        acting = RoleMember(name=own.name, url=own.url, epoch=term.epoch)
    elif node is not None:
        acting = RoleMember(name=node.name, url=node.url, epoch=node.epoch)
    told = follower.members if follower is not None and node is not None else standing.members
    replicas = acting_side.replicas()
    in_sync = tuple(one.name for one in replicas if one.in_sync)
    behind = follower.following.position - follower.durable if follower is not None and node is not None else 0
    return RoleReport(
        role="backup" if term is None else "primary",
        phase=phase,
        reason=reason or before.reason,
        epoch=acting.epoch if acting is not None else max(before.epoch, standing.epoch),
        acting=acting,
        waiting=tuple(RoleMember(name=one.name, url=one.url) for one in replicas if not one.dropped_reason),
        in_sync=(own.name, *in_sync) if term is not None else told,
        replicas=replicas,
        records_behind=behind,
        bytes_behind=follower.bytes_behind if behind and follower is not None else 0,
        unprotected=term is not None and term.serving and not in_sync,
        last_error=last_error,
    )
