"""A queue of another node, as a program sees it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import attrs

from meshq import abc
from meshq.wire import Binding


@attrs.frozen(kw_only=True)
class RemoteQueue:
    """A queue of another node of a cluster, as that node has last described it."""

    node_id: str
    node_name: str
    queue: str
    address: str
    #: ``anycast`` or ``multicast``.
    routing: str
    #: What the queue itself takes; empty: everything.
    filter: str
    consumers: int
    #: The filters of its consumers, if each of them has one.
    filters: tuple[str, ...]
    #: The number of links between here and there.
    distance: int


def remote_queue(known: abc.RemoteQueue) -> RemoteQueue:
    """Return a queue as programs see it."""
    return RemoteQueue(
        node_id=known.path[0],
        node_name=known.node_name,
        queue=known.name,
        address=known.address,
        routing=known.routing,
        filter=known.filter,
        consumers=known.consumers,
        filters=known.filters,
        distance=len(known.path),
    )


def nearest(queues: Iterable[RemoteQueue]) -> list[RemoteQueue]:
    """Return each queue once, by the shortest of several ways to it."""
    found: dict[tuple[str, str], RemoteQueue] = {}
    for queue in queues:
        key = queue.node_id, queue.queue
        known = found.get(key)
        if known is None or queue.distance < known.distance:
            found[key] = queue
    return list(found.values())


def understood(queue: abc.RemoteQueue, features: Sequence[str]) -> abc.RemoteQueue:
    """Return a queue with the features of all nodes on the way there; ``features``: those of the peer."""
    on_the_way = features if len(queue.path) == 1 else [one for one in queue.features if one in features]
    return attrs.evolve(queue, features=tuple(on_the_way))


def described_queue(binding: Binding, path: tuple[str, ...], node_name: str) -> abc.RemoteQueue:
    """Return a queue of another node as a link has described the queue, without the features of the peer.

    ``path``: the ids of the nodes from the queue's own to the peer; ``node_name``: of the peer.
    """
    return abc.RemoteQueue(
        number=binding.queue,
        name=binding.name,
        address=binding.address,
        routing=binding.routing,
        consumers=binding.consumers,
        filters=binding.filters,
        filter=binding.filter,
        durable=binding.durable,
        precise=binding.precise,
        features=tuple(binding.features.split()),
        path=path,
        node_name=binding.node_name or node_name,
        gone=binding.state,
    )
