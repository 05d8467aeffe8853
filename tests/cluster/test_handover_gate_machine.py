"""When a node lets in the clients of another one that hands over what it has, as a table of what it knows."""

from __future__ import annotations

import attrs
import pytest

from meshq.abc import NodeDescription
from meshq.cluster.gate._handover_gate_machine import GRACE_S, KEPT_MAX, GateFacts, HandoverGate

NODE, LIFE, NEXT_LIFE, TARGET = b"n" * 16, b"1" * 16, b"2" * 16, b"t" * 16
SERVES = NodeDescription(node_id=NODE, instance=LIFE, name="a")
HANDS_OVER = attrs.evolve(SERVES, leaving=True, target=TARGET)
BROKEN_OFF = attrs.evolve(SERVES, leaving=True)
COMPLETE = attrs.evolve(HANDS_OVER, successor=TARGET)
BACK = attrs.evolve(SERVES, instance=NEXT_LIFE)


def known(about: NodeDescription | None, *, expected: bool = True) -> GateFacts:
    return GateFacts(about=about, name="a", expected=expected)


def closed(gate: HandoverGate, about: NodeDescription | None, now: float, *, expected: bool = True) -> bool:
    return bool(gate.missing(NODE, LIFE, known(about, expected=expected), now))


def test_while_the_node_hands_over_nobody_comes_in_however_long_that_takes() -> None:
    gate = HandoverGate()
    assert all(closed(gate, HANDS_OVER, now) for now in (0.0, GRACE_S * 2, GRACE_S * 1000))
    assert gate.given_up == 0


def test_when_the_node_names_its_successor_all_come_in_also_after_it_has_died() -> None:
    gate = HandoverGate()
    assert closed(gate, HANDS_OVER, 0.0)
    gate.completed(COMPLETE)
    assert not closed(gate, COMPLETE, 0.0)
    assert not closed(gate, None, 0.0)


def test_who_comes_from_a_node_that_was_never_linked_or_has_said_goodbye_comes_in() -> None:
    assert not closed(HandoverGate(), None, 0.0, expected=False)


@pytest.mark.parametrize("expected", [False, True])
def test_while_the_life_goes_on_that_has_sent_clients_away_and_says_nothing_of_itself_nobody_comes_in(
    expected: bool,
) -> None:
    gate = HandoverGate()
    assert all(closed(gate, SERVES, now, expected=expected) for now in (0.0, GRACE_S * 2))
    assert not closed(gate, None, GRACE_S * 2, expected=False)


@pytest.mark.parametrize("about", [None, BACK, BROKEN_OFF])
def test_a_handover_that_nobody_goes_on_with_keeps_the_gate_closed_for_so_long_only(
    about: NodeDescription | None,
) -> None:
    gate = HandoverGate()
    assert closed(gate, HANDS_OVER, 0.0)
    assert closed(gate, about, 1.0) and closed(gate, about, GRACE_S - 0.1)
    assert not closed(gate, about, GRACE_S) and not closed(gate, about, GRACE_S + 1)
    assert gate.given_up == 1


def test_the_time_counts_from_the_first_question_where_nothing_was_known_before() -> None:
    gate = HandoverGate()
    assert closed(gate, None, 1000.0) and closed(gate, None, 1000.0 + GRACE_S - 0.1)
    assert not closed(gate, None, 1000.0 + GRACE_S)


def test_a_handover_that_goes_on_in_the_next_life_closes_the_gate_again() -> None:
    gate = HandoverGate()
    assert closed(gate, HANDS_OVER, 0.0)
    assert not closed(gate, None, GRACE_S)
    going_on = attrs.evolve(HANDS_OVER, instance=NEXT_LIFE)
    assert closed(gate, going_on, GRACE_S + 1)
    assert closed(gate, None, GRACE_S * 2)


def test_the_end_of_one_life_says_nothing_of_the_next() -> None:
    gate = HandoverGate()
    gate.completed(COMPLETE)
    assert gate.missing(NODE, NEXT_LIFE, known(BACK), 0.0)


def test_lives_that_clients_make_up_are_bounded() -> None:
    gate = HandoverGate()
    for number in range(2 * KEPT_MAX):
        gate.missing(NODE, number.to_bytes(16), known(None), 0.0)
        gate.completed(attrs.evolve(COMPLETE, instance=number.to_bytes(16)))
    assert len(gate._open_since) <= KEPT_MAX and len(gate._done) == KEPT_MAX
