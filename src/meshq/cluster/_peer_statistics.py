"""The state and counters of another node in a cluster connection."""

from __future__ import annotations

import attrs

from meshq.errors import MeshqError


@attrs.frozen(kw_only=True)
class PeerStatistics:
    """The state and counters of another node in a cluster connection."""

    connector: str
    #: Empty before the first link.
    node_id: str
    node_name: str
    connected: bool
    #: ``connecting`` before the first snapshot of its queues, ``linked``, ``spare`` (the node is linked by another
    #: connector, and by this one when that fails), ``left`` (it said goodbye), ``away`` (nobody answers there) or
    #: ``down`` (all attempts are used up).
    state: str
    #: The last error of the link; None: no error so far.
    error: MeshqError | None
    #: Messages that this node holds for it, and how many of them were sent and are not confirmed.
    waiting: int
    unconfirmed: int
    #: Messages that this node holds for it because their address is full there.
    blocked: int = 0
    #: How often this node has announced itself over the link, in this life.
    announced: int = 0
    #: Messages given to the link whose bodies go in blocks, in this life; what is sent again counts again.
    large: int = 0
