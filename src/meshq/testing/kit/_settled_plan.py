"""Whether a cluster has come to rest: compared are two looks at it, some time apart.

Invariant: what cannot move now, because a node is dead or paused or a link is cut, counts as still.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs


@attrs.frozen
class QueueView:
    """The messages of a queue: ready, unacked, delayed, and how many there ever were."""

    ready: int
    unacked: int
    delayed: int
    added: int

    def __str__(self) -> str:
        delayed = f", {self.delayed} delayed" if self.delayed else ""
        return f"{self.ready} ready, {self.unacked} unacked{delayed}"


@attrs.frozen
class LinkView:
    """The link of a node to another node: its state, and the messages that wait for the other node."""

    state: str
    waiting: int = 0
    #: Of them, what the other node has no room for.
    blocked: int = 0


@attrs.frozen
class NodeView:
    """A node at one moment: its state, its queues by name, and its links by the name of the other node."""

    name: str
    state: str
    #: The store that it shares with the other nodes of its pair.
    store: str = ""
    #: Whether it has served and was stopped cleanly, so that its backup goes on waiting.
    stopped: bool = False
    queues: Mapping[str, QueueView] = attrs.field(factory=dict)
    links: Mapping[str, LinkView] = attrs.field(factory=dict)
    #: By replication: ``newest`` or ``older``.
    copy: str = ""


def moving(before: Sequence[NodeView], now: Sequence[NodeView], apart: Callable[[str, str], bool]) -> list[str]:
    """List the movements, a line each; none if all is still.  ``apart``: whether a cut lies between two nodes."""
    lines: list[str] = []
    old = {node.name: node for node in before}
    active = {node.name for node in now if node.state == "active"}
    for node in now:
        if _succeeds(node, now):
            lines.append(f"{node.name} has not taken over yet")
        if node.state == "waiting" and node.copy == "older":
            served = [one.name for one in now if one.store == node.store and one.name in active]
            lines += [f"{node.name} is not in sync yet" for name in served if not apart(node.name, name)]
        if node.state in ("starting", "stopping"):
            lines.append(f"{node.name} is {node.state}")
        if node.state != "active":
            continue
        for name in sorted(active - {node.name}):
            if not apart(node.name, name):
                lines += _link_lines(node, name)
        # What lies in a store-and-forward queue is told of by its link.
        was = old[node.name].queues if node.name in old else {}
        for queue, view in node.queues.items():
            if queue in was and was[queue] != view:
                lines.append(f"{node.name}: messages of {queue} come or go ({view})")
    return lines


def _succeeds(node: NodeView, nodes: Sequence[NodeView]) -> bool:
    """Whether a node that waits is about to serve: no other node of its pair holds their store."""
    others = [other for other in nodes if other is not node and other.store == node.store]
    if node.copy:
        # A node that is paused or was stopped loses the role.
        return node.state == "waiting" and node.copy == "newest" and all(other.state != "active" for other in others)
    if node.state != "waiting" or any(other.state in ("active", "paused") for other in others):
        return False
    return node.name == node.store or not any(other.stopped for other in others)


def _link_lines(node: NodeView, name: str) -> list[str]:
    link = node.links.get(name, LinkView("unknown"))
    if link.state != "linked":
        return [f"{node.name} is not linked to {name} ({link.state})"]
    waiting = link.waiting - link.blocked
    return [f"{node.name} has {waiting} messages for {name}"] if waiting > 0 else []
