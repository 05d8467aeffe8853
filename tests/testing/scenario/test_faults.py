"""Faults as values, the faults that a seed draws, their steps, and the search for those that a failure needs."""

from __future__ import annotations

import random
from typing import Any

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq.errors import SettingsError, UsageError
from meshq.testing import Fault
from meshq.testing.scenario._drawn_faults import BACK_S, drawn_faults
from meshq.testing.scenario._fault import DESTRUCTIVE, DOWN_KINDS, KINDS, kinds_of
from meshq.testing.scenario._shrink_plan import shortened, shrunk
from meshq.testing.scenario._steps_plan import HEALTHY, LinkFault, Step, changed, links_of, steps_of

NODES = ["n0", "n1", "n2"]


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ((0, "explode", "n0"), "kind='explode' is not allowed; allowed: kill, pause"),
        ((-1, "kill", "n0"), "at=-1"),
        ((0, "kill", "n0", float("inf")), "seconds=inf"),
        ((0, "kill", ("n0", "n1")), "one node for kill"),
        ((0, "partial", "n0"), "two different places for partial"),
        ((0, "partial", ("n0", "n0")), "two different places for partial"),
        ((0, "partition", ()), "names of nodes for partition"),
        ((0, "kill", 5), "one node for kill"),
        ((0, "kill", "n0", 1, 2), "0 for this kind"),
        ((0, "lossy", ("n0", "n1"), 1, 1.0), "amount=1.0 is not allowed; allowed: the probability"),
        (
            (0, "slow", ("n0", "n1"), 1),
            "amount=0.0 is not allowed; allowed: seconds that each segment takes, from 0.000001",
        ),
        ((0, "lossy", ("n0", "n1"), 1), "amount=0.0 is not allowed; allowed: the probability"),
        ((0, "wall_clock", "n0"), "amount=0.0 is not allowed; allowed: seconds by which the time of day jumps, not 0"),
        ((0, "flapping", ("n0", "n1"), 1), "amount=0.0 is not allowed; allowed: seconds from 0.001"),
    ],
)
def test_a_wrong_fault_is_told_what_is_allowed(facts: Any, text: str) -> None:
    with pytest.raises(SettingsError, match=text):
        Fault(*facts)


def test_a_fault_shows_itself_as_the_call_that_makes_it() -> None:
    for fault in (Fault(0.5, "kill", "n0", 2), Fault(1, "lossy", ("n0", "test"), seconds=3, amount=0.1)):
        assert eval(str(fault)) == fault
    assert str(Fault(0.5, "kill", "n0", 2)) == "Fault(at=0.5, kind='kill', where=('n0',), seconds=2)"


def test_faults_are_all_that_destroy_nothing_or_none_or_kinds_or_given() -> None:
    kinds, given_ = kinds_of("all", NODES)
    assert set(kinds) == set(KINDS) - DESTRUCTIVE and given_ is None
    assert kinds_of("none", NODES) == kinds_of([], NODES) == ([], [])
    assert kinds_of(["flipped", "kill"], NODES) == (["kill", "flipped"], None)
    faults = [Fault(1, "partial", ("n0", "test"))]
    assert kinds_of(faults, NODES) == ([], faults)


@pytest.mark.parametrize(
    ("faults", "text"),
    [
        ("some", "faults='some' is not allowed; allowed: 'all', 'none', a list"),
        (["kill", "boom"], "faults='boom'"),
        ("", r"faults=''"),
        (5, "faults=5"),
        (["kill", Fault(1, "kill", "n0")], "faults="),
        ([Fault(1, "kill", "n7")], "no node is named 'n7'; the nodes: n0, n1, n2"),
        ([Fault(1, "kill", "test")], "no node is named 'test'"),
    ],
)
def test_wrong_faults_are_told_what_is_allowed(faults: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        kinds_of(faults, NODES)
    with pytest.raises(UsageError, match="two nodes"):
        kinds_of(["partition"], ["n0"])


def test_a_seed_draws_the_same_faults_again_and_seeds_draw_all_kinds_at_times_of_every_size() -> None:
    drawn = {seed: drawn_faults(random.Random(seed), KINDS, NODES, 60.0) for seed in range(300)}
    assert drawn == {seed: drawn_faults(random.Random(seed), KINDS, NODES, 60.0) for seed in range(300)}
    faults = [fault for found in drawn.values() for fault in found]
    assert {fault.kind for fault in faults} == set(KINDS)
    assert {place for fault in faults for place in fault.where} == {*NODES, "test"}
    for size in (0.01, 0.1, 1, 10, 60):
        assert [fault for fault in faults if size / 10 <= fault.at < size]
    assert all(fault.at <= 60 and fault.seconds <= 20 for fault in faults)
    ways = {fault.where for fault in faults if fault.kind == "one_way"}
    assert {("n0", "n1"), ("n1", "n0")} <= ways
    assert all(list(found) == sorted(found, key=lambda fault: fault.at) for found in drawn.values())
    # What is printed is what has happened.
    assert all(eval(str(fault)) == fault for fault in faults)


def test_one_node_of_several_serves_at_any_time_and_of_one_node_every_fault_happens() -> None:
    for seed in range(200):
        faults = drawn_faults(random.Random(seed), [*DOWN_KINDS, "partial"], ["n0", "n1"], 20.0)
        for now in faults:
            lasting = [one for one in faults if one.at <= now.at <= one.at + one.seconds + BACK_S]
            out = {place for one in lasting if one.kind != "partial" or "test" in one.where for place in one.where} - {
                "test"
            }
            assert len(out) < 2
    alone = [drawn_faults(random.Random(seed), KINDS, ["n0"], 20.0) for seed in range(100)]
    assert max(map(len, alone)) > 3
    assert not [fault for found in alone for fault in found if fault.kind == "partition"]
    assert drawn_faults(random.Random(1), [], NODES, 60.0) == []
    assert drawn_faults(random.Random(1), ["partition"], ["n0"], 60.0) == []


def test_a_fault_begins_and_ends_a_jump_of_the_clock_does_not_end_and_a_flapping_link_changes() -> None:
    kill, jump = Fault(2, "kill", "n0", 3), Fault(1, "wall_clock", "n0", amount=60)
    assert steps_of([kill, jump]) == [Step(1, True, jump), Step(2, True, kill), Step(5, False, kill)]
    flapping = Fault(1, "flapping", ("n0", "n1"), seconds=4, amount=1.5)
    assert [(step.at, step.begins, step.again) for step in steps_of([flapping])] == [
        (1, True, False),
        (2.5, False, True),
        (4, True, True),
        (5, False, False),
    ]
    assert len(steps_of([Fault(0, "flapping", ("n0", "n1"), seconds=1000, amount=0.001)])) <= 102


def test_the_state_of_a_link_is_that_of_all_faults_that_last() -> None:
    apart, one_way = Fault(0, "partition", ("n0",), 9), Fault(0, "one_way", ("n1", "n0"), 9)
    slow, slower = (Fault(0, "slow", ("n0", "test"), 9, seconds) for seconds in (0.5, 2.0))
    lossy = Fault(0, "lossy", ("test", "n0"), 9, 0.1)
    cut = LinkFault(cut=True)
    assert links_of([one_way], NODES) == {("n1", "n0"): cut}
    both = links_of([apart, one_way], NODES)
    assert set(both) == {("n0", "n1"), ("n1", "n0"), ("n0", "n2"), ("n2", "n0")}
    # The end of the one leaves the other.
    assert changed(both, links_of([one_way], NODES)) == [
        (("n0", "n1"), HEALTHY),
        (("n0", "n2"), HEALTHY),
        (("n2", "n0"), HEALTHY),
    ]
    assert links_of([slow, slower, lossy], NODES)["test", "n0"] == LinkFault(delay_s=2.0, loss=0.1)
    assert str(LinkFault(True, 2.0, 0.1)) == "cut, delay of 2 s, 10% lost"
    assert str(HEALTHY) == "works again"


@given(st.lists(st.integers(0, 9), max_size=12, unique=True), st.sets(st.integers(0, 9), max_size=3))
def test_the_search_finds_what_a_failure_needs_and_nothing_else(items: list[int], needed: set[int]) -> None:
    found = shrunk(items, lambda fewer: needed <= set(fewer), tries_max=1000)
    if needed <= set(items):
        assert found == [item for item in items if item in needed]
    else:
        assert found == items


def test_a_fault_is_made_as_short_as_the_failure_bears_and_no_shorter() -> None:
    needed = [Fault(1.0, "pause", "n0", 16.0), Fault(2.0, "kill", "n1", 3.0), Fault(3.0, "slow", ["n0", "n1"], 9, 1)]

    def fails(faults: list[Fault]) -> bool:
        first, second, _ = faults
        return first.seconds >= 2.5 and second.seconds > 0

    found = shortened(needed, Fault.shorter, fails)
    assert [fault.seconds for fault in found] == [4.0, 0.01, 0.01]
    assert [(one.at, one.kind, one.where, one.amount) for one in found] == [
        (one.at, one.kind, one.where, one.amount) for one in needed
    ]
    assert not fails([attrs.evolve(found[0], seconds=found[0].seconds / 2), *found[1:]])
    # A link that flaps does so at least once.
    assert all(fault.seconds > 0.5 for fault in Fault(0.0, "flapping", ("n0", "n1"), 4.0, 0.5).shorter())
    asked: list[int] = []
    shortened(needed, Fault.shorter, lambda faults: bool(asked.append(1)), tries_max=2)
    assert len(asked) == 2


def test_the_search_ends_when_its_tries_are_used_up() -> None:
    asked: list[list[int]] = []

    def fails(fewer: list[int]) -> bool:
        asked.append(fewer)
        return False

    assert shrunk(range(100), fails, tries_max=7) == list(range(100))
    assert len(asked) == 7 and asked[0] == []


def test_what_becomes_superfluous_by_leaving_out_another_is_left_out() -> None:
    # 1 is needed as long as 2 is there.
    assert shrunk([1, 2, 3], lambda fewer: 3 in fewer and (1 in fewer or 2 not in fewer)) == [3]
