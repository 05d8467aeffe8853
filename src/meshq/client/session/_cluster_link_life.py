"""The life cycle of the channel of a cluster link, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``ask``: the other node is asked to open the channel, once in each session.  ``open``: the other node has opened the
#: channel.  ``refuse``: the other node does not take the link, or the session has failed.  ``forget``: the session is
#: gone, with all that was sent and not confirmed.
CLUSTER_LINK_TRANSITIONS: Final[Transitions] = {
    "waiting": {"ask": "opening", "refuse": "refused", "forget": "waiting"},
    "opening": {"open": "open", "refuse": "refused", "forget": "waiting"},
    "open": {"forget": "waiting"},
    "refused": {"forget": "waiting"},
}


def new_life() -> LifeCycle:
    """The life of a channel that no session knows yet."""
    return LifeCycle("the channel of a cluster link", CLUSTER_LINK_TRANSITIONS, "waiting")
