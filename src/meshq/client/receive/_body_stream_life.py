"""The life cycle of a stream of a message's body, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``open``: the block is entered.  ``close``: the block is left.
BODY_STREAM_TRANSITIONS: Final[Transitions] = {
    "new": {"open": "open"},
    "open": {"close": "closed"},
    "closed": {"close": "closed"},
}


def new_life() -> LifeCycle:
    """The life of a stream that was not opened."""
    return LifeCycle("body stream", BODY_STREAM_TRANSITIONS)
