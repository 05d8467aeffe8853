"""The demand of a broker as it is told to another broker of its network: its consumers, and the paths to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple

from meshq import limits
from meshq.ids import IDENTITY_BYTES, is_broker_id

#: What is between two brokers in a route, and between two routes.
ROUTE_SEPARATOR: Final = "/"
ROUTES_SEPARATOR: Final = " "
#: Characters of all routes that one row tells.
_TOLD_CHARACTERS_MAX: Final = 1_400
#: Routes of one network consumer at most.
ROUTES_MAX: Final = 64


class QueueDemand(NamedTuple):
    """The demand of one consumer.  ``routes``: the ways on which a network consumer's messages go, each from the broker
    with the consumers to the next one; empty: it is a consumer of a client."""

    address: str
    routing: str
    filter: str
    priority: int
    routes: tuple[str, ...] = ()


def are_routes(routes: Sequence[str]) -> bool:
    """Whether these are routes: of ids of brokers, with none of them twice on one route."""
    if len(routes) > ROUTES_MAX:
        return False
    ways = [route.split(ROUTE_SEPARATOR) for route in routes]
    if len({way[-1] for way in ways}) > 1:
        return False
    return all(len(set(way)) == len(way) <= limits.NETWORK_HOPS_MAX and all(map(is_broker_id, way)) for way in ways)


def next_broker(routes: Sequence[str]) -> str:
    """Return the id of the next broker, which is the same on all routes of a network consumer."""
    return routes[0].rpartition(ROUTE_SEPARATOR)[2]


def forward_filter(target_id: str, hops: int, wanted: str = "") -> str:
    """Return the filter of a network consumer: messages that have not been at the target, that have not gone as many
    hops as they may, and that ``wanted`` accepts.

    A ``wanted`` that is too long beside the rest is left out: then more comes than is wanted.
    """
    path = f"AMQBrokerHops < {hops} AND (AMQBrokerPath IS NULL OR AMQBrokerPath NOT LIKE '%{target_id}%')"
    whole = f"{path} AND ({wanted})" if wanted else path
    return whole if len(whole.encode()) <= limits.FILTER_BYTES_MAX else path


def told_routes(routes: Sequence[str], node_id: str, asker: str) -> str:
    """Return the ways to a consumer as ``asker`` is told of them, the shortest first, as many as fit; empty: each leads
    over the asker, back to this broker, or too far."""
    if not routes:
        return node_id
    ways = [route.split(ROUTE_SEPARATOR) for route in routes]
    open_ways = [way for way in ways if not {node_id, asker} & set(way) and len(way) < limits.NETWORK_HOPS_MAX]
    told = ""
    for way in sorted(open_ways, key=lambda way: (len(way), way)):
        more = ROUTES_SEPARATOR.join(filter(None, (told, ROUTE_SEPARATOR.join([*way, node_id]))))
        if len(more) > _TOLD_CHARACTERS_MAX:
            break
        told = more
    return told


def demand_rows(demand: Iterable[QueueDemand], node_id: str, asker: str) -> list[dict[str, Any]]:
    """Return the rows that ``asker`` is told: consumers that are alike are one row, with their number."""
    alike: dict[tuple[str, str, str, int, str], int] = {}
    for one in demand:
        ways = told_routes(one.routes, node_id, asker)
        if ways:
            key = one.address, one.routing, one.filter, one.priority, ways
            alike[key] = alike.get(key, 0) + 1
    names = ("address", "routing", "filter", "priority", "ways")
    return [{**dict(zip(names, key, strict=True)), "consumers": count} for key, count in sorted(alike.items())]


def epoch_of(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return the epoch of a snapshot: the same for the same rows, and another one for others."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(sorted(row.items())).encode())
    return digest.digest()[:IDENTITY_BYTES]
