"""The place of a replica that no operator has named: its primary keeps it on its disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from meshq.ha.replication._standing_format import Standing
from meshq.wire import Replicate


class KnownPlace:
    """The place of the replica that another node hosts, so that a primary which comes back finds it.

    ``standing``: returns the memory of the node; ``change``: changes that durably, and returns whether it could.
    """

    def __init__(
        self,
        standing: Callable[[], Standing],
        change: Callable[[Callable[[Standing], Standing]], Awaitable[bool]],
    ) -> None:
        self._standing = standing
        self._change = change

    @property
    def urls(self) -> tuple[str, ...]:
        """The place that is remembered, if there is one."""
        place = self._standing().place
        return (place,) if place else ()

    async def keep(self, wanted: Replicate, lasts: Callable[[], bool], told: Callable[[bool], None]) -> None:
        """Remember the place of a replica instead of that of the one before, as long as the replica ``lasts``.

        The writes of replicas that have left come first, so that none comes later.  ``told``: whether that could be
        done; it is written only if the disk may say anything else.

        Checkpoint: always.
        Cancellation: it is remembered or not.
        """
        place = hosted_place(wanted)

        def kept(before: Standing) -> Standing:
            return attrs.evolve(before, place=place) if lasts() and before.place != place else before

        told(await self._change(kept))


def hosted_place(wanted: Replicate) -> str:
    """Return the place of a replica that another node hosts; empty: an operator has chosen its place, and knows it."""
    return wanted.place if wanted.host else ""
