"""A peer as a program sees it: its state and its counters at one moment."""

from __future__ import annotations

from meshq.cluster._peer import Peer
from meshq.cluster._peer_statistics import PeerStatistics


def peer_statistics(peer: Peer) -> PeerStatistics:
    """Return the state and the counters of a peer."""
    return PeerStatistics(
        connector=peer.url,
        node_id=peer.node_id.hex(),
        node_name=peer.name,
        connected=peer.connected,
        state=peer.state,
        error=peer.error,
        waiting=peer.waiting,
        unconfirmed=peer.link.unconfirmed if peer.link is not None else 0,
        blocked=peer.forwarding.blocked if peer.forwarding is not None else 0,
        announced=peer.count("announced"),
        large=peer.count("large"),
    )
