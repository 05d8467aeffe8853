"""The nodes of a cluster, as programs see them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import ClassVar

import attrs

from meshq.abc import HandoverTarget, ToldNode
from meshq.client.link._events import ConnectionEvent
from meshq.endpoint import told_place
from meshq.ids import IDENTITY_BYTES
from meshq.wire import Close, violation


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


def sent_to(close: Close) -> HandoverTarget:
    """Return the node to which a node sends its client.

    Raises:
        RemoteProtocolError: no node can be so.
    """
    sizes = {len(close.node_id), len(close.instance), len(close.target)}
    if sizes != {IDENTITY_BYTES} or close.target_place != told_place(close.target_place):
        raise violation("bad_header", "a client is sent to a node whose ids or place no node can have")
    if not close.target_name.isprintable():
        raise violation("bad_header", "a client is sent to a node whose name no node can have")
    return HandoverTarget(node_id=close.target, name=close.target_name, place=close.target_place)


def node_of(target: HandoverTarget) -> TopologyNode:
    """Return a node to which a client is sent, as programs see it."""
    return TopologyNode(node_id=target.node_id.hex(), name=target.name, primary=target.place, backup="", distance=1)


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


@attrs.frozen(kw_only=True)
class ScaledDown(ConnectionEvent):
    """The client's node leaves for good, and hands over all that it has to ``target``, where the client goes.

    The target lets the client in when everything is there.
    """

    code: ClassVar[str] = "scaled_down"

    target: TopologyNode


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
