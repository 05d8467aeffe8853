"""The votes of other nodes: who wins, whatever the order of questions and answers, and what a voter remembers."""

from __future__ import annotations

import itertools

import pytest

from meshq import MajorityVote
from meshq.errors import DamagedError
from meshq.ha.votes import BALLOTS_MAX, Ballot, BallotBox, Count, GivenVote, Voters, majority
from meshq.ha.votes._ballot_box_format import decode_box, encode_box, file_of
from meshq.ha.votes._ballot_box_machine import LIVES_MAX
from meshq.ha.votes._count_machine import url_of

NODE = b"n" * 16


def voter(name: str) -> str:
    """Make the id and URL of a voter."""
    return f"{name.encode().hex():0>32}tcp://{name}:1"


def box(name: str = "v") -> BallotBox:
    """Make an empty ballot box."""
    return BallotBox(name.encode().rjust(16, b"\0"))


def asks(holder: str, number: int = 2, vote: bytes = b"1", node_id: bytes = NODE) -> Ballot:
    """Make a question."""
    return Ballot(node_id=node_id, number=number, holder=holder, vote=vote)


def gives(one: BallotBox, ballot: Ballot) -> bool:
    """Whether the answer is yes; it is stored then."""
    vote = one.judge(ballot)
    if vote is not None:
        one.adopt(ballot.node_id, vote)
    return vote is not None


# -- one voter


def test_a_voter_votes_once_for_a_change_and_for_none_before_it() -> None:
    one = box()
    assert gives(one, asks("a", 3))
    assert [gives(one, asks(*about)) for about in (("b", 3), ("b", 2), ("a", 2), ("b", 1))] == [False] * 4
    assert gives(one, asks("a", 3, b"2"))
    assert gives(one, asks("b", 4))
    assert not gives(one, asks("a", 3))
    assert one.last(NODE) == GivenVote(number=4, holder="b", vote=b"1")
    assert gives(one, asks("a", 1, node_id=b"m" * 16))


def test_a_vote_of_an_attempt_that_was_lost_is_given_to_another_one_and_a_later_attempt_keeps_its_vote() -> None:
    one = box()
    assert gives(one, asks("a", 3, b"1"))
    back = one.taken_back(asks("a", 3, b"1"))
    assert back == GivenVote(number=2)
    one.adopt(NODE, back)
    assert not gives(one, asks("b", 2))
    assert gives(one, asks("b", 3, b"2"))
    # What was said of the first attempt comes late.
    assert one.taken_back(asks("a", 3, b"1")) is None
    assert gives(one, asks("b", 3, b"3"))
    assert one.taken_back(asks("b", 3, b"2")) is None
    assert not gives(one, asks("a", 3))


def test_a_vote_for_attempts_of_several_lives_stays_until_each_of_them_was_taken_back() -> None:
    one = box()
    attempts = [bytes([life]) * 8 + bytes([number]) * 8 for life, number in ((1, 1), (2, 1), (2, 2))]
    # The first one was won; those of a later life are lost, and say so late.
    for attempt in attempts:
        assert gives(one, asks("a", 3, attempt))
    assert one.last(NODE).attempts == (attempts[0], attempts[2])
    assert one.taken_back(asks("a", 3, attempts[1])) is None
    back = one.taken_back(asks("a", 3, attempts[2]))
    assert back == GivenVote(number=3, holder="a", vote=attempts[0])
    one.adopt(NODE, back)
    assert not gives(one, asks("b", 3))
    assert one.taken_back(asks("a", 3, attempts[0])) == GivenVote(number=2)
    for life in range(20):
        assert gives(one, asks("a", 3, bytes([life]) * 16))
    assert len(one.last(NODE).attempts) == LIVES_MAX
    assert one.last(NODE).attempts[-1] == bytes([19]) * 16


def test_a_box_is_bounded() -> None:
    one = BallotBox(b"b" * 16, {b"%d" % number: GivenVote(number=1) for number in range(BALLOTS_MAX)})
    assert not gives(one, asks("a"))
    assert gives(one, asks("a", node_id=b"0"))


def test_a_box_is_read_as_it_was_written_with_the_vote_that_is_about_to_be_given() -> None:
    one = box()
    gives(one, asks("a", 3))
    read = decode_box(encode_box(one, b"m" * 16, GivenVote(number=7, holder="ü", vote=b"x")), "votes")
    assert (read.box_id, read.last(NODE).holder, read.last(b"m" * 16).number) == (one.box_id, "a", 7)
    assert dict(one.given) == {NODE: GivenVote(number=3, holder="a", vote=b"1")}
    for wrong in (b"", b"\n", b"00000000\n{}", encode_box(one)[:-1]):
        with pytest.raises(DamagedError):
            decode_box(wrong, "votes")
    assert file_of("a") != file_of("b")


# -- all of them


@pytest.mark.parametrize("others", range(1, 6))
def test_of_two_that_ask_at_most_one_wins_whoever_is_asked_first_and_in_every_order_of_answers(others: int) -> None:
    names = [voter(f"v{number}") for number in range(others)]
    won = set()
    # Each voter hears one of the two first; or only one of them.
    for first in itertools.product(("ab", "ba", "a", "b"), repeat=others):
        counts = {holder: Count(Voters(tuple(names)), MajorityVote()) for holder in "ab"}
        answers = {holder: [False] * others for holder in "ab"}
        for index, order in enumerate(first):
            one = box(names[index][:8])
            for holder in order:
                answers[holder][index] = gives(one, asks(holder))
        for holder in "ab":
            for name, yes in zip(names, answers[holder], strict=True):
                counts[holder].add(name, yes, "")
            assert counts[holder].decision is (sum(answers[holder]) > others / 2)
        assert not (counts["a"].decision and counts["b"].decision)
        won |= {holder for holder in "ab" if counts[holder].decision}
    assert won == {"a", "b"}


@pytest.mark.parametrize("others", range(6))
def test_a_decision_is_final_and_the_same_in_every_permutation_of_the_answers(others: int) -> None:
    names = [voter(f"v{number}") for number in range(others)]
    for answers in itertools.product((True, False), repeat=others):
        expected = sum(answers) >= majority(others)
        for order in itertools.permutations(range(others)):
            count = Count(Voters(tuple(names)), MajorityVote())
            told = [count.decision, *(count.add(names[index], answers[index]) for index in order)]
            decided = [one for one in told if one is not None]
            assert set(decided) == {expected}
            assert told == [None] * (len(told) - len(decided)) + decided
            assert count.add("x" * 32, not expected) is expected
            assert count.close() is expected


def test_while_the_voters_change_a_vote_has_to_be_won_among_the_old_and_the_new_ones() -> None:
    names = [voter(name) for name in "pqrst"]
    count = Count(Voters(tuple(names[:3]), tuple(names[2:])), MajorityVote())
    assert [count.add(name, True) for name in names[:4]] == [None, None, None, True]
    assert (count.needed, count.yes, len(count.asked)) == (2, 4, 5)
    lost = Count(Voters(tuple(names[:3]), tuple(names[2:])), MajorityVote())
    assert [lost.add(names[index], index > 1) for index in (2, 3, 4, 0, 1)] == [None, None, None, None, False]


def test_a_size_asks_for_more_votes_and_never_for_fewer_than_more_than_half() -> None:
    four = Voters(tuple(voter(f"v{number}") for number in range(4)))
    assert [Count(four, MajorityVote(size=size)).needed for size in (None, 1, 2, 5, 6)] == [3, 3, 3, 3, 4]
    assert Count(four, MajorityVote(size=9)).decision is False
    # Who serves, and is not to step back, needs what keeps the other one from winning.
    assert Count(four, MajorityVote(size=6), least=True).needed == 3
    assert Count(Voters(), MajorityVote()).decision is True
    assert Count(Voters(), MajorityVote(size=2)).decision is False
    assert Count(Voters(), MajorityVote(size=2), least=True).decision is True


def test_a_node_that_agrees_and_is_not_asked_counts_for_the_size_and_not_for_more_than_half_of_the_voters() -> None:
    few = [Voters(tuple(voter(f"v{number}") for number in range(number))) for number in range(4)]
    needed = {size: [Count(one, MajorityVote(size=size), agreed=1).needed for one in few] for size in (None, 2, 3, 5)}
    assert needed == {None: [0, 1, 2, 2], 2: [1, 1, 2, 2], 3: [2, 1, 2, 2], 5: [3, 2, 2, 2]}
    # Who knows of no voter has nobody with whom the node could agree.
    assert Count(few[0], MajorityVote(size=2), agreed=1).decision is False


def test_an_answer_that_is_missing_counts_as_no_and_one_that_comes_twice_once() -> None:
    names = [voter(name) for name in "pqr"]
    count = Count(Voters(tuple(names)), MajorityVote())
    assert [count.add(names[0], True), count.add(names[0], True)] == [None, None]
    assert count.close() is False
    assert count.add(names[1], True) is False
    assert count.yes == 1


def test_who_has_lost_knows_whether_the_other_one_may_have_won() -> None:
    names = [voter(name) for name in "pqrs"]
    count = Count(Voters(tuple(names)), MajorityVote())
    for name in names[:2]:
        count.add(name, False, "b")
    assert count.decision is False
    assert not count.elects("b")
    count.add(names[2], False, "b")
    assert count.elects("b")
    assert not count.elects("c")


def following(voters: Voters, found: tuple[str, ...]) -> tuple[str, ...]:
    """The next voters where all that have answered serve."""
    return voters.next(found, {url_of(one) for one in found})


def test_voters_are_forgotten_only_by_who_reaches_more_than_half_of_them() -> None:
    names = tuple(sorted(voter(name) for name in "pqrs"))
    now = Voters(names)
    assert following(now, names[:3]) == names[:3]
    assert following(now, names[:2]) == names
    assert following(now, ()) == names
    assert following(now, (*names, voter("t"))) == (*names, voter("t"))
    assert following(Voters(), names[:1]) == names[:1]
    moved = tuple(name.replace(":1", ":2") for name in names)
    assert following(now, moved) == moved


def test_a_voter_that_has_lost_its_file_keeps_nobody_from_knowing_the_one_in_its_place() -> None:
    old, new, other = f"{1:032x}tcp://c:1", f"{2:032x}tcp://c:1", f"{3:032x}tcp://d:1"
    assert following(Voters((old, other)), (new, other)) == (new, other)
    assert following(Voters((old,)), (new,)) == (new,)
    # One that only can't be reached is there, and votes.
    assert following(Voters((old, other)), (other,)) == (old, other)
    assert following(Voters((old, other)), (new,)) == (old, other)
    assert following(Voters((old,)), ()) == (old,)


def test_a_voter_that_serves_no_more_makes_room_for_the_one_that_does() -> None:
    first, second = f"{1:032x}tcp://c:1", f"{2:032x}tcp://d:1"
    assert Voters((first,)).next((first, second), ("tcp://d:1",)) == (second,)
    # One that is gone may be there, and vote, for all that is known.
    assert Voters((first,)).next((second,), ("tcp://d:1",)) == (first,)
    assert Voters((first,)).next((first,), ("tcp://d:1",)) == (first,)
