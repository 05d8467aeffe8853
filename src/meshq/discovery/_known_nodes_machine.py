"""Which nodes are known: announcements and the time go in, changes with their reasons come out.

The rules, and why each of them is there, stand in docs/design/discovery.md.
"""

from __future__ import annotations

import math
from typing import Final, Literal

import attrs

from meshq.discovery._datagram_format import Announcement, ConnectorPair, RefusedDatagram

#: Nodes that are known at a time: far more than a cluster has, and a bound on what strangers can invent.
NODES_MAX: Final = 1_024
#: Ended lives that are remembered, so that their recorded announcements are refused.
ENDED_LIVES_MAX: Final = 1_024

#: The reasons for which the known nodes change.
ChangeReason = Literal["joined", "left", "restarted", "moved", "replaced"]


@attrs.frozen(kw_only=True)
class DiscoveredNode:
    """A node that announces itself, as its last announcement says.

    ``heard_at``: the time of the last announcement, on the clock of the listener.
    """

    node_id: bytes
    instance: bytes
    began_ms: int
    sequence: int
    period_ms: int
    name: str
    connectors: tuple[ConnectorPair, ...]
    heard_at: float

    @property
    def life(self) -> tuple[int, bytes]:
        """The order of lives: the later beginning is greater; the instance decides between equal ones."""
        return self.began_ms, self.instance

    @property
    def places(self) -> tuple[str, ...]:
        """Where the node itself is reached; where its backup is changes without it."""
        return tuple(pair.primary for pair in self.connectors)


@attrs.frozen
class NodeChange:
    """A change of the known nodes.

    ``node``: the node as it is now, or, for ``left`` and ``replaced``, as it was.  ``successor``: for ``replaced``, the
    node that announces its connectors now.
    """

    reason: ChangeReason
    node: DiscoveredNode
    successor: DiscoveredNode | None = None


@attrs.frozen
class Heard:
    """The result of one announcement: the changes in their order, and why the announcement does not count, if so."""

    changes: list[NodeChange]
    refused: RefusedDatagram | None = None


class KnownNodes:
    """The nodes that announce themselves, each with its last announcement.

    A node is dropped when nothing was heard of it for ``refresh_timeout_s``.  ``own``: the id of the node that listens,
    which is not among the known nodes; empty for a client.  ``signed``: every announcement has a checked signature, so
    numbers of ended lives are worth remembering; without one a forged number would lock a node out.
    """

    def __init__(self, refresh_timeout_s: float, *, own: bytes = b"", signed: bool = False) -> None:
        self._refresh_timeout_s = refresh_timeout_s
        self._signed = signed
        self._own = own
        #: By node id, the one that was heard last at the end.
        self._nodes: dict[bytes, DiscoveredNode] = {}
        #: By places: the node that is known to announce exactly these.
        self._places: dict[tuple[str, ...], bytes] = {}
        #: Ended lives by node id and instance, the oldest first, with the last sequence number of each; empty unless
        #: announcements are signed.
        self._ended: dict[tuple[bytes, bytes], int] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def nodes(self) -> tuple[DiscoveredNode, ...]:
        """Return the known nodes in the order of their ids."""
        return tuple(self._nodes[node_id] for node_id in sorted(self._nodes))

    def next_expiry(self) -> float:
        """Return the time at which the next node will have been silent for too long; infinity if none is known."""
        oldest = next(iter(self._nodes.values()), None)
        return math.inf if oldest is None else oldest.heard_at + self._refresh_timeout_s

    def hear(self, announcement: Announcement, now: float) -> Heard:
        """Take in an announcement that arrived at ``now``, which never decreases; nodes that are silent leave first."""
        changes = self.expire(now)
        if announcement.node_id == self._own:
            return Heard(changes)
        node = DiscoveredNode(heard_at=now, **attrs.asdict(announcement, recurse=False))
        known = self._nodes.get(node.node_id)
        there = self._nodes.get(self._places.get(node.places, b""))
        refused = self._refused(node, known, there)
        if refused is not None:
            return Heard(changes, refused)
        if there is not None and there.node_id != node.node_id:
            self._drop(there, ended=True)
            changes.append(NodeChange("replaced", there, node))
        if known is not None:
            self._drop(known, ended=known.instance != node.instance)
        self._ended.pop((node.node_id, node.instance), None)
        self._nodes[node.node_id] = node
        self._places[node.places] = node.node_id
        reason = _reason(known, node)
        if reason is not None:
            changes.append(NodeChange(reason, node))
        return Heard(changes)

    def expire(self, now: float) -> list[NodeChange]:
        """Drop the nodes that were silent for the refresh timeout."""
        changes = []
        while self.next_expiry() <= now:
            oldest = next(iter(self._nodes.values()))
            self._drop(oldest, ended=True)
            changes.append(NodeChange("left", oldest))
        return changes

    def _refused(
        self, node: DiscoveredNode, known: DiscoveredNode | None, there: DiscoveredNode | None
    ) -> RefusedDatagram | None:
        """Return why an announcement does not count: ``known`` is what is known of its node, ``there`` the node that
        is known by its connectors."""
        last = known.sequence if known is not None and known.instance == node.instance else self._last(node)
        if node.sequence <= last:
            return RefusedDatagram("replayed", f"number {node.sequence} of a life of {_shown(node)}, after {last}")
        if known is not None and node.life < known.life:
            text = f"{_shown(node)} announces two lives, {known.instance.hex()} and the earlier {node.instance.hex()}"
            return RefusedDatagram("stale_life", text)
        if there is not None and there.node_id != node.node_id and node.life < there.life:
            text = f"{_shown(node)} announces the connectors of {_shown(there)}, which began later"
            return RefusedDatagram("address_taken", text)
        if known is None and there is None and len(self._nodes) >= NODES_MAX:
            return RefusedDatagram("too_many", f"{NODES_MAX} nodes are known already; {_shown(node)} is one more")
        return None

    def _last(self, node: DiscoveredNode) -> int:
        """Return the last sequence number of an ended life; 0 if the life is not remembered."""
        return self._ended.get((node.node_id, node.instance), 0)

    def _drop(self, node: DiscoveredNode, *, ended: bool) -> None:
        """Remove a node; an ended life is remembered."""
        del self._nodes[node.node_id]
        del self._places[node.places]
        if ended and self._signed:
            self._ended[node.node_id, node.instance] = node.sequence
            if len(self._ended) > ENDED_LIVES_MAX:
                del self._ended[next(iter(self._ended))]


def _reason(known: DiscoveredNode | None, node: DiscoveredNode) -> ChangeReason | None:
    """Return why the entry of a node changes; None if nothing but the time has changed."""
    if known is None:
        return "joined"
    if known.instance != node.instance:
        return "restarted"
    return "moved" if known.places != node.places else None


def _shown(node: DiscoveredNode) -> str:
    return f"{node.name!r} ({node.node_id.hex()})"
