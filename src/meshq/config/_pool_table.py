"""The table of a balancer's pool: one of three sources, and the settings that all pools have."""

from __future__ import annotations

from typing import Any

import attrs

from meshq.discovery import DiscoveryGroup
from meshq.errors import SettingsError
from meshq.lb.balancer import ClusterPool, DiscoveryPool, Pool, StaticPool


@attrs.frozen(kw_only=True)
class PoolTable(Pool):
    """The pool of a balancer, from one source: ``static_connectors`` are names of connectors, or URLs;
    ``cluster_connection`` is the name of one of the broker, and ``discovery_group`` (``discovery_group_ref`` is the
    same) that of a group of the file.

    ``user``, ``password``, ``tls``: as whom targets are probed, and whom to believe; unless given, as a node of the
    broker's cluster connection, if there is one.  An empty ``user``: as nobody.  ``insecure``: also over plaintext to
    other machines.  ``check_period``: seconds between two probes of a target.  ``quorum_size``: so many targets have to
    be ready before one is given; ``quorum_timeout``: seconds for which a client waits for that.
    ``local_target_enabled``: the broker itself is a target, too.
    """

    static_connectors: tuple[str, ...] = ()
    cluster_connection: str | None = None
    discovery_group: DiscoveryGroup | None = None
    discovery_group_ref: DiscoveryGroup | None = None

    def pool(self) -> StaticPool | ClusterPool | DiscoveryPool:
        """Return the pool.

        Raises:
            SettingsError: it has no source, or several.
        """
        shared: dict[str, Any] = {field.name: getattr(self, field.name) for field in attrs.fields(Pool)}
        sources = ("static_connectors", "cluster_connection", "discovery_group", "discovery_group_ref")
        given = [name for name in sources if getattr(self, name)]
        if len(given) != 1:
            allowed = "exactly one of static_connectors, cluster_connection and discovery_group"
            raise SettingsError("pool", " and ".join(given) or "no source", allowed)
        if self.static_connectors:
            return StaticPool(self.static_connectors, **shared)
        if self.cluster_connection is not None:
            return ClusterPool(self.cluster_connection, **shared)
        group = self.discovery_group or self.discovery_group_ref
        assert group is not None
        return DiscoveryPool(group, **shared)
