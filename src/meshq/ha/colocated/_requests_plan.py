"""Which node is asked to run a backup, and when it is asked again; plain Python, which knows no clock."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, Final

import attrs

from meshq.address import is_name

#: Values of an answer that have other names in it.
_TOLD: Final = {"ready": "mine_ready", "request": "mine_request", "life": "mine_life"}


@attrs.frozen(kw_only=True)
class HostOffer:
    """The answer of a node about the backups that it runs.

    ``backups``: how many there are; ``max_backups``: how many there may be.  ``mine``: the name of the one that it runs
    for the node that asks; empty: it runs none for that node.  ``ready``: that one listens; ``request``: the digest of
    the request which it was begun with; ``life``: that one's, in hexadecimal digits.
    """

    node_id: str
    backups: int
    max_backups: int
    mine: str = ""
    ready: bool = False
    request: str = ""
    life: str = ""

    @classmethod
    def of(cls, node_id: str, told: Mapping[str, Any]) -> HostOffer | None:
        """Read the answer of a node; None: it is none."""
        about: dict[str, Any] = {one.name: told.get(_TOLD.get(one.name, one.name)) for one in attrs.fields(cls)[1:]}
        # A node of an older version does not tell it.
        about["life"] = about["life"] if "mine_life" in told else ""
        if [type(one) for one in about.values()] != [int, int, str, bool, str, str]:
            return None
        if about["backups"] < 0 or about["max_backups"] < 0 or (about["mine"] and not is_name(about["mine"])):
            return None
        return cls(node_id=node_id, **about)


@attrs.frozen(kw_only=True)
class OwnBackups:
    """The backups of a node at other nodes: one is kept, and the rest end.

    ``stale``: the one that is kept was asked for with other settings, and is asked for again where it is.
    """

    kept: HostOffer | None
    surplus: tuple[HostOffer, ...]
    stale: bool = False


def own_backups(offers: Iterable[HostOffer], request: str) -> OwnBackups:
    """Find the backups of the node that asks.  ``request``: the digest of its request.

    One that was asked for with other settings is not kept; of several it is one that is ready.
    """
    mine = [one for one in offers if one.mine]
    right = sorted((one for one in mine if one.request == request), key=lambda one: (not one.ready, one.node_id))
    kept = right[0] if right else None
    return OwnBackups(kept=kept, surplus=tuple(one for one in mine if one is not kept))


def own_replicas(offers: Iterable[HostOffer], request: str, in_sync: str) -> OwnBackups:
    """Find the backups of a node that asks, each with a store of its own.

    ``request``: the digest of its request.  ``in_sync``: the life of its replica that has everything; empty: there is
    none, and nobody knows which store is the newest, so that none of them ends.
    """
    mine = [one for one in offers if one.mine]
    ranked = sorted(mine, key=lambda one: (one.life != in_sync, one.request != request, not one.ready, one.node_id))
    kept = ranked[0] if ranked else None
    known = bool(in_sync) and kept is not None and kept.life == in_sync
    return OwnBackups(
        kept=kept,
        surplus=tuple(one for one in mine if known and one is not kept),
        stale=kept is not None and kept.request != request,
    )


def best_host(own: str, offers: Iterable[HostOffer], refused: Container[str] = ()) -> HostOffer | None:
    """Return the node with the fewest backups of all nodes that have room for another backup; None: no node has room.

    ``refused``: nodes that have refused, and are left out: another one may take what they do not.
    Of several the first one after ``own`` in the circle of ids, so that nodes which ask together ask different ones.
    """
    others = [one for one in offers if one.node_id != own and one.node_id not in refused]
    free = [one for one in others if one.backups < one.max_backups]
    return min(free, key=lambda one: (one.backups, one.node_id < own, one.node_id), default=None)


def host_to_clear(
    own: str, own_room: bool, offers: Iterable[HostOffer], refused: Container[str] = ()
) -> HostOffer | None:
    """Return the node to ask for the place of another one's backup, when no node has room; None: none is asked.

    ``own_room``: whether this node has room for a backup, so that the other one finds a place here.  Without that two
    nodes would take the place from each other for ever.
    """
    others = [one for one in offers if one.node_id != own and one.node_id not in refused]
    full = [one for one in others if one.max_backups and not one.mine]
    return min(full, key=lambda one: (one.node_id < own, one.node_id), default=None) if own_room else None


class RequestTries:
    """Counts the requests of a node, until it has a backup that is ready.

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

    def looked(self, now: float) -> float:
        """Note a look now without a request; return when the next look is due."""
        # Later requests are as much later.
        self._began += self._interval
        return max(self._began + self._tries * self._interval, now) if self._tries else now + self._interval

    def backed(self) -> None:
        """Note that the backup is ready: the next loss of it begins anew."""
        self._tries = 0
