"""Whether two cluster connections of a broker share messages to the same addresses.

A message that both take may be dealt to another node by each of them, and so be there twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from meshq.cluster._settings import ClusterSettings


def overlaps(connections: Sequence[ClusterSettings]) -> list[tuple[str, str, str]]:
    """The names of each two that overlap, with the beginning of an address that both take."""
    found = []
    for first, second in combinations(connections, 2):
        shared = _shared(first, second)
        if shared is not None:
            found.append((first.name, second.name, shared))
    return found


def _shared(first: ClusterSettings, second: ClusterSettings) -> str | None:
    # An address that both take begins with one prefix of each, and both take the longer one of these, too.
    prefixes = (*first.prefixes[0], *second.prefixes[0])
    return next((prefix for prefix in prefixes if first.takes(prefix) and second.takes(prefix)), None)
