"""The facts of a session that its parts go by: its identity at the node, its epoch, and its failure."""

from __future__ import annotations

from meshq.client.calls._link_failures import outcome_of
from meshq.errors import MeshqError


class SessionFacts:
    """The identity of one session, and the reason of its failure; only the session assigns them."""

    __slots__ = ("epoch", "failure", "key", "node_id", "number")

    def __init__(self) -> None:
        #: Rises each time the session is made anew; deliveries of an older one are stale.
        self.epoch: int = 0
        #: The number and the key of the session at the node, and the node; empty before the first session.
        self.number: int = 0
        self.key: bytes = b""
        self.node_id: bytes = b""
        #: Why the session has failed.
        self.failure: MeshqError | None = None

    def check(self) -> None:
        """Raise if the session has failed, with the outcome not_done."""
        if self.failure is not None:
            raise outcome_of(self.failure, "not_done")
