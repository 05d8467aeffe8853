"""The reasons for which a node ends a link that the other node would have kept."""

from __future__ import annotations

from meshq.errors import RefusedError


class CopiedStoreError(RefusedError):
    """The other node has stored more of this node's messages than this node has ever sent: the link begins anew."""


class OlderNodeError(RefusedError):
    """A node is older than the version for which the messages that wait for it were placed."""


class RedundantLinkError(RefusedError):
    """The node is already linked by another connector; this connector is used when the other one fails."""


class UnreadyPeerError(RefusedError):
    """The other node has begun anew, and does not know yet the nodes behind it that messages wait for here."""
