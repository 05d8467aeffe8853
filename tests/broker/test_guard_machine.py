"""What an address may cost before anybody there is known."""

from __future__ import annotations

import attrs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.broker.connection._connection_bounds_plan import ConnectionBounds
from meshq.broker.connection._connection_guard_machine import (
    DELAY_S_MAX,
    DELAY_S_MIN,
    FAILURES_MAX,
    FORGET_S,
    Arrival,
    ConnectionGuard,
    address_of,
)
from meshq.errors import InvariantError

MANY = 16
#: Enough for everything that isn't about bounds.
BOUNDS = ConnectionBounds(connections=1_000, unauthenticated=500, per_address=MANY, sessions_per_user=1_000, uploads=1)


def visit(guard: ConnectionGuard, address: str, now: float) -> float:
    """Come and go."""
    assert not guard.arrived(address, 0).refused
    guard.settled(address, 0)
    guard.gone()
    return guard.delay(address, now)


def bounded(*, connections: int = 1_000, unauthenticated: int = 500, per_address: int = MANY) -> ConnectionGuard:
    """A guard with bounds of its own."""
    bounds = attrs.evolve(BOUNDS, connections=connections, unauthenticated=unauthenticated, per_address=per_address)
    return ConnectionGuard(bounds)


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("127.0.0.1:50000", "127.0.0.1"),
        ("127.0.0.1:50001", "127.0.0.1"),
        ("[::1]:50000", "::/64"),
        ("[2001:db8:1:2:3:4:5:6]:1", "2001:db8:1:2::/64"),
        ("[2001:db8:1:2::]:9", "2001:db8:1:2::/64"),
        ("[fe80::1%eth0]:9", "fe80::/64"),
        ("[::ffff:127.1.2.3]:9", "127.1.2.3"),
        ("client:7", "client"),
    ],
)
def test_an_address_is_what_one_host_cannot_change(peer: str, address: str) -> None:
    assert address_of(peer) == address


def come(guard: ConnectionGuard, addresses: str, first: int = 0, **options: bool) -> list[Arrival]:
    """A connection of each of these addresses comes, with rising numbers."""
    return [guard.arrived(address, first + number, **options) for number, address in enumerate(addresses)]


def test_so_many_unknown_connections_of_an_address_are_served_and_no_more() -> None:
    guard = bounded()
    assert come(guard, "a" * MANY) == [Arrival("")] * MANY
    # Whoever is turned away counts for nothing.
    refused = Arrival(f"{MANY} connections of this address have no session yet")
    assert come(guard, "aaa", 100) == [refused] * 3
    assert come(guard, "b", 200) == [Arrival("")]
    guard.settled("a", 0)
    guard.settled("a", 0)
    assert come(guard, "aa", 300) == [Arrival(""), refused]


def test_who_need_not_say_who_they_are_share_an_address_without_a_bound_of_its_own() -> None:
    guard = bounded(unauthenticated=MANY + 5)
    assert come(guard, "a" * (MANY + 5), trusted=True) == [Arrival("")] * (MANY + 5)
    assert (
        come(guard, "a", 100, trusted=True)[0].refused == f"the node has its {MANY + 5} connections without a session"
    )


def test_the_connections_without_a_session_are_bounded_over_all_addresses() -> None:
    guard = bounded(unauthenticated=3)
    assert come(guard, "abc") == [Arrival("")] * 3
    assert come(guard, "d", 3) == [Arrival("the node has its 3 connections without a session")]
    guard.settled("b", 1)
    assert come(guard, "d", 4) == [Arrival("")]
    assert guard.unauthenticated == 3


def test_all_connections_are_bounded_those_with_a_session_too() -> None:
    guard = bounded(connections=2)
    come(guard, "ab")
    guard.settled("a", 0)
    guard.settled("b", 1)
    assert come(guard, "c", 2) == [Arrival("the node has its 2 connections")]
    guard.gone()
    assert come(guard, "c", 3) == [Arrival("")]


@pytest.mark.parametrize("bound", ["connections", "unauthenticated"])
def test_who_sits_on_all_the_room_makes_room_for_others_the_oldest_first(bound: str) -> None:
    guard = bounded(**{bound: 6})
    come(guard, "aabbbb")
    assert come(guard, "cc", 10) == [Arrival("", displaced=2), Arrival("", displaced=3)]
    # Now everybody has two, and nobody has to go for a third one; what was displaced goes in silence.
    assert come(guard, "c", 20)[0].refused and come(guard, "d", 21)[0].refused == ""
    guard.settled("b", 2)
    assert guard.unauthenticated == 6


def test_a_connection_that_has_a_session_is_never_displaced() -> None:
    guard = bounded(connections=4)
    come(guard, "aaaa")
    for number in range(4):
        guard.settled("a", number)
    assert come(guard, "b", 10) == [Arrival("the node has its 4 connections")]


def test_each_failure_doubles_the_delay_up_to_a_maximum() -> None:
    guard, waits = bounded(), []
    for _ in range(FAILURES_MAX + 2):
        guard.failed("a", 100.0)
        waits.append(visit(guard, "a", 100.0))
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert (waits[0], waits[-1]) == (DELAY_S_MIN, DELAY_S_MAX)
    assert visit(guard, "b", 100.0) == 0.0


def test_failures_are_forgotten_one_by_one_and_in_the_end_all() -> None:
    guard = ConnectionGuard()
    for _ in range(3):
        guard.failed("a", 0.0)
    assert visit(guard, "a", FORGET_S - 0.1) == 1.0
    assert visit(guard, "a", FORGET_S) == 0.5
    guard.failed("a", FORGET_S)
    assert visit(guard, "a", FORGET_S) == 1.0
    assert visit(guard, "a", FORGET_S * 4) == 0.0
    assert repr(guard) == "<Guard connections=0 unknown=0 failed=0>"


def test_a_success_does_not_clear_the_way_for_guesses() -> None:
    guard = ConnectionGuard()
    guard.failed("a", 0.0)
    visit(guard, "a", 0.0)
    assert visit(guard, "a", 0.0) == DELAY_S_MIN


def test_the_table_of_failures_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GUARDED_ADDRESSES_MAX", 3)
    guard = ConnectionGuard()
    for address in ("a", "b", "c", "a", "d"):
        guard.failed(address, 0.0)
    assert {address: visit(guard, address, 0.0) for address in "abcd"} == {"a": 0.5, "b": 0.0, "c": 0.25, "d": 0.25}


def test_what_has_not_come_cannot_go() -> None:
    guard = ConnectionGuard()
    with pytest.raises(InvariantError):
        guard.gone()
    guard.arrived("a", 1)
    with pytest.raises(InvariantError):
        guard.gone()


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 3)), max_size=200))
def test_nothing_is_kept_of_who_is_gone_and_has_not_failed(steps: list[tuple[str, int]]) -> None:
    guard = bounded(unauthenticated=5, connections=8, per_address=4)
    # The address of each connection; and those of them that have no session.
    here: dict[int, str] = {}
    unknown: dict[int, str] = {}
    for now, (address, kind) in enumerate(steps):
        mine = [number for number, other in unknown.items() if other == address]
        if kind == 0 and here:
            number = next(iter(here))
            guard.settled(here.pop(number), number)
            unknown.pop(number, None)
            guard.gone()
        elif kind == 1:
            refused, displaced = guard.arrived(address, now)
            if displaced is not None:
                assert not refused and len(mine) + 1 < list(unknown.values()).count(unknown.pop(displaced))
            if not refused:
                here[now] = unknown[now] = address
            assert len(unknown) <= 5 and list(unknown.values()).count(address) <= 4
            assert 0.0 <= guard.delay(address, float(now)) <= DELAY_S_MAX
        elif kind == 2 and mine:
            guard.settled(address, mine[-1])
            del unknown[mine[-1]]
        elif kind == 3:
            guard.failed(address, float(now))
        assert (guard.connections, guard.unauthenticated) == (len(here), len(unknown))
    for number, address in here.items():
        guard.settled(address, number)
        guard.gone()
    for address in "abc":
        assert visit(guard, address, 1e9) == 0.0
    assert repr(guard) == "<Guard connections=0 unknown=0 failed=0>"
