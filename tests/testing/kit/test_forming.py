"""What the nodes of a cluster say to each other until it has formed: no more for each link than has to be."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from meshq.cluster._topology_machine import TopologyMachine
from meshq.cluster.grouping import Grouping
from meshq.testing import Cluster
from tests.testing.kit.worlds import in_cluster

NODES = 5
#: Each node has a link to each other one.
LINKS = NODES * (NODES - 1)


def test_news_that_come_while_a_cluster_forms_are_told_in_one_piece(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: Counter[str] = Counter()

    def counted(where: type, name: str) -> None:
        original = getattr(where, name)

        def call(*arguments: Any, **keywords: Any) -> Any:
            counts[name] += 1
            return original(*arguments, **keywords)

        monkeypatch.setattr(where, name, call)

    async def formed(cluster: Cluster) -> None:
        assert len(cluster.alive) == NODES
        await cluster.settled()

    counted(TopologyMachine, "told_to")
    counted(Grouping, "_see")
    in_cluster(formed, nodes=NODES)
    # Each node looks a few times what to tell at the other end of each link, and who there is: not once more for each
    # piece of news from each of the others.
    assert LINKS <= counts["told_to"] < 35 * LINKS
    assert LINKS <= counts["_see"] < 9 * LINKS
