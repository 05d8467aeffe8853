"""The decider of fanout clients: which brokers get what, when a send may begin, and what it says."""

from __future__ import annotations

import attrs
import pytest

from meshq.client.link._fanout_machine import (
    PENDING_MAX,
    ROUTINGS_MAX,
    FanoutAnswers,
    FanoutAsk,
    FanoutBroker,
    FanoutDraw,
    FanoutGo,
    FanoutMachine,
    FanoutWait,
    RoutingThere,
)
from meshq.client.settings._fanout_rules import FanoutRules
from meshq.endpoint import Endpoint
from meshq.errors import AddressFullError, ConnectionBrokenError, FanoutError, SettingsError, UsageError

TOPIC, QUEUE = RoutingThere("multicast", True), RoutingThere("anycast", True)
NO_TOPIC, NO_QUEUE = RoutingThere("multicast", False), RoutingThere("anycast", False)
GONE = ConnectionBrokenError("gone", outcome="not_done")


def place(name: str) -> Endpoint:
    return Endpoint.parse(f"tcp://{name}:1")


def made(names: str = "abc", *, fixed: bool = True, **rules: object) -> tuple[FanoutMachine, list[FanoutBroker]]:
    """A machine with brokers, none of them connected."""
    machine = FanoutMachine(**attrs.asdict(FanoutRules(**rules)), fixed=fixed)  # type: ignore[arg-type]
    return machine, list(machine.listed(map(place, names)))


def attach(machine: FanoutMachine, *brokers: FanoutBroker) -> None:
    for one in brokers:
        machine.attached(one, one.place.host.encode() * 16, one.place.host)


def go(machine: FanoutMachine, there: RoutingThere) -> FanoutGo:
    """The first step of a send that waits for nothing, where all brokers say the same of the address."""
    asked = dict.fromkeys(machine.connected, there)
    step = machine.step("x", asked)
    if isinstance(step, FanoutDraw):
        machine.choose(step.brokers[-1])
        step = machine.step("x", asked)
    assert isinstance(step, FanoutGo)
    return step


@pytest.mark.parametrize("count", [0, 0.5, True, "2", 10**9])
def test_a_number_of_brokers_is_checked(count: object) -> None:
    with pytest.raises(SettingsError, match="min_ack_count"):
        FanoutRules(min_ack_count=count)  # type: ignore[arg-type]


def test_a_send_begins_when_two_brokers_are_connected_unless_told_otherwise() -> None:
    machine, (a, b, _) = made()
    assert machine.step("x", {}) == FanoutWait("connected to 0 of the 2 brokers that are needed")
    attach(machine, a)
    assert isinstance(machine.step("x", {}), FanoutWait)
    attach(machine, b)
    assert machine.step("x", {}) == FanoutAsk((a, b))
    for number in (1, 3):
        machine, brokers = made(min_ack_count=number)
        attach(machine, *brokers[: number - 1])
        assert isinstance(machine.step("x", {}), FanoutWait)
        attach(machine, *brokers[number - 1 :])
        assert isinstance(machine.step("x", {}), FanoutAsk)


def test_a_message_for_a_multicast_address_goes_to_every_connected_broker() -> None:
    machine, (a, b, c) = made()
    attach(machine, a, c)
    assert go(machine, TOPIC) == FanoutGo((a, c), 2)
    attach(machine, b)
    assert go(machine, TOPIC) == FanoutGo((a, b, c), 2)
    machine.lost(a, GONE)
    assert go(machine, TOPIC) == FanoutGo((b, c), 2)


def test_messages_for_queues_go_to_the_drawn_broker_until_its_link_is_lost() -> None:
    machine, (a, b, c) = made()
    attach(machine, a, b, c)
    assert machine.step("x", dict.fromkeys((a, b, c), QUEUE)) == FanoutDraw((a, b, c))
    machine.choose(b)
    for _ in range(10):
        assert go(machine, QUEUE) == FanoutGo((b,), 1)
    machine.lost(a, GONE)
    assert go(machine, QUEUE) == FanoutGo((b,), 1)
    machine.lost(b, GONE)
    attach(machine, a)
    assert machine.step("x", dict.fromkeys((a, c), QUEUE)) == FanoutDraw((a, c))


def test_with_fan_out_queues_every_broker_gets_a_message_for_a_queue() -> None:
    machine, (a, b, c) = made(fan_out_queues=True)
    attach(machine, a, b, c)
    assert go(machine, QUEUE) == FanoutGo((a, b, c), 2)


def test_a_broker_that_lacks_a_multicast_address_gets_the_address_first() -> None:
    machine, (a, b, c) = made()
    attach(machine, a, b, c)
    asked = {a: NO_QUEUE, b: TOPIC, c: NO_TOPIC}
    assert machine.step("x", asked) == FanoutGo((a, b, c), 2, (a,))
    # Nobody has it: it becomes what the brokers' settings say, and if they differ nobody knows.
    assert go(machine, NO_TOPIC) == FanoutGo((a, b, c), 2)
    assert go(machine, NO_QUEUE).needed == 1
    with pytest.raises(UsageError, match="tcp://a:1: anycast, tcp://b:1: multicast, tcp://c:1: multicast"):
        machine.step("x", {a: QUEUE, b: TOPIC, c: TOPIC})


def test_only_what_is_there_is_remembered_and_a_new_session_asks_again() -> None:
    machine, (a, b, _) = made()
    attach(machine, a, b)
    machine.note(a, "x", TOPIC)
    machine.note(b, "x", NO_TOPIC)
    assert machine.step("x", {}) == FanoutAsk((b,))
    attach(machine, a)
    assert machine.step("x", {}) == FanoutAsk((a, b))
    for number in range(ROUTINGS_MAX + 1):
        machine.note(a, str(number), QUEUE)
    assert len(a.routings) <= ROUTINGS_MAX


def test_a_broker_that_owes_many_answers_holds_up_what_is_for_it() -> None:
    machine, (a, b, c) = made()
    attach(machine, a, b, c)
    c.pending = PENDING_MAX
    asked = dict.fromkeys((a, b, c), TOPIC)
    assert machine.step("x", asked) == FanoutWait(f"tcp://c:1 owes the answers to {PENDING_MAX} sends")
    machine.choose(a)
    assert go(machine, QUEUE) == FanoutGo((a,), 1)
    c.pending -= 1
    assert isinstance(machine.step("x", asked), FanoutGo)


def test_when_no_more_brokers_can_come_the_error_names_all_of_them() -> None:
    machine, (a, b, c) = made()
    attach(machine, a)
    machine.failed(b, GONE)
    assert isinstance(machine.step("x", {}), FanoutWait)
    machine.failed(c, AddressFullError("full"))
    with pytest.raises(FanoutError) as caught:
        machine.step("x", {})
    assert caught.value.outcome == "not_done" and caught.value.confirmed == ()
    assert list(caught.value.errors) == ["tcp://b:1", "tcp://c:1"]
    assert "connected to tcp://a:1, which are 1 of the 2" in str(caught.value) and "full" in str(caught.value)
    assert caught.value.__cause__ is GONE
    # Others may announce themselves as long as none was given up.
    machine, (a,) = made("a", fixed=False)
    assert isinstance(machine.step("x", {}), FanoutWait)
    machine.failed(a, GONE)
    with pytest.raises(FanoutError, match="gone"):
        machine.step("x", {})


def test_two_places_of_one_broker_are_one_broker_and_the_other_is_tried_when_the_first_is_lost() -> None:
    machine, (a, b, c) = made()
    attach(machine, a)
    machine.attached(b, a.node_id, "a")
    assert (machine.connected, b.life.state) == ((a,), "double")
    attach(machine, c)
    assert go(machine, TOPIC).targets == (a, c)
    machine.lost(a, GONE)
    assert b.life.state == "connecting"
    machine.attached(b, a.node_id, "a")
    machine.attached(a, a.node_id, "a")
    assert machine.connected == (b, c) and a.life.state == "double"
    machine.failed(c, GONE)
    with pytest.raises(FanoutError, match="another place of a"):
        machine.step("x", {})
    # A broker that does not say who it is is nobody's double.
    machine, brokers = made()
    for one in brokers:
        machine.attached(one, b"", "")
    assert len(machine.connected) == 3


def test_a_place_that_is_listed_no_more_is_left_unless_it_is_used() -> None:
    machine, (a, b, c) = made(fixed=False)
    attach(machine, a)
    machine.lost(b, GONE)
    b.pending = 1
    assert machine.listed([place("d")])[0].place == place("d")
    assert [one.life.state for one in (a, b, c)] == ["connected", "connecting", "left"]
    b.pending = 0
    machine.lost(a, GONE)
    assert machine.listed([place("d")]) == ()
    assert [str(one) for one in machine.brokers] == ["tcp://d:1"]
    assert machine.pending == 0
    # Who announces itself again is a new broker, also if it was given up.
    machine.failed(machine.brokers[0], GONE)
    machine.listed([])
    assert [one.life.state for one in machine.listed([place("d")])] == ["connecting"]


def test_a_send_is_done_when_as_many_brokers_have_confirmed_as_are_needed() -> None:
    _, (a, b, c) = made()
    answers = FanoutAnswers("x", (a, b, c), 2)
    assert answers.verdict == "open"
    answers.answered(b, None)
    assert answers.verdict == "open"
    answers.answered(a, GONE)
    assert answers.verdict == "open"
    answers.answered(c, None)
    assert answers.verdict == "done"
    assert answers.missed() == (("tcp://a:1", GONE),) and answers.missed() == ()


def test_what_failed_after_it_was_done_is_told_too() -> None:
    _, (a, b, c) = made()
    answers = FanoutAnswers("x", (a, b, c), 2)
    answers.answered(a, None)
    answers.answered(b, None)
    assert answers.verdict == "done" and answers.missed() == ()
    answers.answered(c, GONE)
    assert answers.verdict == "done" and answers.missed() == (("tcp://c:1", GONE),)


def test_too_few_answers_are_an_error_that_says_who_confirmed_and_who_did_not() -> None:
    _, (a, b, c) = made()
    answers = FanoutAnswers("x", (a, b, c), 2)
    answers.answered(a, GONE)
    answers.answered(b, None)
    assert answers.verdict == "open"
    answers.answered(c, AddressFullError("full"))
    error = answers.verdict
    assert isinstance(error, FanoutError)
    assert (error.confirmed, list(error.errors)) == (("tcp://b:1",), ["tcp://a:1", "tcp://c:1"])
    # One broker has it: who sends it again sends it there twice.
    assert error.outcome == "unknown" and error.__cause__ is GONE
    assert "tcp://b:1 confirmed the message to 'x', where 2 of the brokers have to" in str(error)


@pytest.mark.parametrize(("second", "outcome"), [("not_done", "not_done"), ("unknown", "unknown")])
def test_what_no_broker_has_is_not_done(second: str, outcome: str) -> None:
    _, (a, b) = made("ab")
    answers = FanoutAnswers("x", (a, b), 2)
    answers.answered(a, GONE)
    answers.answered(b, ConnectionBrokenError("lost", outcome=second))  # type: ignore[arg-type]
    error = answers.verdict
    assert isinstance(error, FanoutError) and error.outcome == outcome
