"""The life cycle of a node's part in a shared store, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: ``take``: the node has the lock of the store.  ``activate``: clients are served.  ``fail_back``: the original
#: primary is back, and gets the store.  ``scale_down``: another node gets what the store holds.
#: ``isolate``: none of the hosts that are watched answers; ``reach``: one does.
#: ``step_back``: the node has no lock any more.  ``end``: the broker stops.
ROLE_TRANSITIONS: Final[Transitions] = {
    "waiting": {"take": "activating", "isolate": "isolated", "end": "stopped"},
    "activating": {
        "activate": "active",
        "scale_down": "scaling_down",
        "fail_back": "failing_back",
        "isolate": "isolated",
        "step_back": "waiting",
        "end": "stopped",
    },
    "active": {"fail_back": "failing_back", "isolate": "isolated", "step_back": "waiting", "end": "stopped"},
    "scaling_down": {"fail_back": "failing_back", "isolate": "isolated", "step_back": "waiting", "end": "stopped"},
    "failing_back": {"isolate": "isolated", "step_back": "waiting", "end": "stopped"},
    "isolated": {"reach": "waiting", "end": "stopped"},
    "stopped": {},
}
