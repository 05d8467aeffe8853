"""The life cycle of a broker node, as a table."""

from __future__ import annotations

from typing import Final

from meshq.concurrency import first_error
from meshq.errors import MeshqError
from meshq.lifecycle import Transitions
from meshq.logs import logger

_log = logger("node")
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


def log_state(name: str, state: str, error: BaseException | None) -> None:
    """Log the state that a broker has now.  ``error``: why it has failed; None: it has not."""
    event = {"event": state}
    if error is None:
        _log.info("%s is %s", name, state, extra=event)
    else:
        # What a program's own errors say may be anything.
        cause = first_error(error)
        told = str(cause) if isinstance(cause, MeshqError) else f"{type(cause).__module__}.{type(cause).__name__}"
        _log.error("%s has failed: %s", name, told, extra=event)
