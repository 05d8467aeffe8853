"""The life cycle of one target of a pool, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import LifeCycle, Transitions

#: ``answer``: a probe has found the node there, active and not about to leave.  ``fail``: a probe has not.
TARGET_TRANSITIONS: Final[Transitions] = {
    "new": {"answer": "ready", "fail": "not_ready", "drop": "dropped"},
    "ready": {"answer": "ready", "fail": "not_ready", "drop": "dropped"},
    "not_ready": {"answer": "ready", "fail": "not_ready", "drop": "dropped"},
    "dropped": {},
}


def new_life(name: str) -> LifeCycle:
    """Return the life cycle of a target before its first probe."""
    return LifeCycle(f"the target {name!r}", TARGET_TRANSITIONS)
