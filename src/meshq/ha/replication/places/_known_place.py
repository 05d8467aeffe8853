"""The place of a replica that no operator has named: its primary keeps it on its disk."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import attrs

from meshq.ha.replication._replica_machine import EPOCHS_MAX
from meshq.ha.replication._standing_format import Standing
from meshq.wire import Replicate


class KnownPlace:
    """The place of the replica that another node hosts, so that a primary which comes back finds it.

    One that has lost its memory is told by that replica, where that serves for it and asks whether the node does, too.

    ``standing``: returns the memory of the node; ``change``: changes that durably, and returns whether it could.
    ``node_id``: returns the id for which the node would serve; empty: it has none yet.
    """

    def __init__(
        self,
        standing: Callable[[], Standing],
        change: Callable[[Callable[[Standing], Standing]], Awaitable[bool]],
        node_id: Callable[[], bytes],
    ) -> None:
        self._standing = standing
        self._change = change
        self._node_id = node_id
        # Where a hosted replica serves that has asked this node in this life.
        self._heard = ""

    @property
    def urls(self) -> tuple[str, ...]:
        """The place that is remembered, if there is one, and the one from which the node was asked."""
        return tuple(place for place in dict.fromkeys((self._standing().place, self._heard)) if place)

    def hear(self, wanted: Replicate) -> None:
        """Note from where a node asks, if it is a hosted one that serves for this node, in a term as late or later."""
        if serves_instead(wanted, self._standing(), self._node_id()):
            self._heard = hosted_place(wanted)

    def before(self, url: str) -> Standing:
        """Return the memory with which a node is followed: with its place, if that was heard of and is followed."""
        standing = self._standing()
        return attrs.evolve(standing, place=url) if url == self._heard else standing

    async def keep(self, wanted: Replicate, lasts: Callable[[], bool], told: Callable[[bool], None]) -> None:
        """Remember the place of a replica instead of that of the one before, as long as the replica ``lasts``.

        The writes of replicas that have left come first, so that none comes later.  ``told``: whether that could be
        done; it is written only if the disk may say anything else.

        Checkpoint: always.
        Cancellation: it is remembered or not.
        """
        place = hosted_place(wanted)
        self._heard = ""

        def kept(before: Standing) -> Standing:
            return attrs.evolve(before, place=place) if lasts() and before.place != place else before

        told(await self._change(kept))


def hosted_place(wanted: Replicate) -> str:
    """Return the place of a replica that another node hosts; empty: an operator has chosen its place, and knows it."""
    return wanted.place if wanted.host else ""


def serves_instead(wanted: Replicate, standing: Standing, node_id: bytes) -> bool:
    """Whether a node that asks is a hosted backup which serves for a node, in a term as late as that knows, or later.

    ``standing``, ``node_id``: what the node that is asked remembers, and its id.
    """
    known = max(standing.epoch, standing.named)
    serves = wanted.acts and bool(hosted_place(wanted)) and known <= wanted.epoch < EPOCHS_MAX
    return serves and bool(node_id) and wanted.node_id == node_id
