"""Which node is asked to run a backup, and when it is asked again; plain Python, which knows no clock."""

from __future__ import annotations

from collections.abc import Iterable

import attrs


@attrs.frozen(kw_only=True)
class HostOffer:
    """The answer of a node about the backups that it runs.

    ``backups``: how many there are; ``max_backups``: how many there may be.  ``mine``: the name of the one that it runs
    for the node that asks; empty: it runs none for that node.
    """

    node_id: str
    backups: int
    max_backups: int
    mine: str = ""


def best_host(own: str, offers: Iterable[HostOffer]) -> HostOffer | None:
    """Return the node with the fewest backups of all nodes that have room for another backup; None: no node has room.

    Of several the first one after ``own`` in the circle of ids, so that nodes which ask together ask different ones.
    """
    free = [one for one in offers if one.backups < one.max_backups and one.node_id != own]
    return min(free, key=lambda one: (one.backups, one.node_id < own, one.node_id), default=None)


def host_to_clear(own: str, own_room: bool, offers: Iterable[HostOffer]) -> HostOffer | None:
    """Return the node to ask for the place of another one's backup, when no node has room; None: none is asked.

    ``own_room``: whether this node has room for a backup, so that the other one finds a place here.  Without that two
    nodes would take the place from each other for ever.
    """
    full = [one for one in offers if one.max_backups and one.node_id != own and not one.mine]
    return min(full, key=lambda one: (one.node_id < own, one.node_id), default=None) if own_room else None


class RequestTries:
    """Counts the requests of a node that has no backup.

    ``retries``: so many follow the first one, ``interval`` seconds apart.
    """

    def __init__(self, retries: float, interval: float) -> None:
        self._retries = retries
        self._interval = interval
        self._tries = 0
        self._began = 0.0

    @property
    def over(self) -> bool:
        """Whether the tries are used up."""
        return self._tries > self._retries

    def tried(self, now: float) -> float:
        """Note a request that was begun now; return when the next one is due."""
        if self._tries == 0:
            self._began = now
        self._tries += 1
        # Counted from the first one: how long an answer takes moves none of the others, as long as it is less.
        return max(self._began + self._tries * self._interval, now)

    def backed(self) -> None:
        """Note that a node runs the backup: the next loss of it begins anew."""
        self._tries = 0
