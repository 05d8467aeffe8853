"""The nodes of a cluster for the checkers of its history: queues, settings and present counts."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from meshq.settings import AddressSettings
from meshq.testing.history._judged import PlaceCounts, settings_of
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
