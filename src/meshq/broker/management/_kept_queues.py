"""The queues that keep messages of topics for another broker of the network, as a session of that broker is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from meshq.address import MANAGEMENT, NETWORK_KEPT, SEPARATOR, kept_for
from meshq.broker.access._access import permit
from meshq.broker.catalog._router import Router
from meshq.broker.management._pages import page_of_names
from meshq.broker.management._requester import Requester
from meshq.broker.queue._queue_machine import Queue
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
    names = (one.name for one in _queues(router, str(node_id), str(beginning)) if one.name > str(after))
    return page_of_names("queues", names)


class KeptMessages(NamedTuple):
    """Messages that are kept for another broker of the network: their number, and when the oldest of them came, in
    milliseconds since 1970; None without any."""

    messages: int
    oldest_ms: int | None


def kept_messages(router: Router, node_id: str, beginning: str) -> KeptMessages:
    """Return what is kept for a connector of a broker; ``beginning``: how the names of its subscriptions begin."""
    queues = list(_queues(router, node_id, beginning))
    count = sum(one.counts.ready + one.counts.unacked + one.counts.delayed for one in queues)
    heads = [each.head for one in queues for each in one.lists.all]
    return KeptMessages(count, min((view.run.stamp for view in heads if view is not None), default=None))


def _queues(router: Router, node_id: str, beginning: str) -> Iterator[Queue]:
    """Yield the queues that keep messages for a connector: all of them have filters."""
    for queue in router.sieves:
        if isinstance(queue, Queue) and queue.spec.routes:
            own = queue.name.partition(SEPARATOR)[2]
            if own.startswith(beginning) and kept_for(own) == node_id:
                yield queue
