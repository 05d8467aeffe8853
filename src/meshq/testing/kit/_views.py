"""A broker as the kit sees it from outside: its queues, and its links to other nodes."""

from __future__ import annotations

from collections.abc import Mapping

from meshq.node import Broker
from meshq.testing.kit._pairs_plan import store_of
from meshq.testing.kit._settled_plan import LinkView, NodeView, QueueView

#: Names of queues that are meshq's own begin so; a link has the number of the messages in one.
OWN_QUEUES = "$meshq."


def view_of(broker: Broker | None, name: str, state: str, name_of: Mapping[str, str]) -> NodeView:
    """Look at a node.  ``name_of``: the names of nodes by the names of their brokers."""
    node = None if broker is None else broker._node
    store = store_of(name)
    if broker is None or node is None or state not in ("active", "paused"):
        return NodeView(name, state, store)
    queues: dict[str, QueueView] = {}
    for queue_name, queue in sorted(node.core.router.queues.items()):
        counts = queue.counts
        if not queue_name.startswith(OWN_QUEUES):
            queues[queue_name] = QueueView(counts.ready, counts.unacked, counts.delayed, counts.added)
    links = {}
    for service in broker._settings.services:
        for peer in service.peers() if hasattr(service, "peers") else ():
            if peer.node_name in name_of:
                links[name_of[peer.node_name]] = LinkView(peer.state, peer.waiting, peer.blocked)
    return NodeView(name, state, store, queues=queues, links=links)
