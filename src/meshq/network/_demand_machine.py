"""The demand behind a link, as told by the other broker, and the network consumers for this demand.

What is said is a snapshot, and the network consumers are worked out from the newest one: nothing is counted up and
down, so that nothing is left over whatever was lost on the way.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, NamedTuple

import attrs

from meshq.address import INTERNAL, KEPT_COPIES_END, MANAGEMENT, ROUTINGS, TEMPORARY, check_place, tells_events
from meshq.errors import FilterError, SettingsError
from meshq.ids import is_broker_id, needed_ways
from meshq.network._inclusion_plan import InclusionPlan
from meshq.network._routing_plan import consumer_priority
from meshq.selector import parse_filter

#: Subscriptions of one other broker that are known at most.
SUBSCRIPTIONS_MAX: Final = 10_000
#: Network consumers of one link at most: well below the channels of a session.
CONSUMERS_MAX: Final = KEPT_COPIES_END
#: Copies of a topic at most for subscriptions that are alike: each has a queue.
COPIES_MAX: Final = 100
#: Characters of all routes of one network consumer, which stand in a header beside its filter.
ROUTES_CHARACTERS_MAX: Final = 700
#: Different filters of consumers behind a link to which messages are put before they go back, at most.
REPLAY_FILTERS_MAX: Final = 16
#: The filter that accepts each message.
EVERYTHING: Final = "TRUE"
#: What is between two brokers in a route.
ROUTE_SEPARATOR: Final = "/"
#: How a route begins that is there for a static inclusion: nobody has asked for it.
UNASKED: Final = "="
#: What stands behind the routes if there are more of them than fit.
MORE_ROUTES: Final = "+"


@attrs.frozen(kw_only=True)
class NetworkSubscription:
    """The demand of consumers at another broker.

    ``ways``: the ids of the brokers from the one with the consumers to the one that is linked, for each way, the
    shortest first; several if the demand of several brokers is one network consumer on the way.  ``consumers``: how
    many of them are alike.  ``more_ways``: there are ways that are not told.  ``durable``: messages of a topic are
    kept for them, as for a durable subscription.  ``unasked``: the ways that are there for a static inclusion.
    """

    address: str
    routing: str
    ways: tuple[tuple[str, ...], ...]
    filter: str = ""
    priority: int = 0
    consumers: int = 1
    more_ways: bool = False
    durable: bool = False
    unasked: tuple[tuple[str, ...], ...] = ()

    @property
    def asked(self) -> list[tuple[str, ...]]:
        """The ways to consumers."""
        return [way for way in self.ways if way not in self.unasked]

    @property
    def path(self) -> tuple[str, ...]:
        """The shortest way."""
        return self.ways[0]

    @property
    def hops(self) -> int:
        """The number of links to the nearest consumer."""
        return len(self.path)


class Destination(NamedTuple):
    """The kind and the name of a destination."""

    routing: str
    address: str


TOPIC: Final = "multicast"


class WantedConsumer(NamedTuple):
    """A network consumer that demand asks for.

    ``routes``: the ways that its messages go.  ``kept``: of a topic, whether messages wait for it while the link is
    down.  ``replay``: of a queue, the filter of messages that go there again; empty: none do.
    """

    destination: Destination
    filter: str
    priority: int
    routes: tuple[str, ...]
    kept: bool = False
    replay: str = ""


@attrs.frozen(kw_only=True)
class DemandRules:
    """The rules by which a connector turns demand into network consumers, with the id of its own broker."""

    node_id: str
    network_ttl: int = 1
    conduit: bool = True
    decrease: bool = False
    suppress: bool = False
    replay: bool = False
    inclusion: InclusionPlan = attrs.field(factory=InclusionPlan)


def is_forwarded(address: str) -> bool:
    """Whether this may be the name of a queue that is forwarded: one that users give to it."""
    try:
        check_place("address", address)
    except SettingsError:
        return False
    own = address == MANAGEMENT or tells_events(address)
    return not own and not address.startswith((INTERNAL, TEMPORARY))


#: By destination and by the broker with the consumers: the fewest hops.
Reached = Mapping[tuple[Destination, str], int]


def nearest(tables: Iterable[DemandTable]) -> Reached:
    """Return how near the links of a broker reach the consumers of each other broker."""
    found: dict[tuple[Destination, str], int] = {}
    for table in tables:
        for one in table.subscriptions:
            for way in one.ways:
                key = Destination(one.routing, one.address), way[0]
                found[key] = min(found.get(key, len(way)), len(way))
    return found


class DemandTable:
    """The demand behind one link."""

    def __init__(self, rules: DemandRules) -> None:
        self._rules = rules
        #: The id of the linked broker; empty while there is no link.
        self.target_id: str = ""
        #: The subscriptions of the newest snapshot that the rules let pass.
        self.subscriptions: tuple[NetworkSubscription, ...] = ()
        #: How many of the newest snapshot were left out, by reason: "loop", "too_far", "filtered", "too_many" or
        #: "not_allowed".
        self.left_out: Counter[str] = Counter()
        #: How many network consumers more than there may be demand has asked for.
        self.unserved: int = 0

    def replace(self, target_id: str, subscriptions: Sequence[NetworkSubscription]) -> None:
        """Take a snapshot of the linked broker in place of all that was known."""
        self.target_id = target_id
        self.left_out = Counter()
        kept: list[NetworkSubscription] = []
        for one in subscriptions:
            why, ways = self._why_not(one)
            if ways and len(kept) >= SUBSCRIPTIONS_MAX:
                why, ways = "too_many", ()
            if ways:
                kept.append(attrs.evolve(one, ways=ways))
            else:
                self.left_out[why] += 1
        self.subscriptions = tuple(kept)

    def clear(self) -> None:
        """Forget everything: there is no link."""
        self.replace("", ())

    def _why_not(self, one: NetworkSubscription) -> tuple[str, tuple[tuple[str, ...], ...]]:
        """Return the ways of a subscription that messages may go, and why there is none."""
        if one.routing not in ROUTINGS or not is_forwarded(one.address):
            return "not_allowed", ()
        if not self._rules.inclusion.passes(one.routing, one.address):
            return "filtered", ()
        straight = [way for way in one.ways if self._is_straight(way)]
        near = tuple(way for way in straight if len(way) <= self._rules.network_ttl)
        return "too_far" if straight else "loop", near

    def _is_straight(self, way: tuple[str, ...]) -> bool:
        """Whether a way is of ids and ends at the linked broker, without repeats and without this broker."""
        ends = way[-1:] == (self.target_id,) and self._rules.node_id not in way
        return ends and len(set(way)) == len(way) and all(map(is_broker_id, way))

    def wanted(self, reached: Reached) -> tuple[WantedConsumer, ...]:
        """Return the network consumers that are to be there, at most ``CONSUMERS_MAX``.  ``reached``: what all links of
        the broker reach."""
        asked = self._wanted(reached) if self.target_id else []
        found = [(one, min(count, COPIES_MAX) if one.destination.routing == TOPIC else count) for one, count in asked]
        unserved = sum(count for _, count in asked) - sum(count for _, count in found)
        self.unserved = unserved + max(0, sum(count for _, count in found) - CONSUMERS_MAX)
        return shared(found, CONSUMERS_MAX)

    def _wanted(self, reached: Reached) -> list[tuple[WantedConsumer, int]]:
        """Return each wanted network consumer, and how many there are to be."""
        rules = self._rules
        kept = [one for one in self.subscriptions if not self._suppressed(one, reached)]
        static = {Destination(one.routing, one.pattern): None for one in rules.inclusion.static}
        kept_topics = {Destination(one.routing, one.address) for one in kept if one.durable and one.routing == TOPIC}
        if rules.conduit:
            # That it is static does not depend on demand: else brokers that see each other's demand would take turns.
            ways: dict[Destination, list[tuple[str, ...]]] = {one: [(self.target_id,)] for one in static}
            behind: dict[Destination, list[NetworkSubscription]] = {}
            for one in kept:
                ways.setdefault(Destination(one.routing, one.address), []).extend(one.ways)
                behind.setdefault(Destination(one.routing, one.address), []).append(one)
            return [
                (self._merged(name, paths, behind.get(name, ()))._replace(kept=name in kept_topics), 1)
                for name, paths in ways.items()
            ]
        found = []
        for name in static:
            same = [one for one in kept if Destination(one.routing, one.address) == name]
            made = self._merged(name, [(self.target_id,)], same, more=False)
            if any(one.asked for one in same):
                # It is there for the first of them, too.
                made = made._replace(routes=(self.target_id,))
            found.append((made._replace(kept=name in kept_topics), 1))
        # A topic that is static is not wanted again by demand: that would be a second copy.
        found += self._topics_apart([one for one in kept if Destination(one.routing, one.address) not in static])
        for one in kept:
            if one.routing == TOPIC:
                continue
            destination = Destination(one.routing, one.address)
            made = self._merged(destination, one.ways, [one])
            # The static consumer is there for the first of them.
            count = one.consumers - (1 if destination in static else 0)
            static.pop(destination, None)
            if count:
                found.append((made._replace(filter=one.filter), count))
        return found

    def _topics_apart(self, kept: Sequence[NetworkSubscription]) -> list[tuple[WantedConsumer, int]]:
        """Return the network consumers for subscriptions of topics that are not merged: as many as there are at each
        broker with each filter, however many ways lead to them."""
        alike: dict[tuple[Destination, str, str, bool], list[NetworkSubscription]] = {}
        # Those for which messages are kept come first: so their numbers do not depend on the others.
        for one in sorted(kept, key=lambda one: not one.durable):
            if one.routing == TOPIC:
                key = Destination(one.routing, one.address), one.filter, one.path[0], one.durable
                alike.setdefault(key, []).append(one)
        found = []
        for (destination, filter, _, durable), same in alike.items():
            ways = [way for one in same for way in one.ways]
            made = self._merged(destination, ways, same)
            found.append((made._replace(filter=filter, kept=durable), max(one.consumers for one in same)))
        return found

    def _suppressed(self, one: NetworkSubscription, reached: Reached) -> bool:
        if not self._rules.suppress or one.routing == TOPIC:
            return False
        destination = Destination(one.routing, one.address)
        return all(reached.get((destination, way[0]), len(way)) < len(way) for way in one.ways)

    def _merged(
        self,
        destination: Destination,
        paths: Sequence[tuple[str, ...]],
        behind: Sequence[NetworkSubscription],
        *,
        more: bool = True,
    ) -> WantedConsumer:
        """Return the network consumer for demand of a destination behind these paths, which are of subscriptions
        ``behind``.  ``more``: all that there are."""
        # Each consumer of a topic has a queue of its own, in which there is nobody to come before.
        topic = destination.routing == TOPIC
        priority = consumer_priority(min(map(len, paths)), decrease=self._rules.decrease and not topic)
        asked = {way for one in behind for way in one.asked}
        unasked = frozenset(() if topic else (way for way in paths if way not in asked))
        routes = routes_of(paths, more=more and any(one.more_ways for one in behind), unasked=unasked)
        replay = replay_filter(one.filter for one in behind if one.asked) if self._rules.replay and not topic else ""
        return WantedConsumer(destination, "", priority, routes, replay=replay)


def replay_filter(filters: Iterable[str]) -> str:
    """Return the filter of messages that go back to consumers with these filters; empty: there are none.

    What is no filter is nothing to go back for.  Where the filters are too many or too long, all messages go back: no
    more often than others.
    """
    found: dict[str, None] = {}
    for text in filters:
        if not text or len(found) > REPLAY_FILTERS_MAX:
            return EVERYTHING
        if text not in found and _is_filter(text):
            found[text] = None
    joined = " OR ".join(f"({text})" for text in sorted(found))
    return joined if not joined or _is_filter(joined) else EVERYTHING


def _is_filter(text: str) -> bool:
    try:
        parse_filter(text)
    except (FilterError, SettingsError):
        return False
    return True


def shared(wanted: Sequence[tuple[WantedConsumer, int]], most: int) -> tuple[WantedConsumer, ...]:
    """Return the network consumers, each as often as its number says; where these are more than ``most``, the
    destinations have them in turn."""
    if sum(count for _, count in wanted) <= most:
        return tuple(one for one, count in wanted for _ in range(count))
    left: dict[Destination, deque[tuple[WantedConsumer, int]]] = {}
    for one, count in wanted:
        left.setdefault(one.destination, deque()).append((one, count))
    found: list[WantedConsumer] = []
    turns = deque(left.values())
    while turns and len(found) < most:
        queue = turns.popleft()
        one, count = queue.popleft()
        found.append(one)
        if count > 1:
            queue.append((one, count - 1))
        if queue:
            turns.append(queue)
    return tuple(found)


def routes_of(
    paths: Iterable[tuple[str, ...]], *, more: bool = False, unasked: Collection[tuple[str, ...]] = ()
) -> tuple[str, ...]:
    """Return the ways of a network consumer as its header has them: each once, the shortest first, as many as fit, and
    whether there are more."""
    routes: list[str] = []
    size = 0
    each = sorted(dict.fromkeys(paths), key=lambda path: (len(path), path))
    if sum(len(ROUTE_SEPARATOR.join(path)) + 3 for path in each) > ROUTES_CHARACTERS_MAX:
        each = needed_ways(each)
    for path in each:
        route = f"{UNASKED if path in unasked else ''}{ROUTE_SEPARATOR.join(path)}"
        size += len(route) + 3
        if size > ROUTES_CHARACTERS_MAX:
            more = True
            break
        routes.append(route)
    return (*routes, MORE_ROUTES) if more else tuple(routes)
