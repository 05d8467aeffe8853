"""The queues that keep messages of topics for another broker of the network, as a session of that broker is told."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from meshq.address import MANAGEMENT, NETWORK_KEPT, SEPARATOR, kept_for
from meshq.broker.access._access import permit
from meshq.broker.catalog._router import Router
from meshq.broker.management._pages import page_of_names
from meshq.broker.management._requester import Requester
from meshq.broker.work._long_operations import Values
from meshq.errors import UsageError
from meshq.ids import is_broker_id

#: The name of the call.
NETWORK_QUEUES: Final = "network_queues"


def kept_queues(router: Router, asker: Requester, named: Mapping[str, Any]) -> Values:
    """Return a page of the names of queues that keep messages for a broker, in the order of their characters.

    Raises:
        UsageError: the arguments are none.
        SecurityError: the asker may not manage this broker.
    """
    node_id, beginning, after = (named.get(name) for name in ("node_id", "beginning", "after"))
    texts = type(node_id) is str and type(beginning) is str and type(after) is str
    if not texts or not is_broker_id(node_id) or not str(beginning).startswith(NETWORK_KEPT):
        raise UsageError(f"{NETWORK_QUEUES} takes node_id, beginning, how names of subscriptions begin, and after")
    permit(asker, "manage", MANAGEMENT)
    return page_of_names("queues", _names(router, str(node_id), str(beginning), str(after)))


def _names(router: Router, node_id: str, beginning: str, after: str) -> list[str]:
    kept = [queue.name for queue in router.queues.values() if queue.spec.routes and queue.name > after]
    found = ((name, name.partition(SEPARATOR)[2]) for name in kept)
    return [name for name, own in found if own.startswith(beginning) and kept_for(own) == node_id]
