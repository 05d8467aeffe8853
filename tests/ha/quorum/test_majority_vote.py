"""The classic vote: who is asked, what decides, and when the next one is held."""

from __future__ import annotations

import math
from itertools import pairwise, permutations, product
from typing import Any

import pytest

from meshq import MajorityVote, SettingsError, UsageError


@pytest.mark.parametrize(
    ("others", "needed"), [(0, 0), (1, 1), (2, 2), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)], ids=str
)
def test_more_than_half_of_the_others_are_needed(others: int, needed: int) -> None:
    assert MajorityVote().vote(others=others).needed == needed


@pytest.mark.parametrize(("size", "needed"), [(1, 0), (2, 1), (3, 2), (4, 3), (5, 3), (6, 4), (7, 4)], ids=str)
def test_a_size_says_how_many_are_needed_whoever_can_be_asked(size: int, needed: int) -> None:
    assert {MajorityVote(size=size).vote(others=others).needed for others in range(8)} == {needed}


def test_a_vote_that_needs_nobody_is_won_at_once_and_one_that_can_not_be_won_is_lost_at_once() -> None:
    assert MajorityVote().vote(others=0).decision is True
    assert MajorityVote(size=2).vote(others=0).decision is False
    assert MajorityVote(size=5).vote(others=2).decision is False


@pytest.mark.parametrize("others", range(1, 6))
def test_the_decision_is_the_same_in_every_order_of_answers(others: int) -> None:
    voters = [f"n{index}" for index in range(others)]
    for answers in product((True, False), repeat=others):
        expected = sum(answers) > others / 2
        for order in permutations(range(others)):
            vote = MajorityVote().vote(others=others)
            said = [vote.add(voters[index], answers[index]) for index in order]
            assert vote.decision is expected
            # Nothing that comes later changes what is decided.
            decided = [one for one in said if one is not None]
            assert decided == [expected] * len(decided)


def test_a_decided_vote_is_deaf() -> None:
    vote = MajorityVote().vote(others=3)
    vote.add("a", True)
    assert vote.add("b", True) is True
    assert [vote.add(one, False) for one in ("a", "b", "c", "d")] == [True] * 4
    assert vote.yes == 2
    assert vote.close() is True


def test_a_voter_counts_once_by_its_first_answer() -> None:
    vote = MajorityVote().vote(others=3)
    assert [vote.add("a", True), vote.add("a", True), vote.add("a", False)] == [None] * 3
    assert vote.yes == 1


def test_who_has_not_answered_when_the_vote_is_closed_has_said_no() -> None:
    vote = MajorityVote().vote(others=3)
    vote.add("a", True)
    assert vote.close() is False
    assert vote.add("b", True) is False


def test_answers_beyond_the_last_voter_change_nothing() -> None:
    vote = MajorityVote().vote(others=4)
    for index, yes in enumerate((True, True, False)):
        vote.add(f"n{index}", yes)
    assert vote.add("n3", False) is False
    other = MajorityVote(size=1_000).vote(others=1_000)
    for index in range(1_000):
        other.add(f"n{index}", index < 501 and index > 0)
    assert other.decision is False


def test_twelve_votes_follow_the_first_one_five_seconds_apart_and_each_is_cut_after_thirty() -> None:
    """K75: the numbers of the classic vote, in virtual time."""
    schedule = MajorityVote().schedule(now=100.0)
    now, began = 100.0, []
    while schedule.next_at is not None:
        now = schedule.next_at
        began.append(now)
        cut = schedule.begin(now)
        assert cut == now + 30.0
        now = cut
        schedule.lost(now)
    assert len(began) == 13
    assert began[0] == 100.0
    assert {later - earlier for earlier, later in pairwise(began)} == {35.0}


def test_a_vote_that_is_lost_at_once_is_held_again_after_the_pause() -> None:
    schedule = MajorityVote(vote_retries=2, vote_retry_wait=1.5).schedule(now=0.0)
    assert [schedule.lost(0.0), schedule.lost(1.5), schedule.lost(3.0)] == [1.5, 3.0, None]
    assert MajorityVote(vote_retries=0).schedule(now=0.0).lost(0.0) is None
    endless = MajorityVote(vote_retries=math.inf).schedule(now=0.0)
    assert [endless.lost(float(second)) for second in range(100)] == [second + 5.0 for second in range(100)]


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("size", value) for value in (0, -1, 1_001, 2.0, True, "3")],
        *[("vote_retries", value) for value in (-1, 1.5, math.nan, None, True)],
        *[("vote_retry_wait", value) for value in (0, -1.0, 86_401, math.inf, None)],
        *[("quorum_vote_wait", value) for value in (0, 86_401.0, math.inf, "30")],
        *[("lease", value) for value in (0.01, 3_601, math.inf, math.nan)],
    ],
    ids=str,
)
def test_a_setting_out_of_its_bounds_is_refused(name: str, value: Any) -> None:
    with pytest.raises(SettingsError, match=name):
        MajorityVote(**{name: value})


@pytest.mark.parametrize("others", [-1, 1_001, 1.0, True, None], ids=str)
def test_a_number_of_others_out_of_its_bounds_is_refused(others: Any) -> None:
    with pytest.raises(SettingsError, match="others"):
        MajorityVote().vote(others=others)


def test_the_defaults_are_those_of_the_contract() -> None:
    settings = MajorityVote()
    assert (settings.size, settings.vote_retries, settings.vote_retry_wait) == (None, 12, 5.0)
    assert (settings.quorum_vote_wait, settings.lease) == (30.0, 0.5)
    assert UsageError in SettingsError.__mro__
