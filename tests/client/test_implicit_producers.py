"""The producers of plain sends: how many are kept, and which one gives way to another."""

from __future__ import annotations

from itertools import count
from typing import Any
from unittest.mock import Mock

from meshq.client.outgoing._outbox import Outbox
from meshq.client.send._implicit_producers import IMPLICIT_PRODUCERS_MAX, ImplicitProducers
from meshq.errors import ClosedError


def producers() -> tuple[ImplicitProducers, list[Outbox]]:
    """The producers of a client, and those of them that were closed."""
    context: Any = Mock()
    tokens = count()
    context.token = lambda: b"%d" % next(tokens)
    context.session.facts.failure = None
    closed: list[Outbox] = []
    context.session.send_queue.close = closed.append
    return ImplicitProducers(context), closed


def test_a_producer_with_messages_under_way_gives_way_to_no_other() -> None:
    made, closed = producers()
    first, second = made.to("first"), made.to("second")
    first.unsettled = 1
    for number in range(3 * IMPLICIT_PRODUCERS_MAX):
        made.to(f"other.{number}")
    assert made.to("first") is first
    assert closed[0] is second and first not in closed
    # No more are open than are kept.
    assert len(closed) == 2 + 2 * IMPLICIT_PRODUCERS_MAX


def test_more_are_kept_while_messages_are_under_way_to_all_of_them_and_no_longer() -> None:
    made, closed = producers()
    busy = []
    for number in range(2 * IMPLICIT_PRODUCERS_MAX):
        busy.append(made.to(f"more.{number}"))
        busy[-1].unsettled = 1
    assert [made.to(one.address) for one in busy] == busy and not set(closed) & set(busy)
    for one in busy:
        one.unsettled = 0
    for number in range(2):
        made.to(f"last.{number}")
    assert len(set(busy) - set(closed)) == IMPLICIT_PRODUCERS_MAX - 2


def test_a_closed_producer_that_fails_leaves_the_newer_one_of_its_address() -> None:
    made, closed = producers()
    old = made.to("a")
    for number in range(IMPLICIT_PRODUCERS_MAX):
        made.to(f"other.{number}")
    new = made.to("a")
    assert old in closed and new is not old
    old.events.producer_failed(ClosedError("gone"))
    assert made.to("a") is new
    new.events.producer_failed(ClosedError("gone"))
    assert made.to("a") is not new


def test_a_producer_that_has_nothing_under_way_takes_a_new_window() -> None:
    made, closed = producers()
    assert made.set_window("a", 5) == 5
    old = made.to("a")
    assert (old.window, made.set_window("a", 50), closed) == (5, 50, [old])
    assert made.to("a").window == 50


def test_while_messages_are_under_way_the_window_that_the_target_was_told_is_not_exceeded() -> None:
    made, closed = producers()
    made.set_window("a", 5)
    made.to("a").unsettled = 1
    assert made.set_window("a", 50) == made.windows["a"] == made.to("a").window == 5
    assert made.set_window("a", 3) == 3
    assert closed == []
