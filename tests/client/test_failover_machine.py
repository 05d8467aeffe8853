"""Where the client connects next, after how long, and when it gives up."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import attrs

from meshq.abc import TargetPolicy
from meshq.client.link._failover_machine import FailoverMachine
from meshq.client.link._node_book_machine import KnownTargets
from meshq.client.link._targets_plan import LastFirst
from meshq.endpoint import Endpoint


class ConnectAttempt(NamedTuple):
    """An attempt, with the number of the target."""

    delay_s: float
    target: int | None


class NumberedMachine:
    """A machine whose targets are numbers; a test changes the list of those that are known."""

    def __init__(self, inner: FailoverMachine, known: Sequence[int]) -> None:
        self.inner = inner
        self.known = known

    def next(self) -> ConnectAttempt | None:
        found = self.inner.next(KnownTargets(tuple(target(number) for number in self.known)))
        if found is None:
            return None
        return ConnectAttempt(found.delay_s, found.target.port if found.target is not None else None)

    def attached(self, number: int, now: float) -> None:
        self.inner.attached(target(number), now)

    def lost(self, now: float, *, leave: bool) -> None:
        self.inner.lost(now, leave=leave)

    def __repr__(self) -> str:
        return repr(self.inner)


def target(number: int) -> Endpoint:
    return Endpoint("tcp", "127.0.0.1", number)


class Chosen:
    """A policy that wants these, whatever there is."""

    def __init__(self, places: Sequence[Endpoint]) -> None:
        self.places = tuple(places)

    def order(self, nodes: Sequence[Endpoint], *, last: Endpoint | None, leave_last: bool) -> tuple[Endpoint, ...]:
        return self.places


def machine(targets: int = 1, policy: TargetPolicy | None = None, **changes: float) -> NumberedMachine:
    settings = {
        "initial_attempts": math.inf,
        "attempts": math.inf,
        "interval_s": 0.1,
        "factor": 2.0,
        "interval_s_max": 2.0,
        **changes,
    }
    return NumberedMachine(FailoverMachine(policy or LastFirst(), **settings), range(targets))


def delays(made: NumberedMachine, count: int) -> list[float]:
    return [dial.delay_s for dial in (made.next() for _ in range(count)) if dial is not None]


def test_the_first_try_is_at_once_and_the_back_off_doubles_up_to_its_bound() -> None:
    assert delays(machine(), 8) == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_an_interval_above_the_bound_is_the_bound() -> None:
    assert delays(machine(interval_s=5.0), 3) == [0.0, 2.0, 2.0]


def test_targets_are_tried_in_turn_and_only_rounds_are_waited_for() -> None:
    made = machine(3)
    assert [made.next() for _ in range(7)] == [
        ConnectAttempt(0.0, 0),
        ConnectAttempt(0.0, 1),
        ConnectAttempt(0.0, 2),
        ConnectAttempt(0.1, 0),
        ConnectAttempt(0.0, 1),
        ConnectAttempt(0.0, 2),
        ConnectAttempt(0.2, 0),
    ]


def test_attempts_are_rounds_over_all_targets() -> None:
    made = machine(2, initial_attempts=2)
    assert [made.next() for _ in range(6)] == [
        ConnectAttempt(0.0, 0),
        ConnectAttempt(0.0, 1),
        ConnectAttempt(0.1, 0),
        ConnectAttempt(0.0, 1),
        None,
        None,
    ]


def test_after_a_loss_the_other_bound_holds_and_the_lost_target_comes_first() -> None:
    made = machine(3, initial_attempts=1, attempts=2)
    made.next()
    made.next()
    made.attached(1, now=0.0)
    made.lost(100.0, leave=False)
    assert [made.next() for _ in range(7)] == [
        ConnectAttempt(0.0, 1),
        ConnectAttempt(0.0, 2),
        ConnectAttempt(0.0, 0),
        ConnectAttempt(0.1, 1),
        ConnectAttempt(0.0, 2),
        ConnectAttempt(0.0, 0),
        None,
    ]


def test_a_target_that_wants_to_be_left_comes_last() -> None:
    made = machine(3)
    made.attached(1, now=0.0)
    made.lost(100.0, leave=True)
    assert [made.next() for _ in range(3)] == [ConnectAttempt(0.0, 2), ConnectAttempt(0.0, 0), ConnectAttempt(0.0, 1)]


def test_no_attempt_allowed_means_none_is_made() -> None:
    made = machine(attempts=0)
    assert made.next() == ConnectAttempt(0.0, 0)
    made.attached(0, now=0.0)
    made.lost(100.0, leave=False)
    assert made.next() is None


def test_a_connection_that_breaks_soon_does_not_reset_the_back_off() -> None:
    made = machine()
    now = 0.0
    waited = []
    for _ in range(8):
        dial = made.next()
        assert dial is not None
        waited.append(dial.delay_s)
        now += dial.delay_s
        made.attached(0, now)
        made.lost(now + 0.01, leave=True)
    assert waited == [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]
    made.attached(0, now)
    made.lost(now + 2.0, leave=False)
    assert made.next() == ConnectAttempt(0.0, 0)
    assert repr(made) == "<FailoverMachine round=1 position=0 delay=0.1>"


def test_the_first_of_several_targets_is_not_hammered_either() -> None:
    made = machine(2)
    assert made.next() == ConnectAttempt(0.0, 0)
    made.attached(0, now=0.0)
    made.lost(0.01, leave=False)
    assert made.next() == ConnectAttempt(0.1, 0)
    made.attached(0, now=0.1)
    made.lost(0.2, leave=False)
    assert made.next() == ConnectAttempt(0.1, 0)


def targets_of(made: NumberedMachine, count: int) -> list[int | None]:
    return [dial.target for dial in (made.next() for _ in range(count)) if dial is not None]


def test_a_list_that_changes_counts_from_the_next_round_on() -> None:
    made = machine(2)
    assert targets_of(made, 1) == [0]
    made.known = [2, 3, 4]
    assert targets_of(made, 4) == [1, 2, 3, 4]
    made.known = [4]
    assert targets_of(made, 2) == [4, 4]


def test_a_last_target_that_is_not_known_any_more_is_not_tried() -> None:
    made = machine(3)
    made.attached(1, now=0.0)
    made.known = [0, 2]
    made.lost(100.0, leave=True)
    assert targets_of(made, 2) == [0, 2]
    made.known = [2, 1, 0]
    assert targets_of(made, 3) == [0, 2, 1]


def test_a_round_without_a_target_is_a_round_that_is_waited_for() -> None:
    made = machine(0, initial_attempts=3)
    assert [made.next() for _ in range(2)] == [ConnectAttempt(0.0, None), ConnectAttempt(0.1, None)]
    made.known = [7]
    assert [made.next() for _ in range(2)] == [ConnectAttempt(0.2, 7), None]


def held(first: Sequence[int], known: Sequence[int]) -> tuple[FailoverMachine, KnownTargets]:
    """A machine whose node has sent it away, and the targets of each round."""
    inner = machine(0).inner
    inner.attached(target(known[0]), 0.0)
    inner.lost(10.0, leave=True)
    return inner, KnownTargets(tuple(map(target, known)), first=tuple(map(target, first)))


def attempts(inner: FailoverMachine, known: KnownTargets, count: int) -> list[tuple[float, int]]:
    found = []
    for _ in range(count):
        one = inner.next(known)
        assert one is not None and one.target is not None
        found.append((one.delay_s, one.target.port))
    return found


def test_who_is_sent_away_tries_that_node_first_then_its_own_and_then_all_others() -> None:
    inner, known = held([2, 1], [1, 2, 3])
    assert attempts(inner, known, 3) == [(0.0, 2), (0.0, 1), (0.0, 3)]


def test_a_round_ends_behind_its_own_node_when_the_other_one_waits_for_what_that_has() -> None:
    inner, known = held([2, 1], [1, 2, 3])
    assert attempts(inner, known, 1) == [(0.0, 2)]
    inner.hold()
    assert attempts(inner, known, 3) == [(0.0, 1), (0.1, 2), (0.0, 1)]


def test_a_round_ends_at_once_when_a_third_node_waits() -> None:
    inner, known = held([2, 1], [1, 2, 3, 4])
    assert attempts(inner, known, 3)[-1] == (0.0, 3)
    inner.hold()
    assert attempts(inner, known, 1) == [(0.1, 2)]


def test_who_hears_of_a_handover_in_the_middle_of_a_round_tries_those_two_next() -> None:
    inner, known = held([], [1, 2, 3, 4])
    assert attempts(inner, known, 1) == [(0.0, 2)]
    told = attrs.evolve(known, first=(target(4), target(1)))
    assert attempts(inner, told, 1) == [(0.0, 4)]
    inner.hold()
    assert attempts(inner, told, 3) == [(0.0, 1), (0.1, 4), (0.0, 1)]


def test_who_was_at_the_target_of_a_handover_in_this_round_is_not_sent_there_twice() -> None:
    inner, known = held([], [1, 2, 3])
    assert attempts(inner, known, 2) == [(0.0, 2), (0.0, 3)]
    assert attempts(inner, attrs.evolve(known, first=(target(2),)), 2) == [(0.0, 1), (0.1, 2)]


def test_a_policy_that_wants_no_other_node_is_heeded_in_the_middle_of_a_round() -> None:
    inner = machine(0, Chosen([target(2), target(3)])).inner
    known = KnownTargets((target(1), target(2), target(3)))
    assert attempts(inner, known, 1) == [(0.0, 2)]
    assert attempts(inner, attrs.evolve(known, first=(target(1),)), 1) == [(0.0, 3)]


def test_a_round_that_has_ended_is_not_ended_again() -> None:
    inner, known = held([2, 1], [1, 2])
    assert attempts(inner, known, 2) == [(0.0, 2), (0.0, 1)]
    inner.hold()
    assert attempts(inner, known, 1) == [(0.1, 2)]
