"""The destinations that pass a network connector: excluded, with demand, or without demand."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from meshq.network._destinations import Destinations


@attrs.frozen(kw_only=True)
class InclusionPlan:
    """The destinations that pass a connector.

    ``excluded`` beats ``statically_included``, which beats ``dynamically_included``; without any of the last every
    destination passes with demand.
    """

    dynamically_included: Sequence[Destinations] = ()
    excluded: Sequence[Destinations] = ()
    statically_included: Sequence[Destinations] = ()

    def excludes(self, routing: str, address: str) -> bool:
        """Whether a destination never passes."""
        return any(one.match(routing, address) for one in self.excluded)

    def passes(self, routing: str, address: str) -> bool:
        """Whether a destination passes when there is demand."""
        if self.excludes(routing, address):
            return False
        included = (*self.dynamically_included, *self.statically_included)
        return not self.dynamically_included or any(one.match(routing, address) for one in included)

    @property
    def static(self) -> tuple[Destinations, ...]:
        """The destinations that pass without demand, in the order of the settings, each once."""
        return tuple(
            one for one in dict.fromkeys(self.statically_included) if not self.excludes(one.routing, one.pattern)
        )
