"""The arbiter of message groups: one pin for a name, given once all others have told what they know."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from meshq.broker.catalog._pins_machine import PinsMachine
from meshq.cluster.grouping._arbiter_machine import (
    FREE,
    HOLD,
    KNOW,
    KNOWN_MAX,
    MOVE,
    WANT,
    ArbiterMachine,
    Said,
    Sender,
    arbiter_of,
)
from meshq.cluster.grouping._letter import KEPT_BYTES_MAX, kept, restored
from tests.cluster.arbiters import ALL, Cluster, name_of, restarted


def test_every_node_finds_the_same_arbiter_and_names_are_spread_evenly() -> None:
    names = [("q", f"group {number}") for number in range(3_000)]
    found = [arbiter_of(name, "abc") for name in names]
    assert found == [arbiter_of(name, ["c", "a", "b"]) for name in names]
    assert all(900 < found.count(node) < 1_100 for node in "abc")
    # Who goes leaves its names to others, and no other name moves.
    assert all(
        now == before
        for now, before in zip([arbiter_of(name, "ab") for name in names], found, strict=True)
        if before != "c"
    )


def test_a_pin_is_given_only_when_all_others_have_told_what_they_know() -> None:
    cluster = Cluster()
    name = name_of("a")
    assert cluster.say("b", "a", Said(WANT, *name, "b"), complete=True) == [""]
    assert cluster.nodes["a"].lacking() == ["c"] or cluster.nodes["a"].lacking() == ["b", "c"]
    cluster.say("c", "a", complete=True)
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["b"]
    assert cluster.say("c", "a", Said(WANT, *name, "c")) == ["b"]
    assert cluster.nodes["a"].given == 1


def test_nobody_else_than_the_arbiter_gives_a_pin() -> None:
    cluster = Cluster()
    cluster.introduce()
    assert cluster.say("b", "c", Said(WANT, *name_of("a"), "b")) == [""]


def test_after_a_change_of_the_members_all_have_to_tell_anew() -> None:
    cluster = Cluster("abcd")
    cluster.introduce()
    for node in "abc":
        cluster.nodes[node].see("abc")
    # The node that has gone may have given it to another one.
    name = name_of("d", frozenset("abcd"), among="a")
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == [""]
    cluster.say("c", "a", Said(HOLD, *name), complete=True)
    cluster.say("b", "a", complete=True)
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["c"]


def test_who_is_away_while_another_one_goes_holds_up_only_the_groups_of_that_one() -> None:
    cluster = Cluster("abcd")
    cluster.introduce()
    for node in "ab":
        cluster.nodes[node].see("abc")
    cluster.say("b", "a", complete=True)
    # ``c`` is away, and has told what it held when ``d`` was there.
    own, taken_over = name_of("a", frozenset("abcd")), name_of("d", frozenset("abcd"), among="a")
    assert cluster.say("b", "a", Said(WANT, *own, "b"), Said(WANT, *taken_over, "b")) == ["b", ""]
    cluster.nodes["c"].see("abc")
    cluster.say("c", "a", Said(HOLD, *taken_over), complete=True)
    assert cluster.say("b", "a", Said(WANT, *taken_over, "b")) == ["c"]


def test_who_is_away_while_another_one_joins_holds_up_only_the_groups_of_that_one() -> None:
    cluster = Cluster()
    cluster.introduce()
    cluster.nodes["d"] = ArbiterMachine("d")
    cluster.serials["d"] = 0
    for node in "abd":
        cluster.nodes[node].see("abcd")
    for sender, to in ("ab", "ad", "ba", "bd", "da", "db"):
        cluster.say(sender, to, complete=True)
    stays, moves = name_of("a", frozenset("abcd")), name_of("d", frozenset("abcd"))
    # ``c`` is away, and knows nothing of ``d``.
    assert cluster.say("b", "a", Said(WANT, *stays, "b")) == ["b"]
    assert cluster.say("b", "d", Said(WANT, *moves, "b")) == [""]
    assert cluster.say("b", arbiter_of(moves, ALL), Said(WANT, *moves, "b")) in ([""], ["c"])
    cluster.nodes["c"].see("abcd")
    cluster.say("c", "d", Said(KNOW, *moves, "a"), complete=True)
    assert cluster.say("b", "d", Said(WANT, *moves, "b")) == ["a"]


def test_who_came_and_went_may_have_given_pins_of_which_the_others_have_to_tell() -> None:
    cluster = Cluster()
    cluster.introduce()
    everyone = frozenset("abcd")
    cluster.nodes["a"].see(everyone)
    cluster.nodes["a"].see(ALL)
    # ``c`` has met ``d`` meanwhile, and told ``a`` nothing since.
    name = name_of("d", everyone, among="a")
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == [""]
    assert sorted(cluster.nodes["a"].lacking()) == ["b", "c"]
    cluster.say("b", "a", complete=True)
    cluster.say("c", "a", Said(HOLD, *name), complete=True)
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["c"]


def test_who_holds_a_pin_of_another_node_is_heard_only_when_it_has_given_that_up() -> None:
    cluster = Cluster()
    cluster.introduce()
    arbiter, name, other = cluster.nodes["a"], name_of("a"), name_of("a", more="!")
    assert cluster.say("b", "a", Said(HOLD, *name), complete=True) == ["b"]
    assert cluster.say("c", "a", Said(HOLD, *name), begins=True) == ["b"]
    assert cluster.say("c", "a", Said(HOLD, *other), complete=True, begins=False) == ["c"]
    assert arbiter.lacking() == ["c"]
    # Its answer may be lost, and it holds the pin still.
    arbiter.see({"a", "c"})
    assert arbiter.own([Said(WANT, *name, "a")]) == [""]
    cluster.say("c", "a", Said(HOLD, *other), complete=True)
    assert arbiter.own([Said(WANT, *name, "a")]) == ["a"]


def test_who_has_told_nothing_anew_while_many_others_went_has_to() -> None:
    cluster = Cluster()
    cluster.introduce()
    arbiter, name = cluster.nodes["a"], name_of("a")
    for number in range(KNOWN_MAX):
        arbiter.see({*ALL, f"{number}"})
        arbiter.see(ALL)
    assert not arbiter.introduced()
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == [""]


def test_the_pins_of_a_node_that_goes_are_given_up() -> None:
    cluster = Cluster()
    cluster.introduce()
    name = name_of("a")
    assert cluster.say("b", "a", Said(WANT, *name, "c")) == ["c"]
    cluster.nodes["a"].see("ab")
    assert cluster.nodes["a"].given_up == 1 and not cluster.nodes["a"].pins
    cluster.nodes["b"].see("ab")
    cluster.say("b", "a", complete=True)
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == [(arbiter_of(name, "ab") == "a" and "b") or ""]


def test_the_holder_has_its_pin_moved_and_nobody_else_has() -> None:
    cluster = Cluster()
    cluster.introduce()
    name = name_of("a")
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["b"]
    assert cluster.say("c", "a", Said(MOVE, *name, "c")) == ["b"]
    assert cluster.say("b", "a", Said(WANT, *name, "c")) == ["b"]
    assert cluster.say("b", "a", Said(MOVE, *name, "c")) == ["c"]
    assert cluster.say("b", "a", Said(FREE, *name)) == [""]
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["c"]
    assert cluster.say("c", "a", Said(FREE, *name)) == [""]
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["b"]


def test_a_pin_that_was_given_at_the_request_of_another_node_is_not_held_before_the_arbiter_is_asked() -> None:
    cluster, name = Cluster(), name_of("a")
    cluster.introduce()
    sender, holder = PinsMachine(), PinsMachine()
    for pins, node in ((sender, "c"), (holder, "b")):
        pins.begin(node, lambda address: True, lambda: None)
        pins.switch(active=True)
    sender.told(name, *cluster.say("c", "a", Said(MOVE, *name, "b")))
    assert sender.use(name) == "b"
    # What comes there waits while the arbiter is away: the sender may not know the last word.
    assert not holder.claim("q", *name) and holder.open() == [name]
    holder.told(name, *cluster.say("b", "a", Said(WANT, *name, "b")))
    assert holder.claim("q", *name)


def test_a_restart_of_the_arbiter_moves_no_pin_and_what_is_held_counts_more_than_what_was_kept() -> None:
    cluster = Cluster()
    name, other = name_of("a"), name_of("a", more="!")
    anew = cluster.nodes["a"] = ArbiterMachine("a")
    anew.restore(name, "b")
    anew.restore(other, "b")
    anew.see("abc")
    assert cluster.say("c", "a", Said(WANT, *name, "c")) == ["b"]
    assert cluster.say("c", "a", Said(HOLD, *other)) == ["c"]
    assert cluster.say("b", "a", Said(HOLD, *other)) == ["c"]


def test_a_restart_of_the_arbiter_needs_nobody_who_was_heard_before() -> None:
    cluster = Cluster()
    cluster.introduce()
    name, fresh = name_of("a"), name_of("a", more="!")
    assert cluster.say("c", "a", Said(WANT, *name, "c")) == ["c"]
    cluster.nodes["a"] = restarted(cluster.nodes["a"])
    # ``c`` is away: what it has is known, and what it has not may be given.
    assert cluster.nodes["a"].ready
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["c"]
    assert cluster.say("b", "a", Said(WANT, *fresh, "b")) == ["b"]
    assert (cluster.nodes["a"].given, cluster.nodes["a"].remembered) == (1, 1)


def test_who_is_linked_has_to_tell_a_restarted_arbiter_anew_as_it_may_have_taken_this_one_for_down() -> None:
    cluster = Cluster()
    cluster.introduce()
    name = name_of("a")
    anew = cluster.nodes["a"] = restarted(cluster.nodes["a"])
    anew.linked = frozenset("b")
    # While it was down, ``b`` may have become the arbiter, and given the pin.
    assert not anew.ready
    assert anew.own([Said(WANT, *name, "a")]) == [""]
    assert cluster.say("b", "a", Said(KNOW, *name, "c"), complete=True) == [""]
    assert anew.ready
    assert anew.own([Said(WANT, *name, "a")]) == ["c"]


def test_nobody_has_a_pin_of_before_until_all_that_are_linked_have_told_a_restarted_arbiter() -> None:
    cluster = Cluster()
    cluster.introduce()
    name, other = name_of("a"), name_of("a", more="!")
    assert cluster.nodes["a"].own([Said(WANT, *name, "a")]) == ["a"]
    assert cluster.nodes["a"].own([Said(WANT, *other, "a")]) == ["a"]
    anew = cluster.nodes["a"] = restarted(cluster.nodes["a"])
    anew.linked = frozenset("b")
    # While it was down, ``b`` has given one of them to itself.
    assert anew.own([Said(WANT, *name, "a"), Said(WANT, *other, "a")]) == ["", ""]
    assert cluster.say("b", "a", Said(HOLD, *name), complete=True) == ["b"]
    assert anew.own([Said(WANT, *name, "a"), Said(WANT, *other, "a")]) == ["b", "a"]


def test_who_was_the_arbiter_meanwhile_knows_more_than_what_was_kept_and_less_than_what_this_life_has_given() -> None:
    cluster = Cluster()
    cluster.introduce()
    name, other = name_of("a"), name_of("a", more="!")
    assert cluster.nodes["a"].own([Said(WANT, *name, "a")]) == ["a"]
    anew = cluster.nodes["a"] = restarted(cluster.nodes["a"])
    assert anew.own([Said(WANT, *other, "a")]) == ["a"]
    cluster.say("b", "a", Said(KNOW, *name, "c"), Said(KNOW, *other, "c"), complete=True)
    assert anew.pins == {name: "c", other: "a"}


def test_who_has_begun_another_life_than_the_one_that_was_kept_has_to_tell_anew() -> None:
    cluster = Cluster()
    cluster.introduce()
    cluster.nodes["a"] = restarted(cluster.nodes["a"])
    name = name_of("a")
    assert cluster.say("b", "a", Said(WANT, *name, "b"), instance="2") == [""]
    assert cluster.nodes["a"].lacking() == ["b"]
    cluster.say("b", "a", complete=True, instance="2")
    assert cluster.say("b", "a", Said(WANT, *name, "b"), instance="2") == ["b"]


def test_what_was_kept_counts_only_for_the_members_that_all_knew_then() -> None:
    cluster = Cluster()
    cluster.introduce()
    assert not restarted(cluster.nodes["a"], "abcd").ready
    assert not restarted(cluster.nodes["a"], "ab").ready
    # First it knows one of them only, and then all.
    anew = restarted(cluster.nodes["a"], "ac")
    assert not anew.ready
    anew.see("abc")
    assert anew.ready
    anew.doubt()
    assert not anew.ready and not anew.introduced()


def test_what_comes_late_changes_nothing() -> None:
    cluster = Cluster()
    cluster.introduce()
    name = name_of("a")
    late = Sender("b", "1", cluster.serials["b"] + 1)
    cluster.serials["b"] += 1
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["b"]
    assert cluster.nodes["a"].hear(late, ALL, [Said(MOVE, *name, "c")], complete=False) == [""]
    # Nor does what another life of the node has said.
    assert cluster.say("b", "a", Said(WANT, *name, "b"), complete=True, instance="2") == ["b"]
    assert cluster.say("b", "a", Said(MOVE, *name, "c"), instance="1") == [""]
    assert cluster.nodes["a"].pins[name] == "b"


def test_a_former_arbiter_tells_the_new_one_what_it_knows_and_forgets_it() -> None:
    old = ArbiterMachine("a")
    name = name_of("c")
    assert old.own([Said(WANT, *name, "a")]) == ["a"]
    old.see("abc")
    told = old.known([name, name_of("c", more="!")])
    assert told == [Said(KNOW, *name, "a")]
    new = ArbiterMachine("c")
    new.see("abc")
    assert new.hear(Sender("a", "1", 1), ALL, told, begins=True, complete=True) == [""]
    old.forget(told)
    assert not old.pins and new.pins == {name: "a"}


def test_who_is_not_the_arbiter_any_more_passes_on_what_it_is_told() -> None:
    arbiter = ArbiterMachine("a")
    arbiter.see(ALL)
    own, others = name_of("a"), name_of("c")
    said = [Said(HOLD, *own), Said(HOLD, *others), Said(FREE, *name_of("b"))]
    # The sender does not know the third node yet.
    arbiter.hear(Sender("b", "1", 1), frozenset("ab"), said, begins=True, complete=True)
    assert arbiter.passed_on(said) == {"c"}
    known = arbiter.known([others])
    assert known == [Said(KNOW, *others, "b")]
    arbiter.forget(known)
    assert arbiter.passed_on(said) == set() and list(arbiter.pins) == [own]


def test_an_arbiter_that_is_it_again_forgets_nothing_of_what_it_told_meanwhile() -> None:
    cluster = Cluster()
    name = name_of("a")
    told = [Said(KNOW, *name, "b")]
    cluster.nodes["a"].see("abc")
    # It tells the one that was the arbiter while it was away, and hears of the holder before that one has answered.
    assert cluster.say("b", "a", Said(HOLD, *name)) == ["b"]
    cluster.nodes["a"].forget(told)
    assert cluster.nodes["a"].pins == {name: "b"}


@pytest.mark.parametrize("first", [0, 1])
def test_two_nodes_that_have_met_never_give_one_pin_twice(first: int) -> None:
    # ``c`` is new: ``a`` knows it already, ``b`` does not.
    cluster = Cluster("abc")
    cluster.nodes["b"].see("ab")
    name = name_of("c")
    order = ["b", "c"] if first else ["c", "b"]
    given = []
    for node in order:
        for sender in "abc":
            if sender != node:
                cluster.say(sender, node, complete=True)
        given += (
            cluster.say("a", node, Said(WANT, *name, "a"))
            if node == "b"
            else cluster.say("a", node, Said(WANT, *name, "b"))
        )
    assert sum(map(bool, given)) <= 1


def test_no_pin_is_given_while_what_the_members_told_is_in_doubt() -> None:
    cluster = Cluster()
    cluster.introduce()
    cluster.nodes["a"].doubt()
    name = name_of("a")
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == [""]
    cluster.say("c", "a", Said(HOLD, *name), begins=True, complete=True)
    cluster.say("b", "a", begins=True, complete=True)
    assert cluster.say("b", "a", Said(WANT, *name, "b")) == ["c"]


def gone_and_back(arbiter: ArbiterMachine) -> None:
    arbiter.see("ac")
    arbiter.see("abc")


@pytest.mark.parametrize("forgets", [gone_and_back, ArbiterMachine.doubt])
def test_an_introduction_of_which_the_beginning_was_forgotten_meanwhile_does_not_count(
    forgets: Callable[[ArbiterMachine], None],
) -> None:
    cluster = Cluster()
    name = name_of("a")
    cluster.say("b", "a", Said(HOLD, *name), begins=True)
    forgets(cluster.nodes["a"])
    cluster.say("b", "a", begins=False, complete=True)
    cluster.say("c", "a", complete=True)
    assert cluster.nodes["a"].silent(name) == ["b"]
    assert cluster.say("c", "a", Said(WANT, *name, "c")) in ([""], ["b"])
    cluster.say("b", "a", Said(HOLD, *name), begins=True)
    cluster.say("b", "a", begins=False, complete=True)
    assert not cluster.nodes["a"].silent(name)
    assert cluster.say("c", "a", Said(WANT, *name, "c")) == ["b"]


def test_the_second_half_of_an_introduction_is_none_to_a_life_that_has_not_heard_the_first() -> None:
    cluster = Cluster()
    cluster.say("b", "a", begins=False, complete=True)
    cluster.say("c", "a", complete=True)
    assert cluster.nodes["a"].silent(name_of("a")) == ["b"]


def test_introductions_to_nodes_that_knew_other_members_are_kept_as_well() -> None:
    introduced = {frozenset("ab"): {"b": "1"}, ALL: {"c": "2", "d": "3"}, frozenset("ad"): {"e": "4"}}
    assert dict(restored(*kept(introduced))) == introduced
    assert not dict(restored(*kept({}))).get(ALL)


def test_introductions_beyond_the_room_of_a_record_are_not_kept() -> None:
    ids = [f"{number:032x}" for number in range(32)]
    introduced = {frozenset(ids): dict.fromkeys(ids, "e" * 32)}
    introduced |= {frozenset({*ids} - {one}): {one: "f" * 32} for one in ids}
    written = kept(introduced)
    assert KEPT_BYTES_MAX - 1_200 < sum(map(len, written)) < KEPT_BYTES_MAX
    found = dict(restored(*written))
    assert found[frozenset(ids)] == dict.fromkeys(ids, "e" * 32)
    assert found.items() <= introduced.items()
