"""The life cycle of a quorum node, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: ``serve``: the acceptors are bound.  ``stop``: the node was told to end.  ``fail``: it can't go on.
QUORUM_NODE_TRANSITIONS: Final[Transitions] = {
    "new": {"serve": "running", "stop": "stopped", "fail": "failed"},
    "running": {"stop": "stopped", "fail": "failed"},
    "stopped": {},
    "failed": {},
}
