"""The facts of a session that its parts go by: its identity at the node, its epoch, and its failure."""

from __future__ import annotations

from typing import Final

from meshq.abc import HandoverTarget
from meshq.client.calls._link_failures import outcome_of
from meshq.errors import MeshqError, UseAnotherServerError
from meshq.wire import Close

#: Nodes that have sent a client away one after another, of which it tells.
_CAME_FROM_MAX: Final = 8


class SessionFacts:
    """The identity of one session, and the reason of its failure; only the session assigns them."""

    __slots__ = (
        "_came_from",
        "epoch",
        "failure",
        "keeps_to_node",
        "key",
        "node_id",
        "number",
        "only_resumes",
        "target",
        "visited",
    )

    def __init__(self) -> None:
        #: Rises each time the session is made anew; deliveries of an older one are stale.
        self.epoch: int = 0
        #: The number and the key of the session at the node, and the node; empty before the first session.
        self.number: int = 0
        self.key: bytes = b""
        self.node_id: bytes = b""
        # The nodes that have sent the client away since it had a session, by id, each with its life.
        self._came_from: dict[bytes, bytes] = {}
        #: The node to which the client has to go, until it has a session again; None: to any.
        self.target: HandoverTarget | None = None
        #: The ids of the nodes that have redirected the client since the attempt to connect began.
        self.visited: bytes = b""
        #: Whether the client wants its session and no new one: it may belong to another node by now.
        self.only_resumes: bool = False
        #: Whether the client fails when it comes to a node with another id, unless its own one has sent it there.
        self.keeps_to_node: bool = False
        #: Why the session has failed.
        self.failure: MeshqError | None = None

    def sent_away(self, close: Close, target: HandoverTarget) -> bool:
        """Note a node that leaves for good, and the target of its handover; return whether that target is a new one.

        The session comes from its own node, and from each to which it was sent from there; from no other one.
        """
        before, self.target = self.target, target
        if close.node_id == self.node_id or self._came_from:
            self._came_from.pop(close.node_id, None)
            self._came_from[close.node_id] = close.instance
            if len(self._came_from) > _CAME_FROM_MAX:
                del self._came_from[next(iter(self._came_from))]
        return target != before

    def came_from(self, node_id: bytes) -> bytes:
        """Return the nodes that have sent the client away, as another node is told."""
        return b"".join(one + life for one, life in self._came_from.items() if one != node_id)

    def arrived(self) -> None:
        """Note that the client has a session again."""
        self._came_from.clear()
        self.target, self.visited = None, b""

    def check_node(self, node_id: bytes) -> None:
        """Check that the client may have its session at this node.

        Raises:
            UseAnotherServerError: the client keeps to another one.
        """
        if self.keeps_to_node and self.node_id not in (b"", node_id) and self.target is None:
            text = f"the node {node_id.hex()} is another one than {self.node_id.hex()}, to which the client keeps"
            raise UseAnotherServerError(text, outcome="not_done")

    def check(self) -> None:
        """Raise if the session has failed, with the outcome not_done."""
        if self.failure is not None:
            raise outcome_of(self.failure, "not_done")
