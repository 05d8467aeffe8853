"""The life cycle of a buffered producer or consumer, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``open``: the block is entered.  ``close``: the program has closed it, its block could not be entered or is left, or
#: its loop has ended; what is closed while another task enters its block stays closed.
BUFFER_TRANSITIONS: Final[Transitions] = {
    "new": {"open": "open", "close": "closed"},
    "open": {"close": "closed"},
    "closed": {"open": "closed", "close": "closed"},
}


def new_buffer_life(name: str) -> LifeCycle:
    """The life of a producer or consumer whose block was not entered."""
    return LifeCycle(name, BUFFER_TRANSITIONS)
