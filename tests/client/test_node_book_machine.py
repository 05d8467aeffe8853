"""Which nodes the clients of a factory may dial, as far as they were told of a cluster."""

from __future__ import annotations

import attrs
import pytest

from meshq.abc import HandoverTarget, NodeDescription, ToldNode
from meshq.client.link._failover_machine import FailoverMachine
from meshq.client.link._node_book_machine import GONE_MAX, KnownTargets, NodeBook, ToldPlaceRules
from meshq.client.link._targets_plan import LastFirst
from meshq.endpoint import Endpoint


def at(name: str, **about: str) -> Endpoint:
    return Endpoint(about.get("scheme", "tcp"), name, 5000)


def book(*schemes: str, insecure: bool = True, options: tuple[tuple[str, str], ...] = ()) -> NodeBook:
    return NodeBook(ToldPlaceRules(schemes=frozenset(schemes or ("tcp",)), insecure=insecure, options=options))


def one(name: str, distance: int, primary: str | None = None) -> ToldNode:
    place = f"tcp://{name}:5000" if primary is None else primary
    return ToldNode(about=NodeDescription(node_id=identity(name), name=name, primary=place), distance=distance)


def identity(name: str) -> bytes:
    return name.encode() * 16


def told(speaker: str, others: str = "") -> list[ToldNode]:
    return [one(name, int(name != speaker)) for name in sorted(speaker + others)]


def names(known: KnownTargets) -> tuple[str, str, str]:
    """The names of the nodes, the spares and those that have gone."""
    nodes, spares, gone = ("".join(place.host for place in some) for some in (known.nodes, known.spares, known.gone))
    return nodes, spares, gone


A, B, C, X = map(at, "abcx")


def test_who_was_told_nothing_knows_the_list() -> None:
    made = book()
    assert made.known([B, A], None) == KnownTargets((B, A))
    assert not made.informed


def test_of_a_cluster_its_nodes_are_known_and_the_list_is_kept_behind_them() -> None:
    made = book()
    assert made.told(told("a", "bc")) == [] and made.informed
    assert names(made.known([A], None)) == ("abc", "", "")
    assert names(made.known([X, A], None)) == ("abc", "x", "")


def test_a_broker_in_no_cluster_leaves_the_list_as_it_is() -> None:
    made = book()
    made.attached(A, identity("a"))
    made.told([one("a", 0, primary="")])
    assert names(made.known([B, A], A)) == ("ba", "", "")
    made.attached(B, identity("b"))
    made.told([one("b", 0, primary="")])
    assert names(made.known([B, A], B)) == ("ba", "", "")


def test_a_node_that_left_is_known_only_as_gone_or_as_a_spare_of_the_list() -> None:
    made = book()
    made.told(told("a", "bc"))
    made.told(told("a", "b"))
    assert names(made.known([A], None)) == ("ab", "", "c")
    assert names(made.known([A, C], None)) == ("ab", "c", "")
    # The last one of a cluster is alone, and the list is no reason to believe in the others.
    made.told(told("a"))
    assert names(made.known([B, A, C], None)) == ("a", "bc", "")
    made.told(told("a", "bc"))
    assert names(made.known([A], None)) == ("abc", "", "")


def test_a_node_that_the_client_comes_to_says_who_is_missing() -> None:
    made = book()
    made.told(told("a", "bc"))
    made.told(told("b", "c"))
    assert names(made.known([A], A)) == ("bc", "a", "")


def test_who_comes_to_another_cluster_misses_nobody_of_the_first_one() -> None:
    made = book()
    made.told(told("a", "b"))
    made.told(told("x", "y"))
    assert names(made.known([A, X], None)) == ("xy", "a", "")


def test_gone_nodes_are_bounded_and_the_newest_are_kept() -> None:
    made = book()
    for number in range(GONE_MAX + 10):
        passing = one(f"n{number}", 1)
        made.told([one("a", 0), passing])
    made.told([one("a", 0)])
    gone = made.known([A], None).gone
    assert len(gone) == GONE_MAX and gone[-1].host == f"n{GONE_MAX + 9}"


def test_a_node_is_dialed_where_it_answered_last_and_its_other_places_are_spares() -> None:
    outside, moved = Endpoint("tcp", "outside", 1), Endpoint("tcp", "a2", 5000)
    made = book()
    made.attached(outside, identity("a"))
    made.told(told("a", "b"))
    assert made.known([outside], outside) == KnownTargets((outside, B), (A,))
    made.told([one("a", 0, "tcp://a2:5000"), one("b", 1)])
    assert made.known([outside], outside) == KnownTargets((outside, B), (moved,))
    made.attached(moved, identity("a"))
    assert made.known([outside], moved) == KnownTargets((moved, B), (outside,))
    # A client that was at another place than the others goes on there.
    assert made.known([outside], outside).nodes == (outside, B)


def test_a_node_that_has_come_back_elsewhere_is_dialed_there_once_an_attempt_at_its_former_place_has_failed() -> None:
    made, moved = book(), Endpoint("tcp", "b", 5001)
    made.attached(B, identity("b"))
    made.told(told("a", "b"))
    made.told(told("a"))
    made.told([one("a", 0), one("b", 1, "tcp://b:5001")])
    assert made.known([A], None) == KnownTargets((A, B), (moved,))
    made.failed(B)
    assert made.known([A], None) == KnownTargets((A, moved), (B,))
    # Only there a client that was there can go on.
    assert made.known([A], B) == KnownTargets((A, B), (moved,))
    made.attached(B, identity("b"))
    assert made.known([A], None) == KnownTargets((A, B), (moved,))
    # A failure says nothing about a place at which nobody has answered yet.
    made.failed(A)
    made.attached(A, identity("a"))
    assert made.known([A], None) == KnownTargets((A, B), (moved,))


def test_a_round_over_very_many_nodes_compares_no_two_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    made, many = book(), 1_000
    made.told([one(f"n{number}", min(number, 1)) for number in range(many)])
    compared, equal = [0], Endpoint.__eq__

    def counted(self: Endpoint, other: object) -> bool:
        compared[0] += 1
        return equal(self, other)

    monkeypatch.setattr(Endpoint, "__eq__", counted)
    assert len(made.known([A], None).nodes) == many
    # Equal hashes are compared.
    assert compared[0] < 10 * many


def test_another_node_at_the_place_of_one_is_that_node() -> None:
    made = book()
    made.attached(A, identity("a"))
    made.told([one("a", 0, ""), one("b", 1)])
    assert names(made.known([A], A)) == ("ab", "", "")
    made.attached(A, identity("x"))
    assert names(made.known([A], A)) == ("b", "a", "")


def test_a_place_of_the_list_keeps_its_options_and_a_told_one_gets_those_of_all() -> None:
    option = (("connection_timeout", "5"),)
    listed = Endpoint("tcp", "a", 5000, option)
    made = book(options=option)
    made.told(told("a", "b"))
    assert made.known([listed], None).nodes == (listed, Endpoint("tcp", "b", 5000, option))


@pytest.mark.parametrize(
    ("primary", "schemes", "insecure", "why"),
    [
        ("tcp://b:5000", ["tls"], False, "tls://, as in the client's URL"),
        ("tls://b:5000", ["tcp"], True, "tcp://, as in the client's URL"),
        ("inproc://b", ["tcp"], True, "tcp://, as in the client's URL"),
        ("tcp://b:5000", ["tcp"], False, "plaintext to this machine only"),
        ("tcp://b:5000", ["tcp", "tls"], False, "plaintext to this machine only"),
    ],
)
def test_what_is_told_makes_no_connection_weaker(primary: str, schemes: list[str], insecure: bool, why: str) -> None:
    made = book(*schemes, insecure=insecure)
    (text,) = made.told([one("a", 0, ""), one("b", 1, primary)])
    assert "node 'b'" in text and why in text
    listed = at("a", scheme=schemes[0])
    made.attached(listed, identity("a"))
    assert made.known([listed], listed) == KnownTargets((listed,))


def test_a_place_that_is_as_safe_as_the_list_is_dialed() -> None:
    for made, primary in [(book("tls", insecure=False), "tls://b:1"), (book(insecure=False), "tcp://127.0.0.1:1")]:
        assert made.told([one("a", 0, ""), one("b", 1, primary)]) == []
        assert made.known([], None).nodes == (Endpoint.parse(primary),)


def test_a_round_has_the_nodes_then_the_spares_and_then_one_that_has_gone() -> None:
    made = FailoverMachine(LastFirst(), initial_attempts=9, attempts=9, interval_s=0.1, factor=1.0, interval_s_max=0.1)
    known = KnownTargets((A, B), (X,), tuple(map(at, "uvw")))
    rounds = []
    for _ in range(4):
        dials = [made.next(known) for _ in range(4)]
        rounds.append("".join(dial.target.host for dial in dials if dial is not None and dial.target is not None))
    assert rounds == ["abxu", "abxv", "abxw", "abxu"]


def test_a_handover_s_target_is_where_it_is_said_to_be_and_then_where_its_backup_is() -> None:
    made, target = book(), HandoverTarget(node_id=identity("b"), name="b", place="tcp://b:5000")
    assert made.places_of(target, [A], A) == (B,)
    pair = one("b", 1)
    made.told([one("a", 0), attrs.evolve(pair, about=attrs.evolve(pair.about, backup="tcp://x:5000"))])
    # What the client has at stake is in the store of both.
    assert made.places_of(target, [A], A) == (B, X)
