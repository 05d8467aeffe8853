"""The gate of a node for clients of nodes that leave for good: closed until a handover has come to its end.

The states of the other node are compared at each question; what is kept is which handovers have come to their end, and
since when nobody goes on with another one.
The rules stand in docs/design/redistribution.md, "Clients of a node that leaves".
"""

from __future__ import annotations

from typing import Final

import attrs

from meshq.abc import NodeDescription

#: Seconds for which a handover counts as unfinished that nobody goes on with.
GRACE_S: Final = 30.0
#: Handovers of which the time is kept, at most.
KEPT_MAX: Final = 256


@attrs.frozen(kw_only=True)
class GateFacts:
    """The state of a node that has sent its clients away, as another node knows it.

    ``about``: its description; None: it is not in the cluster now.  ``name``: as it is named in reasons.
    ``expected``: it was linked with this node, in this life or an earlier one, and has not said goodbye.
    """

    about: NodeDescription | None
    name: str
    expected: bool


class HandoverGate:
    """The gate of one life of a node."""

    __slots__ = ("_done", "_open_since", "given_up")

    def __init__(self) -> None:
        # Since when nobody goes on with a handover, by the id and the life of its node.
        self._open_since: dict[tuple[bytes, bytes], float] = {}
        # The handovers that have come to their end.
        self._done: dict[tuple[bytes, bytes], None] = {}
        #: Handovers that counted as unfinished for so long that their clients were let in.
        self.given_up: int = 0

    def completed(self, about: NodeDescription) -> None:
        """Note that a node has said in one of its lives that another node has everything.  Twice is silent."""
        key = (about.node_id, about.instance)
        if key not in self._done:
            self._done[key] = None
            self._open_since.pop(key, None)
            if len(self._done) > KEPT_MAX:
                del self._done[next(iter(self._done))]

    def missing(self, node_id: bytes, instance: bytes, facts: GateFacts, now: float) -> str:
        """Return why clients of a node may not come in yet; empty: they may."""
        about, key = facts.about, (node_id, instance)
        unheard = about is not None and about.instance == instance and not about.leaving
        if about is not None and (about.hands_over or unheard):
            # As long as the node is there and goes on, its drain has bounds of its own.  A node that only listens does
            # not hear how far others are: then the end of that life counts.
            self._keep(key, now)
            return f"node {facts.name} has not handed over all that it has"
        if key in self._done or not (facts.expected or about is not None):
            # It has said goodbye, or that another node has everything.
            self._open_since.pop(key, None)
            return ""
        since = self._open_since.get(key)
        if since is None:
            self._keep(key, now)
            since = now
        if now - since < GRACE_S:
            how = "is not there" if about is None else "does not go on"
            return f"node {facts.name}, which has not handed over all that it had, {how}"
        if since > float("-inf"):
            self.given_up += 1
            self._keep(key, float("-inf"))
        return ""

    def _keep(self, key: tuple[bytes, bytes], since: float) -> None:
        kept = self._open_since
        kept.pop(key, None)
        kept[key] = since
        if len(kept) > KEPT_MAX:
            del kept[next(iter(kept))]
