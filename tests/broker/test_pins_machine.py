"""The pins of message groups at one node: what it may deliver, what it wants to know, and what is to go."""

from __future__ import annotations

import math
from collections.abc import Collection

import pytest

from meshq.broker.catalog._pins_machine import PERIODS, WAYS_MAX, PinsMachine

RED = ("q", "red")
BLUE = ("q", "blue")


@pytest.fixture
def woken() -> list[int]:
    return []


@pytest.fixture
def pins(woken: list[int]) -> PinsMachine:
    made = PinsMachine()
    made.begin("here", lambda address: address == "q", lambda: woken.append(1))
    made.switch(active=True)
    made.see(frozenset({"here", "there"}), frozenset({"here", "there", "away"}))
    return made


def test_without_pins_every_group_is_delivered() -> None:
    pins = PinsMachine()
    assert pins.claim("q", "q", "red") and not pins.wanted


def test_who_only_looks_asks_for_nothing(pins: PinsMachine, woken: list[int]) -> None:
    assert pins.may_offer("other", "other", "red") and not pins.may_offer("q", "q", "red")
    assert not pins.wanted and not pins.open() and not woken
    pins.told(RED, "here")
    assert pins.may_offer("q", "q", "red")
    pins.leaving = True
    assert not pins.may_offer("q", "q", "red")


def test_what_is_told_unasked_answers_nothing(pins: PinsMachine) -> None:
    pins.told(RED, "here")
    # Another node had the same pin, and keeps it: messages that are here have to be asked for.
    assert not pins.told(RED, "there") and not pins.away
    assert not pins.claim("q", "q", "red")
    pins.ask(RED, 7)
    assert pins.told(RED, "there") and pins.settled("q", {"red"}, {"there"}) == {"red": 7}


def test_messages_are_looked_at_again_when_their_node_is_linked_again(pins: PinsMachine) -> None:
    pins.ask(RED, 7)
    pins.told(RED, "there")
    here, both, members = frozenset({"here"}), frozenset({"here", "there"}), frozenset({"here", "there", "away"})
    pins.news.clear()
    pins.see(here, members)
    assert not pins.news
    pins.see(both, members)
    assert list(pins.news) == ["q"]


def test_a_group_is_delivered_only_while_its_pin_is_held_and_asked_for_otherwise(
    pins: PinsMachine, woken: list[int]
) -> None:
    assert pins.claim("other", "other", "red")
    assert not pins.claim("q", "q", "red")
    assert list(pins.wanted) == [RED] and woken
    pins.told(RED, "here")
    assert pins.claim("q", "q", "red") and not pins.wanted
    pins.give_up(RED)
    assert not pins.claim("q", "q", "red")


def test_what_is_held_elsewhere_is_to_go_until_its_messages_have_gone(pins: PinsMachine) -> None:
    assert not pins.claim("q", "q", "red")
    pins.ask(RED, 7)
    pins.told(RED, "there")
    assert not pins.wanted and list(pins.news) == ["q"]
    assert pins.settled("q", {"red", "blue"}, {"there"}) == {"red": 7}
    assert not pins.settled("q", {"blue"}, {"there"}) and not pins.away
    assert pins.use(RED) == "there"


def test_what_comes_while_the_arbiter_is_asked_or_later_is_asked_for_anew(pins: PinsMachine) -> None:
    assert not pins.claim("q", "q", "red")
    pins.ask(RED, 7)
    assert pins.open() == [RED] and not pins.wanted
    assert not pins.claim("q", "q", "red")
    pins.told(RED, "there")
    assert pins.settled("q", {"red"}, {"there"}) == {"red": 7} and pins.open() == [RED]
    pins.ask(RED, 9)
    pins.told(RED, "there")
    assert pins.settled("q", {"red"}, {"there"}) == {"red": 9} and not pins.open()
    # A node that still sends it here may know less than this one does.
    assert not pins.claim("q", "q", "red") and pins.open() == [RED]
    pins.ask(RED, 10)
    pins.told(RED, "here")
    assert not pins.open() and pins.claim("q", "q", "red")


def test_a_pin_that_was_given_up_is_remembered_until_it_is_known_where_it_is(pins: PinsMachine) -> None:
    pins.told(RED, "here")
    pins.give_up(RED)
    assert pins.was_here(RED)
    pins.told(RED, "there")
    assert not pins.was_here(RED)


def test_of_a_node_that_has_gone_nothing_is_known_any_more(pins: PinsMachine) -> None:
    pins.told(RED, "there")
    assert pins.see(frozenset({"here"}), frozenset({"here"})) == [RED]
    assert not pins.claim("q", "q", "red") and list(pins.wanted) == [RED]


def test_a_node_that_leaves_delivers_nothing_of_what_it_still_holds(pins: PinsMachine) -> None:
    pins.told(RED, "here")
    pins.leaving = True
    assert not pins.claim("q", "q", "red") and pins.holder_of(RED) == "here"


def test_a_pin_is_idle_after_some_periods_without_a_use_and_never_sooner(pins: PinsMachine) -> None:
    pins.told(RED, "here")
    pins.told(BLUE, "there")
    for _ in range(8):
        # Its last use may have been at the end of a period: of the eight that have begun since, seven were whole.
        assert after_a_period(pins, idle_after=8) == ([], 0)
    pins.use(BLUE)
    assert [after_a_period(pins, idle_after=8) for _ in range(2)] == [([], 0), ([RED], 0)]
    assert pins.holder_of(BLUE) == "there"
    for _ in range(8):
        after_a_period(pins, idle_after=8, busy={"there"})
    assert pins.holder_of(BLUE) == "there"
    for _ in range(2):
        after_a_period(pins, idle_after=8)
    assert pins.holder_of(BLUE) is None


def after_a_period(
    pins: PinsMachine, idle_after: float = math.inf, pins_max: int = 1_000, busy: Collection[str] = ()
) -> tuple[list[tuple[str, str]], int]:
    """End a period; give up what is idle."""
    if not pins.period_over(idle_after, pins_max):
        return [], 0
    idle, crowded = pins.idle(idle_after, pins_max, busy)
    for name in idle:
        pins.give_up(name)
    return idle, crowded


def test_idle_pins_are_looked_for_four_times_in_the_time_after_which_they_are(pins: PinsMachine) -> None:
    looks = [pins.period_over(12, 10) for _ in range(24)]
    assert looks == [False, False, True] * 8
    assert not any(pins.period_over(math.inf, 10) for _ in range(24))


def test_too_many_pins_are_released_that_were_not_used_for_longest_and_none_that_was_used_lately(
    pins: PinsMachine,
) -> None:
    names = [("q", str(number)) for number in range(6)]
    for name in names:
        pins.told(name, "here" if int(name[1]) % 2 else "there")
        after_a_period(pins, pins_max=6)
    pins.told(RED, "here")
    pins.told(BLUE, "there")
    for _ in range(PERIODS):
        # Only from now on is looked which are in use.
        assert after_a_period(pins, pins_max=6) == ([], 0)
        pins.use(names[0])
    assert after_a_period(pins, pins_max=6) == ([names[1]], 2)
    assert {*pins.held, *pins.elsewhere} == {names[0], *names[3:], RED, BLUE}
    pins.told(names[1], "here")
    assert after_a_period(pins, pins_max=6) == ([names[3]], 1)


def test_pins_that_are_all_used_stay_whatever_their_number(pins: PinsMachine) -> None:
    for number in range(20):
        pins.told(("q", str(number)), "here")
    for _ in range(20):
        for name in list(pins.held):
            pins.keep(name)
        assert after_a_period(pins, pins_max=3) == ([], 0)
    assert len(pins.held) == 20


def test_a_group_that_waits_for_its_pin_leaves_nothing_behind(pins: PinsMachine) -> None:
    pins.keep(RED)
    pins.told(BLUE, "there")
    pins.keep(BLUE)
    assert [*pins._used] == [BLUE]


def test_the_ways_of_groups_are_bounded(pins: PinsMachine) -> None:
    for number in range(WAYS_MAX + 10):
        pins.goes(("q", str(number)), "there")
    assert pins.way(("q", "0")) is None and pins.way(("q", str(WAYS_MAX))) == "there"


def test_a_node_that_ends_gives_nothing_that_it_does_not_hold_and_asks_for_nothing(
    pins: PinsMachine, woken: list[int]
) -> None:
    pins.told(RED, "here")
    pins.end()
    assert pins.may_offer("q", "q", "red") and pins.claim("q", "q", "red")
    assert not pins.may_offer("q", "q", "blue") and not pins.claim("q", "q", "blue")
    assert not woken
