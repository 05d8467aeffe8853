"""The life cycle of one broker of a fanout client, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``attach``: the client has a link to the broker.  ``double``: the link leads to a broker to which there is another
#: link.  ``wake``: that other link is lost.  ``lose``: the link is lost, and the client tries again.  ``fail``: the
#: client may not try any more.  ``leave``: nobody announces the broker, or the program closes the client.
FANOUT_TRANSITIONS: Final[Transitions] = {
    "connecting": {"attach": "connected", "double": "double", "lose": "connecting", "fail": "failed", "leave": "left"},
    "connected": {"attach": "connected", "double": "double", "lose": "lost", "fail": "failed", "leave": "left"},
    "lost": {"attach": "connected", "double": "double", "lose": "lost", "fail": "failed", "leave": "left"},
    "double": {"wake": "connecting", "lose": "double", "fail": "failed", "leave": "left"},
    "failed": {"leave": "left"},
    "left": {"lose": "left", "fail": "left", "leave": "left"},
}


def new_life(place: str) -> LifeCycle:
    """The life of a broker that the client dials next."""
    return LifeCycle(f"the broker at {place}", FANOUT_TRANSITIONS, "connecting")
