"""The nodes of a cluster, as programs see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import attrs

from meshq.abc import ToldNode
from meshq.client.link._events import ConnectionEvent


@attrs.frozen(kw_only=True)
class TopologyNode:
    """A node of a cluster.

    ``primary``, ``backup``: the URLs at which the node and its backup are reached, without options; empty: none is
    known.  ``distance``: the number of links to the node from the node that tells of it, 0 for that one itself.
    """

    #: Hexadecimal.
    node_id: str
    name: str
    primary: str
    backup: str
    distance: int


def topology_of(nodes: Iterable[ToldNode]) -> tuple[TopologyNode, ...]:
    """Return nodes as programs see them, in order."""
    return tuple(
        TopologyNode(
            node_id=one.about.node_id.hex(),
            name=one.about.name,
            primary=one.about.primary,
            backup=one.about.backup,
            distance=one.distance,
        )
        for one in nodes
    )


@attrs.frozen(kw_only=True)
class TopologyChanged(ConnectionEvent):
    """The client has been told of a change of its cluster.

    ``joined``: nodes that are there, and were not; at the client's first node all the others.  ``left``: nodes that are
    gone.  ``changed``: nodes that are at another place or have another backup, and other nodes that began another life.
    """

    code: ClassVar[str] = "topology"

    joined: tuple[TopologyNode, ...] = ()
    left: tuple[TopologyNode, ...] = ()
    changed: tuple[TopologyNode, ...] = ()


def topology_changed(
    before: Sequence[ToldNode], now: Sequence[ToldNode], *, at: float, peer: str
) -> TopologyChanged | None:
    """Compare two topologies; None: they differ in distances only."""
    old = {one.about.node_id: one for one in before}
    new = {one.about.node_id: one for one in now}
    joined = [one for node_id, one in new.items() if node_id not in old and (old or one.distance)]
    left = [one for node_id, one in old.items() if node_id not in new]
    changed = [one for node_id, one in new.items() if node_id in old and _is_another(old[node_id], one)]
    if not (joined or left or changed):
        return None
    return TopologyChanged(
        at=at, peer=peer, joined=topology_of(joined), left=topology_of(left), changed=topology_of(changed)
    )


def _is_another(before: ToldNode, now: ToldNode) -> bool:
    old, new = before.about, now.about
    # Another life of the client's own node is a failover, of which the client has an event.
    another_life = now.distance > 0 and old.instance != new.instance
    return another_life or (old.primary, old.backup) != (new.primary, new.backup)
