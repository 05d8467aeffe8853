"""The life cycle of a bridge, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``connect``: the target is dialed, for the first time or again.  ``carry``: the target is linked, and the queue has a
#: consumer.  ``rest``: the target takes no messages, so the queue is left to other consumers for a while.  ``pause``:
#: the bridge was told to pause.  ``stop``: the broker ends the service, and may serve it again in its next turn.
BRIDGE_TRANSITIONS: Final[Transitions] = {
    "new": {"connect": "connecting", "pause": "paused", "stop": "stopped"},
    "connecting": {"connect": "connecting", "carry": "carrying", "pause": "paused", "stop": "stopped"},
    "carrying": {"connect": "connecting", "rest": "waiting", "pause": "paused", "stop": "stopped"},
    "waiting": {"connect": "connecting", "carry": "carrying", "pause": "paused", "stop": "stopped"},
    "paused": {"connect": "connecting", "pause": "paused", "stop": "stopped"},
    "stopped": {"connect": "connecting", "pause": "paused", "stop": "stopped"},
}


def new_life() -> LifeCycle:
    """The life of a bridge that was never served."""
    return LifeCycle("bridge", BRIDGE_TRANSITIONS)
