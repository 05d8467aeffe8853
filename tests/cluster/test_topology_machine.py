"""What nodes say of each other goes in, who is in the cluster comes out."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

import pytest

from meshq.abc import NodeDescription, ToldNode
from meshq.cluster._topology_machine import DISTANCE_MAX, NODES_MAX, TopologyMachine


def node(name: str, version: int = 1, *, life: str = "1", **changed: str) -> NodeDescription:
    instance = f"{name} in life {life}".encode().ljust(16, b".")
    about = {"primary": f"tcp://{name}:5000", **changed}
    return NodeDescription(
        node_id=name.encode().ljust(16, b"."), instance=instance, version=version, name=name, **about
    )


def ident(name: str) -> bytes:
    return node(name).node_id


def word(*names: str, first: NodeDescription | None = None, further: Iterable[ToldNode] = ()) -> list[ToldNode]:
    """What the node of the first name says: it is linked with the others."""
    own, *others = names
    linked = [ToldNode(about=node(other), distance=1) for other in others]
    return [ToldNode(about=first or node(own)), *linked, *further]


def known(machine: TopologyMachine) -> dict[str, int]:
    return {one.about.name: one.distance for one in machine.nodes()}


def test_a_node_knows_itself_first_and_whoever_is_linked_or_told_of_by_distance() -> None:
    machine = TopologyMachine(node("a"))
    machine.meet("session 1", node("b"))
    machine.tell("tcp://c:5000", word("c", "d", "a", "b"))
    assert known(machine) == {"a": 0, "b": 1, "c": 1, "d": 2}
    assert machine.nodes()[0] == ToldNode(about=node("a"))
    assert [one.witness for one in machine.nodes() if one.about.name == "d"] == [ident("c")]


def test_nobody_tells_a_node_who_it_is() -> None:
    machine = TopologyMachine(node("a", 5))
    forged = ToldNode(about=node("a", 99, primary="tcp://elsewhere:1"), distance=1)
    machine.tell("b", [ToldNode(about=node("b")), forged])
    machine.meet("c", node("a", 100, primary="tcp://elsewhere:1"))
    assert machine.own == node("a", 5)
    assert [one.about for one in machine.nodes()] == [node("a", 5), node("b")]
    assert [one.about for one in machine.told_to(ident("c"))] == [node("a", 5), node("b")]
    forged = ToldNode(about=node("a", 99), distance=3, witness=ident("d"))
    machine.tell("b", [ToldNode(about=node("b")), forged])
    assert [one.about for one in machine.nodes()] == [node("a", 5), node("b")]


def test_of_one_life_of_a_node_the_highest_version_counts_whoever_says_it_and_whenever() -> None:
    machine = TopologyMachine(node("a"))
    machine.meet("in", node("b", 7, backup="tcp://spare:1"))
    machine.tell("out", word("b", first=node("b", 6)))
    assert machine.nodes()[1].about == node("b", 7, backup="tcp://spare:1")
    machine.tell("c", [ToldNode(about=node("c")), ToldNode(about=node("b", 9, primary="tcp://moved:1"), distance=1)])
    assert machine.nodes()[1].about == node("b", 9, primary="tcp://moved:1")
    machine.tell("c", [ToldNode(about=node("c")), ToldNode(about=node("b", 2), distance=1)])
    assert machine.nodes()[1].about == node("b", 7, backup="tcp://spare:1")


def test_of_two_lives_the_one_counts_that_was_met_last_and_not_what_others_still_say_of_the_other_one() -> None:
    machine = TopologyMachine(node("a"))
    machine.tell("out", word("b", first=node("b", 90)))
    machine.tell("c", [ToldNode(about=node("c")), ToldNode(about=node("b", 95), distance=1)])
    # A clock that was set back: the new life counts from less.
    machine.tell("out", word("b", first=node("b", 3, life="2")))
    assert machine.nodes()[1].about == node("b", 3, life="2")


def test_of_what_only_others_say_the_highest_version_counts() -> None:
    machine = TopologyMachine(node("a"))
    for teller, version in (("c", 3), ("d", 8), ("e", 5)):
        machine.tell(teller, [ToldNode(about=node(teller)), ToldNode(about=node("b", version), distance=1)])
    assert [one.about.version for one in machine.nodes() if one.about.name == "b"] == [8]


def test_hearsay_ends_with_the_last_one_who_told_it() -> None:
    machine = TopologyMachine(node("a"))
    machine.tell("c", word("c", "b"))
    machine.tell("d", word("d", "b"))
    machine.part("c", "away")
    assert known(machine) == {"a": 0, "d": 1, "b": 2}
    machine.part("d", "left")
    assert known(machine) == {"a": 0}


def test_a_node_that_its_last_witness_has_lost_is_not_kept_by_those_who_were_told_of_it() -> None:
    """Those who only repeat what they were told don't keep it alive among themselves."""
    machine = TopologyMachine(node("a"))
    told = ToldNode(about=node("x"), distance=2, witness=ident("b"))
    machine.tell("b", word("b", "c", "d", "x"))
    machine.tell("c", word("c", "b", "d", further=[told]))
    machine.tell("d", word("d", "b", "c", further=[told]))
    assert known(machine)["x"] == 2
    machine.tell("b", word("b", "c", "d"))
    assert "x" not in known(machine)


def test_what_is_told_is_not_told_back_to_who_said_it_or_stands_for_it() -> None:
    machine = TopologyMachine(node("a"))
    machine.tell("b", word("b", "c"))
    machine.tell("d", [*word("d"), ToldNode(about=node("e"), distance=2, witness=ident("f"))])
    told = {asker: {one.about.name: one.distance for one in machine.told_to(ident(asker))} for asker in "bcdfz"}
    assert told == {
        "b": {"a": 0, "b": 1, "d": 1, "e": 3},
        "c": {"a": 0, "b": 1, "d": 1, "c": 2, "e": 3},
        "d": {"a": 0, "b": 1, "d": 1, "c": 2},
        "f": {"a": 0, "b": 1, "d": 1, "c": 2},
        "z": {"a": 0, "b": 1, "d": 1, "c": 2, "e": 3},
    }


def test_who_is_too_far_away_is_not_known() -> None:
    machine = TopologyMachine(node("a"))
    far = [ToldNode(about=node(f"n{at}"), distance=at, witness=ident("w")) for at in (DISTANCE_MAX - 1, DISTANCE_MAX)]
    machine.tell("b", word("b", further=far))
    assert known(machine) == {"a": 0, "b": 1, f"n{DISTANCE_MAX - 1}": DISTANCE_MAX}


def test_more_nodes_than_the_bound_are_not_known_and_those_that_are_linked_are() -> None:
    machine = TopologyMachine(node("a"))
    machine.tell("b", word("b", *(f"n{number}" for number in range(NODES_MAX + 5))))
    machine.meet("z", node("z"))
    assert len(machine.nodes()) == NODES_MAX
    assert {"a", "b", "z"} <= known(machine).keys()
    assert machine.refused == NODES_MAX + 5 + 3 - NODES_MAX


def test_a_change_of_its_own_place_raises_its_version_and_nothing_else_does() -> None:
    machine = TopologyMachine(node("a", 5))
    machine.describe(primary="tcp://a:5000")
    assert machine.own.version == 5
    machine.describe(primary="tcp://a:5000", backup="tcp://spare:1")
    machine.describe(primary="tcp://a:5000", backup="tcp://spare:1")
    assert machine.own == node("a", 6, backup="tcp://spare:1")


def test_changes_have_their_reasons_once() -> None:
    machine = TopologyMachine(node("a"))

    def reasons() -> list[tuple[str, str]]:
        return [(change.reason, change.node.about.name) for change in machine.changes()]

    machine.tell("b", word("b", "c"))
    assert reasons() == [("joined", "b"), ("joined", "c")]
    assert reasons() == []
    machine.tell("b", word("b", "c", first=node("b", 2, backup="tcp://spare:1")))
    assert reasons() == [("backup", "b")]
    machine.tell("b", word("b", first=node("b", 3, primary="tcp://b:6000", backup="tcp://spare:1")))
    assert reasons() == [("away", "c"), ("moved", "b")]
    machine.tell("b", word("b", first=node("b", 4, life="2")))
    assert reasons() == [("restarted", "b")]
    machine.part("b", "left")
    machine.part("b", "away")
    assert reasons() == [("left", "b")]


def test_who_knows_nobody_any_more_dials_those_who_were_known_last_and_did_not_say_goodbye() -> None:
    machine = TopologyMachine(node("a"))
    machine.tell("b", word("b", "d"))
    machine.meet("c", node("c"))
    machine.part("c", "left")
    assert {about.name for about in machine.places()} == {"b", "d"}
    machine.part("b", "away")
    assert {about.name for about in machine.places()} == {"b", "d"}
    machine.meet("e", node("e"))
    assert [about.name for about in machine.places()] == ["e"]
    machine.part("e", "left")
    assert machine.places() == []


class Net:
    """Nodes that are linked both ways, and tell each other what has changed, one at a time and in any order."""

    def __init__(self, names: Sequence[str], seed: int) -> None:
        self.rng = random.Random(seed)
        self.machines = {name: TopologyMachine(node(name)) for name in names}
        self.links: set[tuple[str, str]] = set()
        self.said: dict[tuple[str, str], list[ToldNode]] = {}

    def link(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            self.links.add((here, there))
            self.machines[here].meet(("in", there), node(there))

    def cut(self, one: str, other: str) -> None:
        for here, there in ((one, other), (other, one)):
            self.links.discard((here, there))
            self.said.pop((here, there), None)
            self.machines[here].part(("in", there), "away")
            self.machines[here].part(("out", there), "away")

    def settle(self) -> int:
        """Have all told until nothing is new; returns in how many steps."""
        waiting = sorted(self.links)
        for steps in range(10_000):
            if not waiting:
                return steps
            speaker, listener = waiting.pop(self.rng.randrange(len(waiting)))
            told = self.machines[speaker].told_to(ident(listener))
            if self.said.get((speaker, listener)) != told:
                self.said[speaker, listener] = told
                self.machines[listener].tell(("out", speaker), told)
                waiting += sorted({pair for pair in self.links if pair[0] == listener} - set(waiting))
        raise AssertionError("they tell each other news without end")

    def distances(self, name: str) -> dict[str, int]:
        """How far the others are over links that exist."""
        found, edge = {name: 0}, [name]
        while edge:
            here = edge.pop(0)
            for one, other in sorted(self.links):
                if one == here and other not in found:
                    found[other] = found[here] + 1
                    edge.append(other)
        return found


@pytest.mark.parametrize("seed", range(20))
def test_whatever_links_come_and_go_in_the_end_each_node_knows_exactly_those_that_links_lead_to(seed: int) -> None:
    names = [f"n{number}" for number in range(2 + seed % 5)]
    net = Net(names, seed)
    pairs = [(one, other) for one in names for other in names if one < other]
    for _ in range(6):
        for pair in net.rng.sample(pairs, net.rng.randint(1, len(pairs))):
            (net.cut if pair in net.links else net.link)(*pair)
            if net.rng.random() < 0.3:
                net.settle()
        net.settle()
        for name in names:
            assert known(net.machines[name]) == net.distances(name)


def test_a_backup_that_has_changed_is_told_once_of_this_node_and_of_others() -> None:
    machine = TopologyMachine(node("a"))
    told: list[list[tuple[str, str]]] = []

    def look() -> None:
        told.append([(about.name, about.backup) for about in machine.changed_backups()])

    machine.meet("b", node("b"))
    look()
    machine.describe(primary="tcp://a:5000", backup="tcp://x:1")
    machine.meet("b", node("b", 2, backup="tcp://y:1"))
    look()
    look()
    # Another life of it, at the place of its backup, which has none itself.
    machine.meet("b", node("b", 3, life="2", primary="tcp://y:1"))
    look()
    # A node that comes has its backup already; what has gone is told as a node.
    machine.meet("c", node("c", backup="tcp://z:1"))
    look()
    machine.part("c", "left")
    look()
    assert told == [[], [("a", "tcp://x:1"), ("b", "tcp://y:1")], [], [("b", "")], [("c", "tcp://z:1")], []]
