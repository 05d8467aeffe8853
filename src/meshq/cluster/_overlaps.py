"""Whether two cluster connections of a broker share messages to the same addresses.

A message that both take may be dealt to another node by each of them, and so be there twice.
"""

from __future__ import annotations

from meshq.cluster._settings import ClusterSettings


def overlap(first: ClusterSettings, second: ClusterSettings) -> str | None:
    """Return the beginning of an address that both cluster connections take; None if there is no such address."""
    # An address that both take begins with one prefix of each, and both take the longer one of these, too.
    prefixes = (*first.prefixes[0], *second.prefixes[0])
    return next((prefix for prefix in prefixes if first.takes(prefix) and second.takes(prefix)), None)
