"""The life cycle of a node's part in replication, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: ``follow``: another node sends its log.  ``reach``: this one has all that was confirmed.  ``lose``: the other one is
#: not followed any more.  ``vote``: others are asked whether it may take over.  ``isolate``: they have not let it serve
#: alone.  ``take``: this node takes the role.  ``activate``: clients are served.  ``fail_back``: the
#: role goes to the replica.  ``scale_down``: another node gets what the store holds.  ``step_back``: the node's term is
#: over.  ``end``: the broker stops.
REPLICATION_ROLE_TRANSITIONS: Final[Transitions] = {
    "searching": {"follow": "syncing", "take": "activating", "isolate": "isolated", "end": "stopped"},
    "isolated": {"follow": "syncing", "take": "activating", "end": "stopped"},
    "syncing": {"reach": "in_sync", "lose": "searching", "end": "stopped"},
    "in_sync": {"lose": "searching", "vote": "voting", "take": "activating", "end": "stopped"},
    "voting": {"lose": "searching", "take": "activating", "end": "stopped"},
    "activating": {
        "activate": "active",
        "scale_down": "scaling_down",
        "fail_back": "failing_back",
        "step_back": "searching",
        "end": "stopped",
    },
    "active": {"fail_back": "failing_back", "step_back": "searching", "end": "stopped"},
    "scaling_down": {"fail_back": "failing_back", "step_back": "searching", "end": "stopped"},
    "failing_back": {"step_back": "searching", "end": "stopped"},
    "stopped": {},
}
