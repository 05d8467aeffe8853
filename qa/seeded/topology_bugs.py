"""Seeded bugs of topology, for the simulation of a mesh."""

from __future__ import annotations

from typing import Final

from qa.seeded.bug import Bug

TOPOLOGY_BUGS: Final = (
    Bug(
        name="leave it at the older version of a node that was told of",
        function="meshq.broker:TopologyFeed.flush",
        old="if self._told.get(node_id) != one]",
        new="if node_id not in self._told]",
        checkers=("Q14",),
        mesh=True,
    ),
    Bug(
        name="keep a node that has left because somebody told of it once",
        function="meshq.cluster:TopologyMachine.tell",
        old="{two.about.node_id: two for two in nodes if two.distance > 0}",
        new=(
            "{**(getattr(self._tellers.get(teller), 'told', None) or {}),"
            " **{two.about.node_id: two for two in nodes if two.distance > 0}}"
        ),
        checkers=("Q14",),
        mesh=True,
    ),
    Bug(
        name="believe what others say of oneself",
        function="meshq.cluster:TopologyMachine._hearsay",
        old="if node_id in (self._own.node_id, teller.node_id) or",
        new="if node_id == teller.node_id or",
        checkers=("Q14", "RemoteProtocolError"),
        mesh=True,
    ),
    Bug(
        name="begin at the first node, whatever the policy of a client chooses",
        function="meshq.client:BalancedOrder.order",
        old="first = others.index(self._chosen) if self._chosen in others else 0",
        new="first = 0",
        checkers=("Q14",),
        mesh=True,
    ),
)
