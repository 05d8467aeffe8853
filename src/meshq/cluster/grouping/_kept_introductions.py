"""The record of who has introduced itself to a node, written when it has changed."""

from __future__ import annotations

from collections.abc import Mapping

from meshq.abc import PinnedGroups
from meshq.cluster.grouping._letter import kept

#: By members that nodes knew: these nodes, each with its life.
Introduced = Mapping[frozenset[str], Mapping[str, str]]


class KeptIntroductions:
    """The introductions as they were written last in this life."""

    def __init__(self, groups: PinnedGroups) -> None:
        self._groups = groups
        # None: nothing was written yet.
        self._last: Introduced | None = None

    def keep(self, introduced: Introduced) -> None:
        """Have the introductions written, unless they are the ones that were written last."""
        if introduced != self._last:
            self._last = introduced
            self._groups.keep_introduced(*kept(introduced))
