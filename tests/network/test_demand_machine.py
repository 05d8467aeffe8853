"""The demand behind a link, and the network consumers for it."""

from __future__ import annotations

import random
from collections.abc import Iterable

import attrs
import pytest

from meshq import Queues, Topics
from meshq.broker.catalog._network_demand_plan import QueueDemand, demand_rows, epoch_of
from meshq.network._demand_machine import (
    CONSUMERS_MAX,
    MORE_ROUTES,
    ROUTES_CHARACTERS_MAX,
    SUBSCRIPTIONS_MAX,
    DemandRules,
    DemandTable,
    Destination,
    NetworkSubscription,
    nearest,
    routes_of,
)
from meshq.network._inclusion_plan import InclusionPlan

A, B, C, D, E, F = (letter * 32 for letter in "abcdef")
Q = Destination("anycast", "q")


def told(*path: str, address: str = "q", **about: object) -> NetworkSubscription:
    """Demand with this path; a queue's."""
    return NetworkSubscription(**{"address": address, "routing": "anycast", "ways": (path,), **about})  # type: ignore[arg-type]


def table(*told: NetworkSubscription, target: str = B, **rules: object) -> DemandTable:
    """A link of A to a broker that has said this."""
    made = DemandTable(DemandRules(**{"node_id": A, "network_ttl": 3, **rules}))  # type: ignore[arg-type]
    made.replace(target, told)
    return made


def routes(made: DemandTable) -> list[tuple[str, ...]]:
    """The routes of its network consumers."""
    return [one.routes for one in made.wanted(nearest([made]))]


def test_conduit_makes_one_consumer_without_a_filter_of_all_demand_of_a_destination() -> None:
    made = table(told(B, filter="x = 1"), told(B, filter="x = 2", consumers=2), told(C, B), told(B, address="r"))
    wanted = made.wanted({})
    assert [(one.destination.address, one.filter, one.routes) for one in wanted] == [
        ("q", "", (B, f"{C}/{B}")),
        ("r", "", (B,)),
    ]


def test_without_conduit_each_subscription_has_a_consumer_with_its_filter() -> None:
    made = table(told(B, filter="x = 1"), told(B, filter="x = 2", consumers=2), told(C, B), conduit=False)
    assert [(one.filter, one.routes) for one in made.wanted({})] == [
        ("x = 1", (B,)),
        ("x = 2", (B,)),
        ("x = 2", (B,)),
        ("", (f"{C}/{B}",)),
    ]


def test_topics_merge_as_queues_do_and_have_one_priority() -> None:
    rows = [told(B, routing="multicast", filter="x = 1"), told(C, B, routing="multicast"), told(C, B)]
    made = table(*rows, decrease=True)
    assert [(*one.destination, one.filter, one.priority, one.routes) for one in made.wanted({})] == [
        ("multicast", "q", "", 0, (B, f"{C}/{B}")),
        ("anycast", "q", "", -6, (f"{C}/{B}",)),
    ]
    # A longer way to a topic is none to leave out: what comes by two ways is stored once.
    made = table(*rows, conduit=False, suppress=True)
    found = [
        one.destination.routing
        for one in made.wanted({(Destination(routing, "q"), C): 1 for routing in ("anycast", "multicast")})
    ]
    assert found == ["multicast", "multicast"]


def test_without_conduit_a_subscription_of_a_topic_counts_once_however_many_ways_lead_to_it() -> None:
    rows = [
        told(C, B, routing="multicast", consumers=2),
        told(C, D, B, routing="multicast", consumers=2),
        told(D, B, routing="multicast"),
        told(B, routing="multicast", filter="x = 1"),
    ]
    assert [(one.filter, one.routes) for one in table(*rows, conduit=False).wanted({})] == [
        ("", (f"{C}/{B}", f"{C}/{D}/{B}")),
        ("", (f"{C}/{B}", f"{C}/{D}/{B}")),
        ("", (f"{D}/{B}",)),
        ("x = 1", (B,)),
    ]


def test_messages_of_a_topic_are_kept_if_one_of_its_queues_is_durable() -> None:
    news = {"routing": "multicast", "address": "t"}
    volatile, durable = told(B, **news), told(C, B, durable=True, **news)
    made = table(volatile, durable, told(B, durable=True))
    assert [(one.destination.address, one.kept) for one in made.wanted({})] == [("t", True), ("q", False)]
    assert [one.kept for one in table(volatile).wanted({})] == [False]
    static = InclusionPlan(statically_included=[Topics("t")])
    for conduit in (True, False):
        made = table(durable, inclusion=static, conduit=conduit)
        assert [one.kept for one in made.wanted({})] == [True]
    # The copies of durable ones have the first numbers, whoever else comes and goes.
    apart = table(volatile, told(B, durable=True, consumers=2, **news), conduit=False)
    assert [one.kept for one in apart.wanted({})] == [True, True, False]


def test_conduit_ends_with_the_last_of_its_subscriptions() -> None:
    made = table(told(B, filter="x = 1"), told(C, B))
    assert routes(made) == [(B, f"{C}/{B}")]
    made.replace(B, [told(C, B)])
    assert routes(made) == [(f"{C}/{B}",)]
    made.replace(B, [])
    assert routes(made) == []


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ((), "loop"),
        ((C,), "loop"),
        ((A, B), "loop"),
        ((C, D, C, B), "loop"),
        ((C, D, E, B), "too_far"),
    ],
)
def test_a_path_that_leads_in_a_circle_or_too_far_is_left_out_and_counted(path: tuple[str, ...], why: str) -> None:
    made = table(told(*path), told(C, D, B))
    assert routes(made) == [(f"{C}/{D}/{B}",)]
    assert dict(made.left_out) == {why: 1}


@pytest.mark.parametrize(("ttl", "hops"), [(1, 1), (2, 2), (3, 3), (16, 5)])
def test_demand_comes_from_as_far_as_the_network_ttl(ttl: int, hops: int) -> None:
    far = [told(*way, B) for way in ((), (C,), (D, C), (E, D, C), (F, E, D, C))]
    made = table(*far, network_ttl=ttl)
    assert max(one.hops for one in made.subscriptions) == hops
    assert made.left_out["too_far"] == 5 - hops


def test_demand_for_what_does_not_pass_is_left_out() -> None:
    made = table(told(B), told(B, address="r"), inclusion=InclusionPlan(excluded=[Queues("q")]))
    assert [one.destination.address for one in made.wanted({})] == ["r"]
    assert made.left_out["filtered"] == 1


def test_what_is_statically_included_has_a_consumer_without_demand_and_one_with_it() -> None:
    rules = {"inclusion": InclusionPlan(statically_included=[Queues("q")])}
    # That nobody has asked for it stands with the way.
    assert routes(table(**rules)) == [(f"={B}",)]
    assert routes(table(told(C, B), **rules)) == [(f"={B}", f"{C}/{B}")]
    assert routes(table(told(B), **rules)) == [(B,)]
    assert routes(table(**rules, conduit=False)) == [(f"={B}",)]
    assert routes(table(told(C, B), conduit=False, **rules)) == [(B,)]
    several = table(told(C, B, consumers=2), told(D, B), conduit=False, **rules)
    assert routes(several) == [(B,), (f"{C}/{B}",), (f"{D}/{B}",)]


def test_with_replay_a_network_consumer_says_what_goes_back() -> None:
    """Nothing for a way that nobody has asked for, and for a topic."""
    static = InclusionPlan(statically_included=[Queues("q")])
    unasked = told(C, B, unasked=((C, B),))
    for subscriptions, expected in (
        ([told(B)], "TRUE"),
        (
            [told(B, filter="x = 1"), told(B, filter="a = 1 OR b"), told(C, B, filter="x = 1")],
            "(a = 1 OR b) OR (x = 1)",
        ),
        ([told(B, filter="no ("), told(B, filter="x = 1")], "(x = 1)"),
        ([told(B, filter="no (")], ""),
        ([told(B, filter=f"x = {number}") for number in range(20)], "TRUE"),
        ([unasked], ""),
        ([unasked, told(D, B, filter="y = 1")], "(y = 1)"),
        ([told(B, routing="multicast")], ""),
    ):
        assert [one.replay for one in table(*subscriptions, replay=True).wanted({})] == [expected]
        assert [one.replay for one in table(*subscriptions).wanted({})] == [""]
    assert [one.replay for one in table(inclusion=static, replay=True).wanted({})] == [""]
    assert [one.routes for one in table(unasked, replay=True).wanted({})] == [(f"={C}/{B}",)]
    apart = table(told(B, filter="x = 1"), told(B), conduit=False, replay=True).wanted({})
    assert [(one.filter, one.replay) for one in apart] == [("x = 1", "(x = 1)"), ("", "TRUE")]


def test_there_is_no_consumer_without_a_link() -> None:
    made = table(told(B), inclusion=InclusionPlan(statically_included=[Queues("q")]))
    made.clear()
    assert made.wanted({}) == ()
    assert made.subscriptions == ()


def test_a_broker_in_the_place_of_another_has_none_of_its_demand() -> None:
    made = table(told(B), told(C, B))
    made.replace(D, [told(B), told(D)])
    assert routes(made) == [(D,)]


def test_the_nearest_demand_decides_the_priority() -> None:
    three = [told(B), told(C, B), told(D, C, B)]
    assert [one.priority for one in table(*three, decrease=True, conduit=False).wanted({})] == [-5, -6, -7]
    assert [one.priority for one in table(*three, decrease=True).wanted({})] == [-5]
    assert [one.priority for one in table(told(D, C, B), decrease=True).wanted({})] == [-7]
    assert [one.priority for one in table(*three, conduit=False).wanted({})] == [0, 0, 0]


@pytest.mark.parametrize("direct_first", [True, False])
def test_demand_that_is_reached_nearer_is_suppressed_in_whatever_order_it_is_heard_of(direct_first: bool) -> None:
    direct, around = table(suppress=True), table(target=C, suppress=True)
    steps = [(direct, B, told(B)), (around, C, told(B, C))]
    for one, target, demand in steps if direct_first else reversed(steps):
        one.replace(target, [demand])
    reached = nearest([direct, around])
    assert [one.routes for one in direct.wanted(reached)] == [(B,)]
    assert around.wanted(reached) == ()
    direct.clear()
    assert [one.routes for one in around.wanted(nearest([direct, around]))] == [(f"{B}/{C}",)]


def test_nothing_is_suppressed_unasked_and_nothing_that_is_as_near() -> None:
    for suppress, left in ((False, 2), (True, 1)):
        direct, around = table(told(B), suppress=suppress), table(told(B, C), target=C, suppress=suppress)
        reached = nearest([direct, around])
        assert len(direct.wanted(reached)) + len(around.wanted(reached)) == left
    first, second = table(told(B), suppress=True), table(told(B), suppress=True)
    reached = nearest([first, second])
    assert len(first.wanted(reached)) == len(second.wanted(reached)) == 1


def test_demand_of_several_brokers_in_one_is_suppressed_only_with_all_of_it() -> None:
    direct = table(told(B), suppress=True)
    both = NetworkSubscription(address="q", routing="anycast", ways=((B, C), (D, C)))
    around = table(both, target=C, suppress=True)
    assert [one.routes for one in around.wanted(nearest([direct, around]))] == [(f"{B}/{C}", f"{D}/{C}")]
    around.replace(C, [attrs.evolve(both, ways=((B, C),))])
    assert around.wanted(nearest([direct, around])) == ()


def test_own_demand_of_a_broker_on_the_way_is_not_suppressed() -> None:
    direct, around = table(told(B), suppress=True), table(told(B, C), told(C), target=C, suppress=True)
    assert [one.routes for one in around.wanted(nearest([direct, around]))] == [(C,)]


def test_a_flood_is_bounded_and_counted() -> None:
    flood = [told(B, address=f"q{number}") for number in range(SUBSCRIPTIONS_MAX + 5)]
    made = table(*flood)
    assert len(made.subscriptions) == SUBSCRIPTIONS_MAX
    assert made.left_out["too_many"] == 5
    assert len(made.wanted({})) == CONSUMERS_MAX
    assert made.unserved == SUBSCRIPTIONS_MAX - CONSUMERS_MAX


def test_routes_are_as_many_as_fit_the_shortest_first() -> None:
    paths = [(f"{number:032x}", B) for number in range(100)]
    assert routes_of([*paths, (B,), (B,)]) == (B,)
    found = routes_of(paths)
    assert 5 < len(found) < 20
    assert sum(map(len, found)) < ROUTES_CHARACTERS_MAX
    assert found[-1] == MORE_ROUTES
    assert routes_of([(B,)]) == (B,)
    assert routes_of([(B,)], more=True) == (B, MORE_ROUTES)


def test_alike_consumers_are_one_row_and_the_epoch_is_that_of_the_rows() -> None:
    demand = [
        QueueDemand("q", "anycast", "", 0),
        QueueDemand("q", "anycast", "", 0),
        QueueDemand("q", "anycast", "x", 3),
    ]
    rows = demand_rows(demand, B, A)
    assert [(row["filter"], row["priority"], row["ways"], row["consumers"]) for row in rows] == [
        ("", 0, B, 2),
        ("x", 3, B, 1),
    ]
    assert epoch_of(rows) == epoch_of(demand_rows(reversed(demand), B, A))
    assert epoch_of(rows) != epoch_of(rows[:1]) != epoch_of([])


def test_nobody_is_told_of_demand_on_whose_way_they_are() -> None:
    behind = [QueueDemand("q", "anycast", "", -5, (f"{D}/{C}", f"{A}/{E}/{C}"))]
    assert [row["ways"] for row in demand_rows(behind, B, A)] == [f"{D}/{C}/{B}"]
    assert [row["ways"] for row in demand_rows(behind, B, D)] == [f"{A}/{E}/{C}/{B}"]
    assert [row["ways"] for row in demand_rows(behind, B, F)] == [f"{D}/{C}/{B} {A}/{E}/{C}/{B}"]
    assert demand_rows(behind, B, C) == []
    assert demand_rows(behind, E, D) == []


class Graph:
    """Brokers that hear of each other's demand over directed links, in any order."""

    def __init__(self, links: Iterable[tuple[str, str]], ttl: int, *, conduit: bool) -> None:
        self.links = list(dict.fromkeys(links))
        self.rules = {"network_ttl": ttl, "conduit": conduit}
        self.local: dict[str, int] = {}
        self.tables = {link: DemandTable(DemandRules(node_id=link[0], **self.rules)) for link in self.links}  # type: ignore[arg-type]

    def demand(self, node: str) -> list[QueueDemand]:
        """What the queues of a broker show."""
        found = [QueueDemand("q", "anycast", "", 0)] * self.local.get(node, 0)
        for (here, _), made in self.tables.items():
            if here == node:
                found += [QueueDemand("q", "anycast", "", one.priority, one.routes) for one in made.wanted({})]
        return found

    def hear(self, link: tuple[str, str]) -> bool:
        """Have the broker of a link ask the other one; return whether anything is new."""
        here, there = link
        rows = demand_rows(self.demand(there), there, here)
        before = self.tables[link].subscriptions, self.tables[link].target_id
        said = [
            NetworkSubscription(**{**row, "ways": tuple(tuple(way.split("/")) for way in row["ways"].split())})  # type: ignore[arg-type]
            for row in rows
        ]
        self.tables[link].replace(there, said)
        return before != (self.tables[link].subscriptions, there)

    def settle(self, chance: random.Random) -> None:
        """Ask until nothing is new."""
        for _ in range(200):
            order = chance.sample(self.links, len(self.links))
            if not [link for link in order if self.hear(link)]:
                return
        raise AssertionError("the demand does not settle")

    def near(self, ttl: int) -> dict[str, set[str]]:
        """By broker: those with consumers that a message can reach in so many hops, without one on its way."""
        ways: dict[str, set[str]] = {}
        for start in {here for here, _ in self.links}:
            todo: list[tuple[str, ...]] = [(start,)]
            while todo:
                way = todo.pop()
                for here, there in self.links:
                    if here == way[-1] and there not in way and len(way) <= ttl:
                        todo.append((*way, there))
                        if self.local.get(there):
                            ways.setdefault(start, set()).add(there)
        return ways


@pytest.mark.parametrize("seed", range(150))
def test_demand_settles_on_every_graph_and_goes_with_the_last_consumer(seed: int) -> None:
    chance = random.Random(seed)
    nodes = [A, B, C, D, E][: chance.randint(2, 5)]
    pairs = [(one, other) for one in nodes for other in nodes if one != other]
    ttl = chance.randint(1, 5)
    graph = Graph(chance.sample(pairs, chance.randint(1, min(len(pairs), 9))), ttl, conduit=chance.random() < 0.5)
    for _ in range(6):
        node = chance.choice(nodes)
        graph.local[node] = chance.randint(0, 2)
        if chance.random() < 0.5:
            # A broker that begins anew knows nothing, and its consumers come later, if at all.
            again = chance.choice(nodes)
            for link in graph.links:
                if again in link:
                    graph.tables[link].clear()
        if chance.random() < 0.7:
            graph.settle(chance)
    graph.settle(chance)
    reached: dict[str, set[str]] = {}
    for (here, there), made in graph.tables.items():
        for one in made.subscriptions:
            for way in one.ways:
                assert here not in way and len(set(way)) == len(way) <= ttl and way[-1] == there
                reached.setdefault(here, set()).add(way[0])
    assert reached == graph.near(ttl)
    graph.local.clear()
    graph.settle(chance)
    assert [made.subscriptions for made in graph.tables.values()] == [()] * len(graph.links)
