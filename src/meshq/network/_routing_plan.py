"""At which priority messages go over a link."""

from __future__ import annotations

from typing import Final

#: The priority of a network consumer one hop away, if far ones come after near ones.
NEAREST_PRIORITY: Final = -5


def consumer_priority(hops: int, *, decrease: bool) -> int:
    """Return the priority of a network consumer whose demand is ``hops`` links away."""
    return NEAREST_PRIORITY - (hops - 1) if decrease else 0
