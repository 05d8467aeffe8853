"""An arbiter that has more pins than it keeps counts them, and gives up those that nobody holds."""

from __future__ import annotations

from meshq.cluster.grouping._arbiter_machine import FREE, HOLD, WANT, Said
from tests.cluster.arbiters import ALL, Cluster, name_of, restarted


def test_a_count_that_a_restart_interrupts_leaves_all_introduced_and_no_pin_forgotten() -> None:
    cluster, _ = crowded()
    arbiter = cluster.nodes["a"]
    assert arbiter.introduced() == {ALL: {"b": "1", "c": "1"}}
    pins = dict(arbiter.pins)
    assert arbiter.count([])
    # Else no group would get a pin before all are back, one that is away for long among them.
    assert arbiter.introduced() == {ALL: {"b": "1", "c": "1"}}
    anew = restarted(arbiter)
    assert anew.ready and pins.items() >= anew.pins.items() == arbiter.pins.items()


def crowded() -> tuple[Cluster, list[tuple[str, str]]]:
    """Nodes of which ``a`` has given four pins to ``b`` at the request of ``c``, and thinks that three are enough."""
    cluster = Cluster()
    cluster.introduce()
    names = [name_of("a", more=str(number)) for number in range(4)]
    cluster.nodes["a"]._pins_max = 1
    for name in names:
        assert cluster.say("c", "a", Said(WANT, *name, "b")) == ["b"]
    # What was given since the last look is not counted.
    assert not cluster.nodes["a"].count([])
    return cluster, names


def test_too_many_pins_are_counted_and_those_given_up_that_their_nodes_do_not_hold() -> None:
    cluster, names = crowded()
    arbiter = cluster.nodes["a"]
    assert arbiter.count([]) and not arbiter.count([])
    assert sorted(arbiter.lacking()) == ["b", "c"]
    cluster.say("b", "a", Said(HOLD, *names[0]), begins=True)
    # Who asks for its own one holds it from the answer on, and what is given meanwhile is not counted.
    assert cluster.say("b", "a", Said(WANT, *names[1], "b")) == ["b"]
    fresh = name_of("a", more="!")
    assert cluster.say("c", "a", Said(WANT, *fresh, "b")) == ["b"]
    cluster.say("b", "a", begins=False, complete=True)
    assert {*arbiter.pins} == {names[0], names[1], fresh}
    assert {*names[2:]} <= {*arbiter.changed}
    cluster.say("c", "a", begins=True, complete=True)
    assert not arbiter.lacking() and arbiter.counted == 1


def test_what_a_node_began_to_tell_before_the_count_does_not_count() -> None:
    cluster, names = crowded()
    arbiter = cluster.nodes["a"]
    cluster.say("b", "a", *(Said(HOLD, *name) for name in names), begins=True)
    assert arbiter.count([])
    cluster.say("b", "a", begins=False, complete=True)
    assert {*arbiter.pins} == {*names} and "b" in arbiter.lacking()
    cluster.say("b", "a", *(Said(HOLD, *name) for name in names[:3]), begins=True, complete=True)
    assert {*arbiter.pins} == {*names[:3]}


def test_as_many_pins_as_are_allowed_for_each_member_are_not_counted() -> None:
    cluster, names = crowded()
    cluster.say("b", "a", Said(FREE, *names[0]))
    assert not cluster.nodes["a"].count([])


def test_pins_that_are_held_are_counted_anew_only_when_there_are_twice_as_many() -> None:
    cluster, names = crowded()
    arbiter = cluster.nodes["a"]
    assert arbiter.count([])
    cluster.say("b", "a", *(Said(HOLD, *name) for name in names), begins=True, complete=True)
    cluster.say("c", "a", begins=True, complete=True)
    assert {*arbiter.pins} == {*names} and not arbiter.count([])
    for number in range(4, 9):
        assert not arbiter.count([])
        assert cluster.say("c", "a", Said(WANT, *name_of("a", more=str(number)), "b")) == ["b"]
    assert not arbiter.count([])
    assert arbiter.count([]) and arbiter.counted == 2


def test_a_count_leaves_pins_whose_first_message_may_be_under_way() -> None:
    cluster, _ = crowded()
    arbiter = cluster.nodes["a"]
    fresh = name_of("a", more="!")
    assert cluster.say("c", "a", Said(WANT, *fresh, "b")) == ["b"]
    assert arbiter.count([])
    cluster.say("b", "a", begins=True, complete=True)
    cluster.say("c", "a", begins=True, complete=True)
    assert {*arbiter.pins} == {fresh}
    # By the next look it has come, or nobody needs the pin.
    for number in range(4):
        cluster.say("c", "a", Said(WANT, *name_of("a", more=str(number)), "b"))
    assert not arbiter.count([]) and arbiter.count([])
    cluster.say("b", "a", begins=True, complete=True)
    assert not arbiter.pins
