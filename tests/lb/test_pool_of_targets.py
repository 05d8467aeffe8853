"""Pools and caches of balancers, and the order in which a balancer decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

import pytest

from meshq import BalancerPolicy, BalancerTarget, FirstElement, LeastConnections, RoundRobin, SettingsError
from meshq.lb import AffinityCache, BalancingMachine, KeyFilter, PoolMachine, TargetAnswer

URLS = tuple(f"tcp://n{number}:1" for number in range(3))
OWN = "ff"


def answer(number: int, connections: int = 0) -> TargetAnswer:
    return TargetAnswer(node_id=f"0{number}", node_name=f"n{number}", connections=connections)


def pool_of(*ready: int, quorum: int = 1) -> PoolMachine:
    pool = PoolMachine(quorum_size=quorum, own_id=OWN)
    pool.replace(URLS)
    for number in ready:
        pool.answered(URLS[number], answer(number), 0.0)
    return pool


def ready(pool: PoolMachine) -> list[str]:
    return [one.url for one in pool.ready()]


def machine(
    pool: PoolMachine | None, policy: BalancerPolicy | None, timeout: float = math.inf, local: str | None = None
) -> BalancingMachine:
    kept = KeyFilter("x", local) if local is not None else None
    return BalancingMachine(policy=policy, pool=pool, cache=AffinityCache(timeout), local_filter=kept)


# -- pools


def test_only_targets_that_have_answered_last_are_ready_in_the_order_of_the_list() -> None:
    pool = pool_of()
    assert ready(pool) == [] and [one.state for one in pool.states()] == ["new"] * 3
    pool.answered(URLS[2], answer(2), 0.0)
    pool.answered(URLS[0], answer(0), 0.0)
    assert ready(pool) == [URLS[0], URLS[2]]
    pool.failed(URLS[0], "it is gone")
    assert ready(pool) == [URLS[2]] and pool.states()[0].error == "it is gone"
    pool.answered(URLS[0], answer(0), 1.0)
    assert ready(pool) == [URLS[0], URLS[2]] and pool.states()[0].error == ""


def test_a_pool_is_active_from_its_quorum_on_and_no_longer_below_it() -> None:
    pool = pool_of(0, quorum=2)
    assert not pool.active
    pool.answered(URLS[1], answer(1), 0.0)
    assert pool.active
    pool.failed(URLS[0], "gone")
    assert not pool.active
    kinds = [one.kind for one in pool.take_changes()]
    assert kinds == ["ready", "ready", "quorum_reached", "not_ready", "quorum_lost"] and not pool.take_changes()


def test_a_target_that_is_listed_no_more_is_gone_and_one_that_stays_keeps_its_state() -> None:
    pool = pool_of(0, 1)
    pool.take_changes()
    pool.replace((URLS[1], URLS[2]))
    assert ready(pool) == [URLS[1]]
    assert [(one.kind, one.url) for one in pool.take_changes()] == [("not_ready", URLS[0])]
    pool.answered(URLS[0], answer(0), 1.0)
    pool.failed(URLS[0], "late")
    assert ready(pool) == [URLS[1]] and pool.urls() == (URLS[1], URLS[2])


def test_the_broker_itself_is_a_target_only_as_the_setting_says_and_one_node_counts_once() -> None:
    pool = pool_of(0)
    own = TargetAnswer(node_id=OWN, node_name="me", connections=0)
    pool.answered(URLS[1], own, 0.0)
    assert ready(pool) == [URLS[0]] and "it is this broker itself" in pool.states()[1].error
    pool.answered(URLS[2], answer(0), 0.0)
    assert ready(pool) == [URLS[0]]
    with_local = PoolMachine(quorum_size=1, own_id=OWN)
    with_local.replace(("tcp://me:1", *URLS), local="tcp://me:1")
    with_local.answered("tcp://me:1", own, 0.0)
    assert [one.local for one in with_local.ready()] == [True] and with_local.urls() == URLS


def test_clients_under_way_count_until_a_later_probe_has_counted_them() -> None:
    pool = pool_of(0, 1)
    for at in (1.0, 2.0, 5.0):
        pool.sent(pool.ready()[0], at)
    assert [one.connections for one in pool.ready()] == [3, 0] and pool.states()[0].under_way == 3
    pool.answered(URLS[0], answer(0, connections=2), 5.5)
    assert pool.ready()[0].connections == 3 and pool.states()[0].under_way == 1
    pool.failed(URLS[0], "gone")
    assert pool.states()[0].under_way == 0


# -- the order of a decision


def test_the_order_is_key_local_filter_cache_ready_targets_policy_cache() -> None:
    made = machine(pool_of(0, 1, 2), FirstElement(), local="^FOO.*")
    first = made.decide("BAR", 0.0)
    assert first.outcome == "remote" and first.target is not None and first.target.url == URLS[0]
    assert [step.split(" ")[:3] for step in first.steps] == [
        ["the", "key", "is"],
        ["the", "local", "filter"],
        ["the", "cache", "has"],
        ["the", "pool", "has"],
        ["FirstElement()", "chooses", URLS[0]],
    ]
    again = made.decide("BAR", 1.0)
    assert again.steps[2:] == (f"the cache has {URLS[0]}, which is ready",)
    here = made.decide("FOO", 1.0)
    assert here.outcome == "local" and len(here.steps) == 2 and "stays here" in here.reason


def test_an_answer_of_the_local_filter_is_not_cached() -> None:
    made = machine(pool_of(0), FirstElement(), local="FOO")
    assert made.decide("FOO", 0.0).outcome == "local"
    made.local_filter = None
    assert "the cache has no ready target for it" in made.decide("FOO", 0.0).steps


def test_without_a_pool_what_the_filter_does_not_match_is_refused() -> None:
    made = machine(None, None, local="^FOO.*")
    assert made.decide("FOO1", 0.0).outcome == "local"
    refused = made.decide("BAR", 0.0)
    assert (refused.outcome, refused.waits) == ("none", False) and "another broker serves it" in refused.reason


def test_a_cached_target_is_used_below_the_quorum_and_nothing_else_is() -> None:
    pool = pool_of(0, 1, quorum=2)
    made = machine(pool, FirstElement())
    assert made.decide("a", 0.0).target is not None
    pool.failed(URLS[1], "gone")
    kept = made.decide("a", 1.0)
    assert kept.target is not None and kept.target.url == URLS[0]
    fresh = made.decide("b", 1.0)
    assert (fresh.outcome, fresh.waits) == ("none", True) and "no quorum" in fresh.reason
    pool.failed(URLS[0], "gone, too")
    assert made.decide("a", 2.0).waits


def test_a_cached_target_that_is_not_ready_is_replaced() -> None:
    pool = pool_of(0, 1)
    made = machine(pool, FirstElement())
    assert urls(made, "a") == [URLS[0]]
    pool.failed(URLS[0], "gone")
    assert urls(made, "a") == [URLS[1]]
    pool.answered(URLS[0], answer(0), 2.0)
    assert urls(made, "a", "b") == [URLS[1], URLS[0]]


def urls(made: BalancingMachine, *keys: str, now: float = 0.0) -> list[str]:
    found = [made.decide(key, now).target for key in keys]
    return [one.url for one in found if one is not None]


def test_first_element_takes_the_second_only_while_the_first_is_not_ready() -> None:
    pool = pool_of(0, 1)
    made = machine(pool, FirstElement(), 0.0)
    assert urls(made, "a", "b") == [URLS[0]] * 2
    pool.failed(URLS[0], "stopped")
    assert urls(made, "a") == [URLS[1]]
    pool.answered(URLS[0], answer(0), 1.0)
    assert urls(made, "a") == [URLS[0]]


def test_round_robin_gives_nine_keys_over_three_targets_three_each_without_a_cache() -> None:
    made = machine(pool_of(0, 1, 2), RoundRobin(), 0.0)
    assert Counter(urls(made, *"abcdefghi")) == dict.fromkeys(URLS, 3)


def test_thirty_prefixes_are_ten_each_with_least_connections_and_a_prefix_stays() -> None:
    pool = pool_of(0, 1, 2)
    made = machine(pool, LeastConnections())
    keys = [f"{number:03d}" for number in range(30)]
    counts: Counter[str] = Counter()
    chosen = {}
    for key in keys:
        target = made.decide(key, 0.0).target
        assert target is not None
        pool.sent(target, 0.0)
        counts[target.url] += 1
        chosen[key] = target.url
    assert counts == dict.fromkeys(URLS, 10)
    assert {key: urls(made, key)[0] for key in keys} == chosen


YEAR = 365 * 86_400.0


def test_a_cached_target_stays_for_as_long_as_the_timeout_says_from_its_last_use() -> None:
    forever = machine(pool_of(0, 1, 2), RoundRobin())
    assert len(set(urls(forever, "a", "a", "a", "a", "a"))) == 1
    assert urls(forever, "a", now=YEAR) == urls(forever, "a")
    never = machine(pool_of(0, 1, 2), RoundRobin(), 0.0)
    assert len(set(urls(never, "a", "a", "a"))) == 3
    second = machine(pool_of(0, 1, 2), RoundRobin(), 1.0)
    first = urls(second, "a", now=0.0)
    assert urls(second, "a", now=0.999) == first and urls(second, "a", now=1.998) == first
    assert urls(second, "a", now=2.998) != first


def test_a_key_stays_with_its_node_at_another_place_and_with_its_place_when_a_new_node_is_there() -> None:
    places = ("tcp://a1:1", "tcp://a2:1", "tcp://b:1")
    pool = PoolMachine(quorum_size=1, own_id=OWN)
    pool.replace(places)
    for url, number in zip(places, (0, 0, 1), strict=True):
        pool.answered(url, answer(number), 0.0)
    made = machine(pool, RoundRobin())
    keys = "abcdef"

    def nodes() -> list[str]:
        return [one.node_id for one in (made.decide(key, 0.0).target for key in keys) if one is not None]

    before = nodes()
    assert set(before) == {"00", "01"} and len(before) == len(keys)
    pool.failed("tcp://a1:1", "away")
    assert nodes() == before
    pool.answered("tcp://a1:1", answer(0), 1.0)
    assert nodes() == before
    pool.replace(("tcp://moved:1", "tcp://b:1"))
    pool.answered("tcp://moved:1", answer(0), 2.0)
    assert nodes() == before
    pool.answered("tcp://moved:1", answer(2), 3.0)
    assert nodes() == ["02" if one == "00" else one for one in before]


def test_the_cache_holds_so_many_keys_and_forgets_what_was_used_longest_ago() -> None:
    cache = AffinityCache(10.0, keys_max=2)
    for at, key in enumerate("abac"):
        cache.put(key, "x", float(at))
    assert [cache.get(key, 4.0)[0] for key in "abc"] == ["x", "", "x"] and cache.by_target() == {"x": 2}
    cache.put("d", "y", 12.5)
    assert len(cache) == 2 and cache.get("a", 12.5) == ("", "")
    cache.clear()
    assert not cache.by_target()


def test_nodes_that_have_sent_a_client_on_do_not_get_it_again_and_it_is_at_home_when_no_other_is_left() -> None:
    made = machine(pool_of(0, 1), FirstElement())
    assert urls(made, "a") == [URLS[0]]
    other = made.decide("a", 0.0, visited=("00",))
    assert other.target is not None and other.target.url == URLS[1]
    # That was for one client on its way, and no choice for the key.
    assert urls(made, "a") == [URLS[0]]
    home = made.decide("a", 0.0, visited=("00", "01"))
    assert home.outcome == "local" and "sent it on already" in home.reason


def test_a_client_that_was_sent_to_a_broker_which_is_a_target_stays_there() -> None:
    pool = pool_of(0, 1)
    own = "tcp://me:1"
    pool.replace((*URLS, own), local=own)
    pool.answered(own, TargetAnswer(node_id=OWN, node_name="me", connections=0), 0.0)
    made = machine(pool, FirstElement())
    assert urls(made, "a") == [URLS[0]]
    stays = made.decide("a", 0.0, visited=("07",))
    assert stays.outcome == "local" and stays.target is not None and stays.target.url == own
    assert "it was sent here" in stays.reason and urls(made, "a") == [URLS[0]]


def test_to_explain_a_decision_changes_nothing() -> None:
    made = machine(pool_of(0, 1, 2), RoundRobin())
    explained = made.explain("a", 0.0)
    assert made.explain("a", 0.0) == explained
    assert made.decide("a", 0.0) == explained
    assert "the cache has" in made.explain("a", 0.0).reason


class Odd(BalancerPolicy):
    """A policy that chooses what it is told."""

    def __init__(self, answer: object) -> None:
        self.answer = answer

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return self.answer  # type: ignore[return-value]


def test_a_policy_may_choose_none_and_what_it_was_not_given_is_an_error() -> None:
    none = machine(pool_of(0), Odd(None)).decide("a", 0.0)
    assert (none.outcome, none.waits) == ("none", False) and "chooses none" in none.reason
    for wrong in (BalancerTarget(url="tcp://elsewhere:1"), 7):
        with pytest.raises(SettingsError, match="selects one of the given targets"):
            machine(pool_of(0), Odd(wrong)).decide("a", 0.0)


def test_in_a_storm_of_two_thousand_reconnects_no_target_gets_more_than_its_share() -> None:
    pool = PoolMachine(quorum_size=1, own_id=OWN)
    urls_of_five = tuple(f"tcp://n{number}:1" for number in range(5))
    pool.replace(urls_of_five)
    for number, url in enumerate(urls_of_five):
        pool.answered(url, answer(number, connections=400), 0.0)
    made = machine(pool, LeastConnections(), 0.0)
    # One of five has died with its clients, and all of the others come back as well: 2,000 within two seconds, in
    # which the four that are left are probed twice, each time with a part of those that were sent to them.
    pool.failed(urls_of_five[0], "gone")
    arrived = dict.fromkeys(urls_of_five[1:], 0)
    for url, number in zip(arrived, range(1, 5), strict=True):
        pool.answered(url, answer(number), 0.0)
    for client in range(2_000):
        now = client / 1_000
        target = made.decide(f"c{client}", now).target
        assert target is not None
        pool.sent(target, now)
        arrived[target.url] += 1
        if client in (700, 1_400):
            for url, number in zip(arrived, range(1, 5), strict=True):
                # Whoever was sent less than 0.2 s ago has not come yet.
                pool.answered(url, answer(number, connections=max(arrived[url] - 50, 0)), now)
    assert sum(arrived.values()) == 2_000 and max(arrived.values()) <= 1.2 * 500
