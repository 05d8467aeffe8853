"""The policy of a backup that a host runs with a store of its own."""

from __future__ import annotations

import attrs

from meshq.ha.replication import HostedAt, ReplicationBackup


@attrs.frozen(kw_only=True)
class HostedReplica(ReplicationBackup):
    """A ``ReplicationBackup`` in the process of another node, which asks its own node only, and names its host.

    Its node remembers its place, which no operator has chosen.
    """

    hosted: HostedAt | None = attrs.field(default=None)

    @classmethod
    def of(cls, policy: ReplicationBackup, hosted: HostedAt) -> HostedReplica:
        """Return a policy with the settings of another one, whose broker starts without waiting to serve."""
        given = {one.name: getattr(policy, one.name) for one in attrs.fields(type(policy)) if one.init}
        return cls(**{**given, "wait_for_activation": False, "hosted": hosted})
