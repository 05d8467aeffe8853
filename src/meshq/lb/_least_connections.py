"""The policy that looks at how many connections each target has."""

from __future__ import annotations

from collections.abc import Sequence

from meshq.abc import BalancerPolicy, BalancerTarget
from meshq.lb._policies import RoundRobin


class LeastConnections(BalancerPolicy):
    """A policy that chooses the target with the fewest connections, and among equal ones the next in turn.

    Only a balancer knows connections; those that it has under way to a target count as well.  For the factory of a
    client all targets are equal, and this is ``RoundRobin``.
    """

    def __init__(self, turn: BalancerPolicy | None = None) -> None:
        self._turn = turn or RoundRobin()

    def begin(self, chance: int) -> BalancerPolicy:
        """Return a copy whose turn begins elsewhere."""
        return LeastConnections(RoundRobin().begin(chance))

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        """Return a target with the fewest connections."""
        if not targets:
            return None
        fewest = min(target.connections for target in targets)
        return self._turn.select([target for target in targets if target.connections == fewest], key)
