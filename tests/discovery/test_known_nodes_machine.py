"""Which nodes are known: what is announced, silence, lives, and two nodes with one id or one address."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshq.discovery import Announcement, ConnectorPair
from meshq.discovery._known_nodes_machine import ENDED_LIVES_MAX, NODES_MAX, KnownNodes
from tests.discovery.kit import NODE, an_announcement, at

OTHER = bytes(range(100, 116))
LATER_LIFE = bytes(range(50, 66))
HOUR_MS = 3_600_000
BEGAN = 1_700_000_000_000


def known(signed: bool = True) -> KnownNodes:
    return KnownNodes(10.0, signed=signed)


def heard(machine: KnownNodes, now: float = 0.0, **changed: Any) -> list[str] | str:
    """Announce; return the reasons of the changes, or the reason of the refusal."""
    found = machine.hear(an_announcement(**changed), now)
    return [change.reason for change in found.changes] if found.refused is None else found.refused.reason


def names(machine: KnownNodes) -> list[str]:
    return [node.name for node in machine.nodes()]


def test_a_node_joins_with_its_first_announcement_and_later_ones_change_nothing() -> None:
    machine = known()
    assert heard(machine) == ["joined"]
    assert heard(machine, 2.0, sequence=2) == []
    (node,) = machine.nodes()
    assert (node.name, node.connectors, node.sequence, node.heard_at) == ("a", at("tcp://127.0.0.1:61616"), 2, 2.0)


def test_a_node_leaves_when_it_was_silent_for_the_refresh_timeout_and_not_a_moment_before() -> None:
    machine = known()
    heard(machine, 1.0)
    heard(machine, 3.0, sequence=2)
    assert machine.next_expiry() == 13.0
    assert machine.expire(math.nextafter(13.0, 0.0)) == [] and names(machine) == ["a"]
    (change,) = machine.expire(13.0)
    assert (change.reason, change.node.name) == ("left", "a")
    assert machine.nodes() == () and machine.next_expiry() == math.inf


@pytest.mark.parametrize("timeout_s", [0.5, 10.0, 60.0])
def test_each_node_has_a_silence_of_its_own(timeout_s: float) -> None:
    machine = KnownNodes(timeout_s)
    heard(machine, 0.0)
    heard(machine, timeout_s / 2, node_id=OTHER, name="b", connectors=at("tcp://127.0.0.1:2"))
    assert [change.node.name for change in machine.expire(timeout_s)] == ["a"]
    assert [change.node.name for change in machine.expire(timeout_s * 1.5)] == ["b"]


def test_a_node_that_is_silent_leaves_before_another_one_joins() -> None:
    machine = known()
    heard(machine, 0.0)
    assert heard(machine, 10.0, node_id=OTHER, name="b", connectors=at("tcp://127.0.0.1:2")) == ["left", "joined"]


def test_a_node_that_was_silent_joins_again_with_its_next_number() -> None:
    machine = known()
    heard(machine, 0.0, sequence=5)
    machine.expire(10.0)
    assert heard(machine, 20.0, sequence=6) == ["joined"]


def test_other_connectors_of_the_same_life_are_a_move() -> None:
    machine = known()
    heard(machine)
    assert heard(machine, 2.0, sequence=2, connectors=at("tcp://127.0.0.1:9")) == ["moved"]
    assert [node.connectors for node in machine.nodes()] == [at("tcp://127.0.0.1:9")]


def test_another_backup_of_a_node_is_known_and_no_move_and_does_not_hide_who_takes_its_place() -> None:
    machine = known()
    heard(machine, connectors=at("tcp://127.0.0.1:9"))
    pair = (ConnectorPair("tcp://127.0.0.1:9", "tcp://127.0.0.1:10"),)
    assert heard(machine, 2.0, sequence=2, connectors=pair) == []
    assert [node.connectors for node in machine.nodes()] == [pair]
    other = bytes(range(100, 116))
    assert heard(machine, 3.0, node_id=other, began_ms=BEGAN + 1, connectors=at("tcp://127.0.0.1:9")) == [
        "replaced",
        "joined",
    ]


def test_a_later_life_is_a_restart_at_the_same_place_or_at_another_one() -> None:
    machine = known()
    heard(machine, sequence=7)
    assert heard(machine, 2.0, instance=LATER_LIFE, began_ms=BEGAN + 1) == ["restarted"]
    third = bytes(range(200, 216))
    moved = at("tcp://127.0.0.1:9")
    assert heard(machine, 4.0, instance=third, began_ms=BEGAN + 2, connectors=moved) == ["restarted"]
    assert [node.connectors for node in machine.nodes()] == [moved]


@pytest.mark.parametrize("sequence", [1, 4, 5])
def test_an_announcement_that_comes_again_refreshes_nothing(sequence: int) -> None:
    machine = known()
    heard(machine, 0.0, sequence=5)
    assert heard(machine, 9.0, sequence=sequence) == "replayed"
    assert machine.next_expiry() == 10.0


def test_recorded_announcements_of_a_life_that_has_ended_bring_nobody_back() -> None:
    machine = known()
    heard(machine, 0.0, sequence=5)
    machine.expire(10.0)
    assert heard(machine, 11.0, sequence=5) == "replayed"
    heard(machine, 12.0, instance=LATER_LIFE, began_ms=BEGAN + 1)
    assert heard(machine, 13.0, sequence=4) == "replayed"
    assert [node.instance for node in machine.nodes()] == [LATER_LIFE]


def test_without_signatures_a_forged_number_locks_a_node_out_no_longer_than_the_refresh_timeout() -> None:
    machine = known(signed=False)
    heard(machine, 0.0)
    assert heard(machine, 1.0, sequence=2**64 - 1) == []
    assert heard(machine, 10.0, sequence=2) == "replayed"
    assert heard(machine, 11.0, sequence=3) == ["left", "joined"]


def test_of_two_running_nodes_with_one_id_the_later_life_stays() -> None:
    machine = known()
    heard(machine, 0.0, sequence=1)
    heard(machine, 0.0, instance=LATER_LIFE, began_ms=BEGAN + 1, name="copy", connectors=at("tcp://127.0.0.1:2"))
    for number in range(2, 6):
        assert heard(machine, float(number), sequence=number) == "stale_life"
        more = {"instance": LATER_LIFE, "began_ms": BEGAN + 1, "name": "copy", "connectors": at("tcp://127.0.0.1:2")}
        assert heard(machine, float(number), sequence=number, **more) == []
    assert names(machine) == ["copy"]


def test_a_clock_that_was_set_back_locks_a_node_out_no_longer_than_the_refresh_timeout() -> None:
    machine = known()
    heard(machine, 0.0)
    assert heard(machine, 9.0, instance=LATER_LIFE, began_ms=BEGAN - HOUR_MS) == "stale_life"
    assert heard(machine, 10.0, instance=LATER_LIFE, began_ms=BEGAN - HOUR_MS, sequence=2) == ["left", "joined"]


def test_a_store_that_was_begun_anew_at_the_same_address_replaces_the_old_node() -> None:
    machine = known()
    heard(machine)
    found = machine.hear(an_announcement(node_id=OTHER, instance=LATER_LIFE, began_ms=BEGAN + 1, name="new"), 1.0)
    replaced, joined = found.changes
    assert (replaced.reason, replaced.node.name) == ("replaced", "a")
    assert replaced.successor is not None and replaced.successor.name == "new"
    assert (joined.reason, joined.node.name) == ("joined", "new")
    assert names(machine) == ["new"]


def test_two_running_nodes_with_one_address_do_not_replace_each_other_in_turn() -> None:
    machine = known()
    heard(machine)
    later = {"node_id": OTHER, "instance": LATER_LIFE, "began_ms": BEGAN + 1, "name": "later"}
    assert heard(machine, 0.0, **later) == ["replaced", "joined"]
    for number in range(2, 6):
        assert heard(machine, float(number), sequence=number) == "address_taken"
        assert heard(machine, float(number), sequence=number, **later) == []
    assert heard(machine, 15.0, sequence=6) == ["left", "joined"]


def test_a_node_that_moves_to_the_address_of_another_one_replaces_it_only_if_it_began_later() -> None:
    machine = known()
    elsewhere = at("tcp://127.0.0.1:2")
    heard(machine)
    heard(machine, 0.0, node_id=OTHER, instance=LATER_LIFE, began_ms=BEGAN + 1, name="b", connectors=elsewhere)
    assert heard(machine, 1.0, sequence=2, connectors=elsewhere) == "address_taken"
    assert heard(machine, 1.0, node_id=OTHER, instance=LATER_LIFE, began_ms=BEGAN + 1, name="b", sequence=2) == [
        "replaced",
        "moved",
    ]
    assert names(machine) == ["b"]


def test_the_node_that_listens_is_not_among_the_known_nodes() -> None:
    machine = KnownNodes(10.0, own=NODE)
    assert heard(machine) == [] and machine.nodes() == ()


def numbered(number: int, **changed: Any) -> dict[str, Any]:
    name = number.to_bytes(16, "big")
    return {"node_id": name, "instance": name, "connectors": at(f"tcp://host:{number}"), **changed}


def test_more_nodes_than_allowed_are_refused_and_known_ones_are_still_heard() -> None:
    machine = known()
    for number in range(1, NODES_MAX + 1):
        assert heard(machine, 0.0, **numbered(number)) == ["joined"]
    assert heard(machine, 0.0, **numbered(0)) == "too_many"
    assert heard(machine, 1.0, **numbered(1, sequence=2)) == []
    assert len(machine) == NODES_MAX


def test_no_more_ended_lives_are_remembered_than_allowed() -> None:
    machine = known()
    for number in range(ENDED_LIVES_MAX + 2):
        life = (number + 1).to_bytes(16, "big")
        heard(machine, 0.0, instance=life, began_ms=BEGAN + number)
    assert len(machine._ended) == ENDED_LIVES_MAX


lives = st.builds(
    an_announcement,
    node_id=st.sampled_from([NODE, OTHER]),
    instance=st.sampled_from([bytes(16), LATER_LIFE]),
    began_ms=st.integers(0, 2),
    sequence=st.integers(1, 6),
    connectors=st.sampled_from([at("tcp://a:1"), at("tcp://b:1")]),
)


@pytest.mark.slow
@given(steps=st.lists(st.tuples(lives, st.floats(0, 6)), max_size=40))
def test_changes_in_their_order_lead_to_what_is_known_and_refusals_change_nothing(
    steps: list[tuple[Announcement, float]],
) -> None:
    machine = known()
    model: dict[bytes, tuple[bytes, tuple[ConnectorPair, ...]]] = {}
    now = 0.0
    for announcement, pause in steps:
        now += pause
        gone = machine.expire(now)
        for change in gone:
            assert change.reason == "left" and now - change.node.heard_at >= 10.0
            del model[change.node.node_id]
        before = machine.nodes()
        found = machine.hear(announcement, now)
        if found.refused is not None:
            assert not found.changes and machine.nodes() == before
        for change in found.changes:
            node = change.node
            if change.reason == "replaced":
                assert change.successor is not None and change.successor.connectors == node.connectors
                del model[node.node_id]
            else:
                assert (change.reason == "joined") == (node.node_id not in model)
                model[node.node_id] = (node.instance, node.connectors)
        assert {node.node_id: (node.instance, node.connectors) for node in machine.nodes()} == model
        assert len({node.connectors for node in machine.nodes()}) == len(machine)
        assert all(now - node.heard_at < 10.0 for node in machine.nodes())
