"""The life cycle of a broker node, as a table."""

from __future__ import annotations

from typing import Final

from meshq.lifecycle import Transitions

#: ``wait``: the acceptors listen, the store is closed, and no client is served until the policy lets the node ``start``
#: again.  ``activate``: the store is open and the acceptors listen.  ``stop``: ``Broker.stop``, or the node is
#: cancelled.  ``close``: the store is closed.  ``fail``: an error other than a cancellation ended the node.
BROKER_TRANSITIONS: Final[Transitions] = {
    "new": {"start": "starting"},
    "starting": {"activate": "active", "wait": "waiting", "stop": "stopping", "fail": "failed"},
    "waiting": {"start": "starting", "stop": "stopping", "fail": "failed"},
    "active": {"wait": "waiting", "stop": "stopping", "fail": "failed"},
    "stopping": {"close": "stopped", "fail": "failed"},
    "stopped": {},
    "failed": {},
}
