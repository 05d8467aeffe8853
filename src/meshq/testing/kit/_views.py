"""A broker as the kit sees it from outside: its queues, and its links to other nodes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from meshq.node import Broker
from meshq.testing.history._judged import PlaceCounts
from meshq.testing.kit._pairs import store_of
from meshq.testing.kit._settled_plan import LinkView, NodeView, QueueView

#: Names of queues that are meshq's own begin so; a link has the number of the messages in one.
OWN_QUEUES = "$meshq."


def counts_of(broker: Broker, queues: Iterable[str]) -> tuple[dict[str, PlaceCounts], int]:
    """Return the counts of these queues of a broker that serves, and its messages for other nodes."""
    node = broker._node
    assert node is not None
    found: dict[str, PlaceCounts] = {}
    under_way = 0
    for name, queue in node.core.router.queues.items():
        counts = queue.counts
        scheduled = sum(len(run.states) for run in queue.scheduled)
        here = counts.ready + counts.unacked + counts.delayed + scheduled
        if name.startswith(OWN_QUEUES):
            under_way += here
        elif name in queues:
            counters = {"added": counts.added, "acknowledged": counts.acknowledged, "ready": counts.ready}
            counters |= {"delivering": counts.unacked, "delayed": counts.delayed, **counts.removed}
            kept = ("redistributed",)
            removed = sum(number for way, number in counts.removed.items() if way not in kept)
            found[name] = PlaceCounts(counters, here, removed, node.core.router.statistics(queue))
    return found, under_way


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
