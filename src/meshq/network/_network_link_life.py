"""The life cycle of the link of a network connector to one other broker, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``connect``: the other broker is dialed, for the first time or again.  ``answer``: it has said what its demand is.
#: ``meet_self``: it is this broker.  ``lose``: the connection is lost.  ``stop``: the service ends, and may be served
#: again.
NETWORK_LINK_TRANSITIONS: Final[Transitions] = {
    "new": {"connect": "connecting", "stop": "stopped"},
    "connecting": {
        "connect": "connecting",
        "answer": "linked",
        "meet_self": "itself",
        "lose": "connecting",
        "stop": "stopped",
    },
    "linked": {
        "connect": "connecting",
        "answer": "linked",
        "meet_self": "itself",
        "lose": "connecting",
        "stop": "stopped",
    },
    "itself": {"connect": "connecting", "lose": "connecting", "stop": "stopped"},
    "stopped": {"connect": "connecting", "stop": "stopped"},
}


def new_life() -> LifeCycle:
    """The life of a link that was never made."""
    return LifeCycle("network link", NETWORK_LINK_TRANSITIONS)
