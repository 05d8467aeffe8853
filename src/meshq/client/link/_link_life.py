"""The life cycle of a client's link, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``wait``: the next attempt is delayed.  ``open``: the node accepts the link.  ``attach``: the session goes on
#: over the link.  ``redirect``: the node sends the client on to another one, which is dialed next.  ``lose``: the
#: attempt has failed, or the link is lost.  ``close``: the program closes the client; an attempt that is under way goes
#: on until ``end``, which follows at once.  ``end``: no attempt follows.
LINK_TRANSITIONS: Final[Transitions] = {
    "new": {"wait": "waiting", "dial": "dialing", "close": "closing", "end": "ended"},
    "waiting": {"dial": "dialing", "close": "closing", "end": "ended"},
    "dialing": {"open": "handshake", "lose": "lost", "close": "closing", "end": "ended"},
    "handshake": {"attach": "attached", "redirect": "dialing", "lose": "lost", "close": "closing", "end": "ended"},
    "attached": {"lose": "lost", "close": "closing", "end": "ended"},
    "lost": {"wait": "waiting", "dial": "dialing", "close": "closing", "end": "ended"},
    "closing": {"dial": "closing", "open": "closing", "attach": "closing", "close": "closing", "end": "ended"},
    "ended": {"close": "ended"},
}


def new_life() -> LifeCycle:
    """The life of a link that was never dialed."""
    return LifeCycle("link", LINK_TRANSITIONS)
