"""The letters about pins: one at a time to each node, after a pause where there was no answer."""

from __future__ import annotations

import math

from meshq.cluster.grouping._correspondence import PAUSE_MAX_S, PAUSE_S, Correspondence

ALL = frozenset("abc")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_node_that_does_not_answer_holds_up_no_other_one() -> None:
    letters = Correspondence(Clock())
    assert letters.may_begin("b", 1)
    letters.begin("b")
    assert not letters.may_begin("b", 1) and letters.may_begin("c", 1)
    letters.begin("c")
    # More has come up for the one meanwhile, and nothing for the other.
    assert letters.ended("b", 1, again=False) and not letters.ended("c", 1, again=False)


def test_a_node_without_an_answer_is_asked_again_after_pauses_that_grow() -> None:
    clock = Clock()
    letters = Correspondence(clock)
    pauses = []
    for _ in range(8):
        assert letters.may_begin("b", 1)
        letters.begin("b")
        assert letters.ended("b", 1, again=True)
        assert not letters.may_begin("b", 1)
        pauses.append(letters.next_s() - clock.now)
        clock.now = letters.next_s()
    assert pauses[0] == PAUSE_S and pauses == sorted(pauses)
    assert round(pauses[-1], 9) == PAUSE_MAX_S
    assert letters.next_s() == math.inf
    # An answer ends that, and another session begins anew.
    letters.ask_again("b", 1, again=True)
    assert letters.may_begin("b", 2)
    letters.ask_again("b", 2, again=False)
    assert letters.may_begin("b", 1)


def test_a_node_that_knows_other_members_than_before_is_asked_soon_but_not_at_once() -> None:
    clock = Clock()
    letters = Correspondence(clock)
    assert not letters.heard("b", ALL)
    for _ in range(5):
        letters.ask_again("b", 1, again=True)
    # It says the same as before.
    assert not letters.heard("b", ALL) and letters.next_s() > PAUSE_S
    assert letters.heard("b", frozenset("ab"))
    assert letters.next_s() == PAUSE_S and not letters.may_begin("b", 1)
    # Nor is it news that it tells all for its own members and for those of this node in turn.
    for _ in range(5):
        letters.ask_again("b", 1, again=True)
        assert not letters.heard("b", ALL) and not letters.heard("b", frozenset("ab"))
    assert letters.next_s() > PAUSE_S
    letters.rest_over()
    assert letters.may_begin("b", 1)


def test_a_node_that_is_told_for_other_members_knows_no_more_what_it_was_told_before() -> None:
    letters = Correspondence(Clock())
    letters.telling("b")
    assert letters.told("b", 1, ALL, ALL)
    # For the members without c, which the other node does not take for gone; and c comes back before the next letter.
    letters.telling("b")
    assert not letters.is_told("b", 1, ALL) and not letters.agrees("b", 1, ALL)


def test_nothing_is_left_of_nodes_that_are_gone() -> None:
    letters = Correspondence(Clock())
    letters.telling("b")
    letters.told("b", 1, ALL, ALL)
    letters.heard("b", ALL)
    letters.ask_again("b", 1, again=True)
    letters.tell_anew("c")
    letters.keep(frozenset("a"))
    tables = (letters._told, letters._shared, letters._heard, letters._again, letters._stale)
    assert not any(tables)


def test_a_node_that_asks_to_be_told_anew_while_it_is_told_is_told_once_more() -> None:
    letters = Correspondence(Clock())
    letters.telling("b")
    letters.tell_anew("b")
    assert not letters.told("b", 1, ALL, ALL)
    letters.telling("b")
    assert letters.told("b", 1, ALL, ALL)
    assert letters.is_told("b", 1, ALL) and not letters.is_told("b", 1, frozenset("ab"))
    assert letters.agrees("b", 1, ALL) and not letters.agrees("b", 2, ALL) and not letters.agrees("c", 1, ALL)
    assert letters.knew("b", ALL) and not letters.knew("b", frozenset("ab")) and letters.knew("c", ALL)
    assert letters.told("c", 1, ALL, frozenset("bc"))
    assert letters.is_told("c", 1, ALL) and not letters.agrees("c", 1, ALL)
    letters.keep(frozenset("ac"))
    assert not letters.is_told("b", 1, ALL)
