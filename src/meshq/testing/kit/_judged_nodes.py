"""The nodes of a cluster for the checkers of its history: queues, settings and present counts."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from meshq.settings import AddressSettings
from meshq.testing.history._final_counts import FinalCounts
from meshq.testing.history._judged import PlaceCounts, settings_of
from meshq.testing.history._judged_stores import digests_of, recoveries_of
from meshq.testing.kit._cluster_settings import ClusterPlan
from meshq.testing.kit._node import KitNode
from meshq.testing.kit._pairs import store_of
from meshq.testing.kit._views import counts_of


@attrs.frozen
class JudgedNodes:
    """The nodes of a cluster, and the settings with which it was made."""

    settings: ClusterPlan
    nodes: Mapping[str, KitNode]

    def judged_queues(self) -> dict[str, AddressSettings]:
        """Return the queues of the cluster, with their settings."""
        return settings_of(self.settings.settings_of_addresses(), self.settings.queues)

    def judged_counts(self) -> tuple[dict[str, dict[str, PlaceCounts]], int] | None:
        """Return the counts by queue and store, and the messages under way; None: some store is served by no node."""
        serving = {store_of(name): node for name, node in self.nodes.items() if node.state == "active"}
        if set(serving) != set(self.settings.primaries):
            return None
        found: dict[str, dict[str, PlaceCounts]] = {}
        total = 0
        for store, node in serving.items():
            assert node.broker is not None
            counts, under_way = counts_of(node.broker, self.settings.queues)
            total += under_way
            for queue, place in counts.items():
                found.setdefault(queue, {})[store] = place
        return found, total

    def store_of(self, node: str) -> str:
        """Return the name of the primary with which a node shares its store."""
        return store_of(node)

    def node_at(self, host: str) -> str | None:
        """Return the name of the node on a host; None: it is no node of this cluster."""
        return next((name for name, node in self.nodes.items() if node.host == host), None)

    def look_at_nodes(self, final: FinalCounts) -> None:
        """Note the copies of pairs by replication, the recoveries of each disk, and the memory of each broker."""
        disks = {id(node.machine.disk): (name, node.machine.disk) for name, node in self.nodes.items()}
        for name, disk in disks.values():
            for way, state in recoveries_of(disk):
                final.recovered(f"the store of {name}", way, state)
        for name, node in self.nodes.items():
            if node.state != "active" or node.broker is None:
                continue
            figures = node.broker.statistics()
            final.nodes.bounds.append((f"bytes of memory of {name}", figures.memory_used, figures.memory_limit))
            if self.settings.ha == "replication":
                in_sync = [replica.name for replica in node.broker.ha.replicas if replica.in_sync]
                same = [name, *(other for other in in_sync if other in self.nodes)]
                final.nodes.copies[store_of(name)] = {one: digests_of(self.nodes[one].machine.disk) for one in same}
