"""The order of a round: the last node, then the choice of the policy, and the others in turn behind it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from meshq import FirstElement, SettingsError
from meshq.client.link._balanced_order import BalancedOrder, NodeChoice
from meshq.endpoint import Endpoint
from meshq.env import real_env

PLACES = tuple(Endpoint("tcp", name, 1) for name in "abcd")
A, B, C, D = PLACES


class Chosen:
    """Answers, one after another, and the lists for which they were asked."""

    def __init__(self, *answers: Endpoint | None) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def choose(self, places: Sequence[Endpoint]) -> Endpoint | None:
        self.asked.append(hosts(places))
        return self.answers.pop(0)


def hosts(places: Sequence[Endpoint]) -> str:
    return "".join(place.host for place in places)


def order(made: BalancedOrder, known: str, last: Endpoint | None = None, *, leave_last: bool = False) -> str:
    return hosts(made.order([PLACES["abcd".index(name)] for name in known], last=last, leave_last=leave_last))


def test_a_first_connection_begins_at_the_choice_and_goes_round() -> None:
    choice = Chosen(C)
    made = BalancedOrder(choice)
    assert [order(made, "abcd") for _ in range(3)] == ["cdab"] * 3
    assert choice.asked == ["abcd"]


def test_a_lost_node_comes_first_and_the_choice_is_one_of_the_others() -> None:
    choice = Chosen(B, D, A)
    made = BalancedOrder(choice)
    order(made, "abcd")
    assert order(made, "abcd", B) == order(made, "abcd", B) == "bdac"
    assert order(made, "abcd", D) == "dabc"
    assert choice.asked == ["abcd", "acd", "abc"]


@pytest.mark.parametrize(("known", "expected"), [("abcd", "dacb"), ("acd", "dac")])
def test_a_node_that_asked_its_clients_to_leave_comes_last_or_not_at_all(known: str, expected: str) -> None:
    made = BalancedOrder(Chosen(D))
    assert order(made, known, B, leave_last=True) == expected


def test_when_the_choice_is_gone_another_one_is_made_and_a_node_that_comes_changes_nothing() -> None:
    choice = Chosen(C, A)
    made = BalancedOrder(choice)
    assert [order(made, known) for known in ("acd", "abcd", "abd")] == ["cda", "cdab", "abd"]
    assert choice.asked == ["acd", "abd"]


def test_nobody_is_asked_while_there_is_nothing_to_choose_from() -> None:
    choice = Chosen(A)
    made = BalancedOrder(choice)
    assert [order(made, ""), order(made, "a", A), order(made, "", A), order(made, "a")] == ["", "a", "", "a"]
    assert choice.asked == ["a"]


def test_when_none_is_chosen_there_is_only_the_last_one_and_it_is_asked_again_in_each_round() -> None:
    choice = Chosen(None, None, None, B)
    made = BalancedOrder(choice)
    assert (order(made, "ab"), made.refused) == ("", 2)
    assert (order(made, "abc", A), made.refused) == ("a", 2)
    assert (order(made, "abc", A, leave_last=True), made.refused) == ("a", 2)
    assert (order(made, "abc", A), made.refused) == ("abc", 0)
    assert choice.asked == ["ab", "bc", "bc", "bc"]


class Misbegun(FirstElement):
    """A policy whose copies are none."""

    def __init__(self, copy: Any) -> None:
        self.copy = copy

    def begin(self, chance: int) -> Any:
        return self.copy


@pytest.mark.parametrize("copy", [None, "first_element", FirstElement])
def test_a_policy_that_begins_as_no_policy_is_an_error_that_shows_it(copy: Any) -> None:
    choice = NodeChoice(Misbegun(copy), real_env(), key="", book=None)
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"load_balancing.*Misbegun.begin: .*returns a BalancerPolicy"):
            choice.choose(PLACES)
