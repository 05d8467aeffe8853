"""Policies of balancing: which of several targets each of them chooses, one time after another."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import pytest

from meshq import BalancerPolicy, BalancerTarget, FirstElement, Random, RandomSticky, RoundRobin, SettingsError
from meshq.lb import NAMES, policy_of
from meshq.testing import POLICY_CHECKS, NonconformanceError, check_policy

A, B, C, D = NODES = tuple(BalancerTarget(url=f"tcp://{name}:1") for name in "abcd")
SEEDS = range(200)


def picks(policy: BalancerPolicy, count: int, targets: Sequence[BalancerTarget] = NODES) -> str:
    """The names of the targets that a policy chooses."""
    chosen = [policy.select(targets, "") for _ in range(count)]
    return "".join(one.url[6] for one in chosen if one is not None)


@pytest.mark.parametrize("check", POLICY_CHECKS)
@pytest.mark.parametrize("policy", [*NAMES.values()])
def test_the_policies_conform(check: Callable[[BalancerPolicy], None], policy: type[BalancerPolicy]) -> None:
    check(policy())


# -- one by one


def test_round_robin_begins_anywhere_by_chance_and_goes_in_order() -> None:
    begins: Counter[str] = Counter()
    for seed in SEEDS:
        made = picks(RoundRobin().begin(seed), 9)
        assert made in ("abcdabcda", "bcdabcdab", "cdabcdabc", "dabcdabcd")
        begins[made[0]] += 1
        assert picks(RoundRobin().begin(seed), 9) == made
    assert min(begins[name] for name in "abcd") > len(SEEDS) / 8


def test_round_robin_goes_on_behind_its_last_choice_when_nodes_come_and_go() -> None:
    made = next(made for made in map(RoundRobin().begin, SEEDS) if picks(made, 1) == "b")
    assert picks(made, 1, (A, B, C)) == "c"
    assert picks(made, 2, (A, B, D)) == "da"
    assert picks(made, 2, (A, C)) == "ca"
    assert picks(made, 1, (D,)) == "d"
    assert picks(made, 2, (D, A, B)) == "ab"


def test_round_robin_knows_a_node_by_its_url_or_its_id() -> None:
    listed = BalancerTarget(url="tcp://localhost:1")
    met = BalancerTarget(url="tcp://localhost:1", node_id="0a")
    moved = BalancerTarget(url="tcp://a:2", node_id="0a")
    made = RoundRobin()
    assert made.select((listed,), "") == listed
    assert made.select((met, B), "") == B
    assert made.select((met, B), "") == met
    assert made.select((B, moved, C), "") == C


def test_random_chooses_each_node_equally_often_and_the_same_again_from_the_same_seed() -> None:
    made = picks(Random().begin(7), 4_000)
    counts = Counter(made)
    # Five standard deviations of 27.
    assert set(counts) == set("abcd") and all(abs(count - 1_000) < 137 for count in counts.values())
    pairs = Counter(pairwise(made))
    assert len(pairs) == 16 and all(abs(count - 250) < 77 for count in pairs.values())
    assert picks(Random().begin(7), 4_000) == made
    assert picks(Random().begin(8), 4_000) != made


def test_random_sticky_stays_where_it_began_and_begins_everywhere() -> None:
    begins = set()
    for seed in SEEDS:
        made = picks(RandomSticky().begin(seed), 20)
        assert made == made[0] * 20
        begins.add(made[0])
    assert begins == set("abcd")


def test_random_sticky_has_one_stand_in_and_comes_back() -> None:
    for seed in SEEDS:
        made = RandomSticky().begin(seed)
        chosen = made.select(NODES, "")
        others = [one for one in NODES if one != chosen]
        stand_ins = {made.select(others, "") for _ in range(20)}
        assert len(stand_ins) == 1 and chosen not in stand_ins
        assert made.select(NODES, "") == chosen


def test_first_element_is_the_first_one_each_time() -> None:
    assert picks(FirstElement(), 20) == "a" * 20
    assert picks(FirstElement().begin(9), 3, (C, A)) == "ccc"


# -- one's own


class LastElement(BalancerPolicy):
    """The last one of the list."""

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return targets[-1] if targets else None


class Every(BalancerPolicy):
    """A policy with a state, which a copy takes along."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        self.seen.append(len(targets))
        return targets[len(self.seen) % len(targets)] if targets else None


@pytest.mark.parametrize("policy", [LastElement, Every])
def test_a_policy_of_ones_own_needs_nothing_but_select(policy: type[BalancerPolicy]) -> None:
    check_policy(policy)


class Stranger(LastElement):
    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return BalancerTarget(url="tcp://elsewhere:1")


class Breaking(LastElement):
    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        assert isinstance(targets, list | tuple)
        if isinstance(targets, list):
            targets.reverse()
        return None


class Sharing(Every):
    def begin(self, chance: int) -> BalancerPolicy:
        return self


class Restless(LastElement):
    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return random.choice(targets) if targets else None


class Numbered(LastElement):
    def begin(self, chance: int) -> BalancerPolicy:
        return chance  # type: ignore[return-value]


class Careless(LastElement):
    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        return targets[-1]


class Stale(LastElement):
    last: BalancerTarget | None = None

    def select(self, targets: Sequence[BalancerTarget], key: str) -> BalancerTarget | None:
        self.last = self.last if self.last is not None and not targets else super().select(targets, key)
        return self.last


@pytest.mark.parametrize(
    ("policy", "promise"),
    [
        (Stranger, "one of the targets that it was given"),
        (Breaking, "stays as it is"),
        (Sharing, "as if no other copy did"),
        (Restless, "as if no other copy did"),
        (Numbered, "what begins is a policy"),
        (Careless, "chooses among 0 targets: it has raised IndexError"),
        (Stale, "one of the targets that it was given|of no targets none"),
    ],
)
def test_a_policy_that_breaks_a_promise_is_found_out(policy: type[BalancerPolicy], promise: str) -> None:
    with pytest.raises(NonconformanceError, match=promise):
        check_policy(policy)


def test_a_policy_shows_as_its_class() -> None:
    assert [repr(one) for one in (LastElement(), RoundRobin())] == ["LastElement()", "RoundRobin()"]


@pytest.mark.parametrize("made", [LastElement(), None, "random", lambda: None, int])
def test_what_makes_no_policy_is_refused(made: Any) -> None:
    with pytest.raises(SettingsError, match=r"make_policy=.*a subclass of BalancerPolicy"):
        check_policy(made)


# -- by name


def test_a_policy_is_given_by_name_by_class_or_as_an_object() -> None:
    for name, policy in NAMES.items():
        assert type(policy_of("x", name)) is policy
        assert type(policy_of("x", policy)) is policy
        given = policy()
        assert policy_of("x", given) is given
        assert repr(given) == f"{policy.__name__}()"
    assert type(policy_of("x", f"{__name__}:LastElement")) is LastElement
    assert type(policy_of("x", "meshq.lb:Random")) is Random


class Demanding(LastElement):
    def __init__(self, zone: str) -> None:
        self.zone = zone


@pytest.mark.parametrize(
    "value",
    [
        "",
        "last",
        "Random",
        "meshq:Nothing",
        "no_module_of_this_name:Random",
        "meshq:",
        ":Random",
        "..lb:Random",
        "meshq:Broker",
        "meshq.limits:KIB",
        3,
        BalancerPolicy,
        Demanding,
        int,
        ("random",),
    ],
)
def test_what_is_no_policy_is_refused_with_the_names_of_those_that_are(value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        policy_of("load_balancing", value)
    assert caught.value.setting == "load_balancing" and caught.value.outcome == "not_done"
    names = "'round_robin', 'random', 'random_sticky', 'first_element', 'consistent_hash', 'least_connections'"
    assert f"{names}, 'module:Class'" in str(caught.value)
