"""The life cycle of an ``async with`` block, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``claim``: a task begins to enter the block.  ``enter``: the body begins.  ``abandon``: the block could not be
#: entered.  ``leave``: the body has ended.  ``close``: the program closes the object behind the block; a body that runs
#: goes on to its end.
BLOCK_TRANSITIONS: Final[Transitions] = {
    "new": {"claim": "entering", "close": "closed"},
    "entering": {"enter": "open", "abandon": "left", "close": "entering"},
    "open": {"leave": "left", "close": "open"},
    "left": {"close": "left"},
    "closed": {"close": "closed"},
}


def new_block_life() -> LifeCycle:
    """The life of a block that was not entered."""
    return LifeCycle("block", BLOCK_TRANSITIONS)
