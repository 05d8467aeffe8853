"""The life cycle of a peer, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``open``: a session with the node begins.  ``begin``: its queues are known, and how far it has stored the link.
#: ``spare``: another connector links the same node.  ``leave``: the node has left for good.  ``lose``: the node is
#: away.  ``give_up``: all attempts to reach the node are used up.
PEER_TRANSITIONS: Final[Transitions] = {
    "connecting": {
        "open": "connecting",
        "begin": "linked",
        "spare": "spare",
        "leave": "left",
        "lose": "away",
        "give_up": "down",
    },
    "linked": {
        # Another life of the node, perhaps: what it has is known with its snapshot.
        "open": "connecting",
        "begin": "linked",
        "leave": "left",
        "lose": "away",
        "give_up": "down",
    },
    "spare": {
        "open": "spare",
        "begin": "linked",
        "spare": "spare",
        "leave": "left",
        "lose": "away",
        "give_up": "down",
    },
    "away": {
        "open": "away",
        "begin": "linked",
        "spare": "spare",
        "leave": "left",
        "lose": "away",
        "give_up": "down",
    },
    # A node that has left or was given up is no less gone for being away.
    "left": {
        "open": "left",
        "begin": "linked",
        "spare": "spare",
        "leave": "left",
        "lose": "left",
        "give_up": "down",
    },
    "down": {
        "open": "down",
        "begin": "linked",
        "spare": "spare",
        "leave": "left",
        "lose": "down",
        "give_up": "down",
    },
}


def new_life() -> LifeCycle:
    """The life of a peer that was never linked."""
    return LifeCycle("peer", PEER_TRANSITIONS, "connecting")
