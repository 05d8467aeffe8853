"""The demand of a broker as it is told to another broker of its network: its consumers, and the paths to them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, Final, NamedTuple

from meshq import limits
from meshq.errors import SettingsError, UsageError
from meshq.ids import IDENTITY_BYTES, is_broker_id, needed_ways
from meshq.selector import Filter, parse_filter

#: The settings that belong on all connectors of a network.
SHARED_SETTINGS: Final = ("decrease_network_consumer_priority", "suppress_duplicate_queue_subscriptions")
#: What is between two brokers in a route, and between two routes.
ROUTE_SEPARATOR: Final = "/"
ROUTES_SEPARATOR: Final = " "
#: What stands behind routes if there are more of them than fit.
MORE_ROUTES: Final = "+"
#: How a route begins that is there for a static inclusion: nobody has asked for it.
UNASKED: Final = "="
#: Characters of all routes that one row tells.
_TOLD_CHARACTERS_MAX: Final = 1_400
#: Routes of one network consumer at most.
ROUTES_MAX: Final = 64
#: Characters of all routes of a queue that keeps messages, which stand in its definition beside a filter and what is
#: wanted: some times what a connector asks for.
KEPT_ROUTES_CHARACTERS_MAX: Final = 2_048

#: Looks at one queue that are remembered.
LOOKS_MAX: Final = 64
#: A holder of places at a topic has at most so many times as many as are free.
NETWORK_SHARE: Final = 3


class QueueDemand(NamedTuple):
    """The demand of one consumer.  ``routes``: the ways on which a network consumer's messages go, each from the broker
    with the consumers to the next one, with ``=`` before a way that nobody has asked for; empty: it is a consumer of a
    client.  ``durable``: messages of a topic are kept
    for it."""

    address: str
    routing: str
    filter: str
    priority: int
    routes: tuple[str, ...] = ()
    durable: bool = False


class NetworkPlaces:
    """The places that a topic has for queues of network consumers, and who holds them.

    A holder that has many gets no more while a third of these, and not more, is free: so whoever comes later finds
    room, however many a user asks for.
    """

    __slots__ = ("_held", "taken")

    def __init__(self) -> None:
        self._held: dict[str, int] = {}
        #: How many are taken.
        self.taken: int = 0

    def count(self, holder: str, change: int) -> None:
        """Count a place that is taken (1) or given back (-1)."""
        self.taken += change
        self._held[holder] = held = self._held.get(holder, 0) + change
        if not held:
            del self._held[holder]

    def holder_after(self, former: str, holder: str) -> str:
        """Return the holder of a place after another holder has opened its queue.

        It is ``holder`` if a further place would be free for it, otherwise ``former``.
        """
        if former == holder:
            return holder
        self.count(former, -1)
        lack = self.lack("", holder)
        self.count(former, 1)
        return former if lack else holder

    def lack(self, address: str, holder: str, *, named: bool = False) -> str:
        """Say why a holder gets no further place at an address; empty: there is one.

        ``named``: also who else has most of them, which is not for every user to know.
        """
        most, held = limits.NETWORK_QUEUES_PER_ADDRESS_MAX, self._held.get(holder, 0)
        if self.taken >= most:
            first = max(self._held, key=self._held.__getitem__)
            taken = f"the address {address!r} has its {most} queues for network consumers"
            if named or first == holder:
                return f"{taken}, most of them, {self._held[first]}, for {first}"
            return f"{taken}, most of them for somebody else"
        if held >= NETWORK_SHARE * (most - self.taken):
            return (
                f"{held} of the {most} queues for network consumers at {address!r} are for {holder}; others need room"
            )
        return ""


class Arrivals:
    """When the messages of a queue came, as far as it was looked: a message was sent when its sender says, but came
    neither before the last look without it nor after the first one with it.

    All times are of a clock that nobody can set, in milliseconds: one that was ahead would make a message come late.
    """

    __slots__ = ("_looks",)

    def __init__(self, since_ms: float) -> None:
        """``since_ms``: a time at which the queue did not exist yet; minus infinity: unknown."""
        # The highest number at each look, the first time that it was that, and the last time.
        self._looks: list[tuple[int, float, float]] = [(0, since_ms, since_ms)]

    def look(self, last: int, elapsed_ms: float) -> None:
        """Note that ``last`` is the highest number of a message now."""
        looks = self._looks
        if looks[-1][0] == last:
            looks[-1] = last, looks[-1][1], elapsed_ms
            return
        looks.append((last, elapsed_ms, elapsed_ms))
        if len(looks) > LOOKS_MAX:
            # Fewer of them say less exactly when the oldest messages came, and nothing wrong.
            del looks[1 : LOOKS_MAX // 2 : 2]

    def came(self, number: int, sent_ms: float) -> float:
        """When a message came that is not above the last look, and was sent at ``sent_ms`` as its sender says."""
        looks = self._looks
        while looks[1][0] < number:
            del looks[0]
        return max(looks[0][2], min(sent_ms, looks[1][1]))


def _ways(routes: Sequence[str]) -> list[tuple[str, ...]]:
    return [_way(route) for route in routes if route != MORE_ROUTES]


def _way(route: str) -> tuple[str, ...]:
    return tuple(route.removeprefix(UNASKED).split(ROUTE_SEPARATOR))


def asked_ways(routes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the ways to consumers, without those to where messages go unasked."""
    return _ways([route for route in routes if not route.startswith(UNASKED)])


def are_routes(routes: Sequence[str]) -> bool:
    """Whether these are routes: of ids of brokers, with none of them twice on one route."""
    ways = _ways(routes)
    if len(routes) > ROUTES_MAX or len({way[-1] for way in ways}) != 1 or MORE_ROUTES in routes[:-1]:
        return False
    return all(len(set(way)) == len(way) <= limits.NETWORK_HOPS_MAX and all(map(is_broker_id, way)) for way in ways)


def kept_routes(routes: Sequence[str]) -> str:
    """Return the routes of a queue that keeps messages, as they stand in its definition.

    Raises:
        UsageError: they are too long to stand there.
    """
    text = ROUTES_SEPARATOR.join(routes)
    if len(text) > KEPT_ROUTES_CHARACTERS_MAX:
        most = f"at most {KEPT_ROUTES_CHARACTERS_MAX:,} are possible for messages that are kept"
        raise UsageError(f"the routes of a network consumer take {len(text):,} characters; {most}")
    return text


def next_broker(routes: Sequence[str]) -> str:
    """Return the id of the next broker, which is the same on all routes of a network consumer."""
    return _way(routes[0])[-1]


def holder_of(routes: Sequence[str], user: str | None = None) -> str:
    """Return for whom the queue of a network consumer is, as a sentence says it: the ``user`` of its session, of whose
    brokers there may be any number; None: nobody has logged in, and it is the next broker."""
    return f"the broker {next_broker(routes)}" if user is None else f"the user {user!r}"


def forward_filter(routes: Sequence[str], hops: int, wanted: str = "") -> Filter:
    """Return the filter of a network consumer: messages that can go one of the routes to its end, and that ``wanted``
    accepts.

    That is a route on which no broker has had the message, and no longer than the message may go.  Where the routes are
    not all known, or their text is too long, it is asked only of the next broker; and a ``wanted`` that is too long, or
    too deep, beside the rest is left out: then more comes than is wanted.
    Raises:
        FilterError: ``wanted`` is no condition.
    """
    near = _path_condition(routes, f"AMQBrokerHops < {hops}")
    far = _path_condition(routes, _open_route(routes, hops)) if MORE_ROUTES not in routes else near
    if not wanted:
        return _first_that_fits(far, near)
    parse_filter(wanted)
    return _first_that_fits(f"{far} AND ({wanted})", f"{near} AND ({wanted})", far, near)


def topic_filter(routes: Sequence[str], hops: int, wanted: str = "") -> Filter:
    """Return the filter of the queue of a network consumer of a topic: messages that have not been at the next broker
    and may go on, and that ``wanted`` accepts.

    It does not ask for the rest of the way, which may change while the queue stays: a copy too many ends where it is.
    Raises:
        FilterError: ``wanted`` is no condition.
    """
    return forward_filter((next_broker(routes), MORE_ROUTES), hops, wanted)


def _path_condition(routes: Sequence[str], goes_on: str) -> str:
    target_id = next_broker(routes)
    return f"(AMQBrokerPath IS NULL OR AMQBrokerPath NOT LIKE '%{target_id}%' AND ({goes_on}))"


def _open_route(routes: Sequence[str], hops: int) -> str:
    """Return the condition that behind the next broker a route is open for a message: FALSE if each is too long."""
    found: list[str] = []
    for way in needed_ways(_ways(routes)):
        if len(way) <= hops:
            avoided = [f"AMQBrokerPath NOT LIKE '%{node_id}%'" for node_id in way[:-1]]
            found.append(" AND ".join([f"AMQBrokerHops < {hops - len(way) + 1}", *avoided]))
    return " OR ".join(found) or "FALSE"


def _first_that_fits(*texts: str) -> Filter:
    """Return the first of the conditions that a filter has room for, else the last."""
    for text in texts[:-1]:
        with suppress(SettingsError):
            return parse_filter(text)
    return parse_filter(texts[-1])


def told_routes(routes: Sequence[str], node_id: str, asker: str) -> str:
    """Return the ways to a consumer as ``asker`` is told of them, the shortest first, as many as fit, and
    whether there are more; empty: each leads over the asker, back to this broker, or too far."""
    if not routes:
        return node_id
    open_ways = [way for way in _ways(routes) if not {node_id, asker} & set(way) and len(way) < limits.NETWORK_HOPS_MAX]
    if sum(map(len, routes)) > _TOLD_CHARACTERS_MAX // 2:
        open_ways = needed_ways(open_ways)
    told, more_routes, asked = "", MORE_ROUTES in routes, frozenset(asked_ways(routes))
    for way in sorted(open_ways, key=lambda way: (len(way), way)):
        route = f"{'' if way in asked else UNASKED}{ROUTE_SEPARATOR.join([*way, node_id])}"
        more = ROUTES_SEPARATOR.join(filter(None, (told, route)))
        if len(more) > _TOLD_CHARACTERS_MAX:
            more_routes = True
            break
        told = more
    return f"{told}{ROUTES_SEPARATOR}{MORE_ROUTES}" if told and more_routes else told


def demand_rows(demand: Iterable[QueueDemand], node_id: str, asker: str) -> list[dict[str, Any]]:
    """Return the rows that ``asker`` is told: consumers that are alike are one row, with their number."""
    alike: dict[tuple[str, str, str, int, str, bool], int] = {}
    for one in demand:
        ways = told_routes(one.routes, node_id, asker)
        if ways:
            key = one.address, one.routing, one.filter, one.priority, ways, one.durable
            alike[key] = alike.get(key, 0) + 1
    names = ("address", "routing", "filter", "priority", "ways", "durable")
    return [{**dict(zip(names, key, strict=True)), "consumers": count} for key, count in sorted(alike.items())]


def hints_of(connectors: Mapping[str, Sequence[str]]) -> list[str]:
    """Return a sentence for each setting of ``SHARED_SETTINGS`` that some of the connectors have and some have not.

    ``connectors``: the settings that are set, by the name of the connector in a sentence.
    """
    found = []
    for setting in SHARED_SETTINGS:
        having = [name for name, settings in connectors.items() if setting in settings]
        lacking = [name for name, settings in connectors.items() if setting not in settings]
        if having and lacking:
            text = f"{setting} is set for {having[0]} and not for {lacking[0]}: the shortest way may not be found"
            found.append(text)
    return found


def epoch_of(rows: Sequence[dict[str, Any]]) -> bytes:
    """Return the epoch of a snapshot: the same for the same rows, and another one for others."""
    digest = hashlib.sha256()
    for row in rows:
        digest.update(repr(sorted(row.items())).encode())
    return digest.digest()[:IDENTITY_BYTES]
