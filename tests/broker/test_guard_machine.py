"""What an address may cost before anybody there is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.broker.session._guard_machine import DELAY_S_MAX, DELAY_S_MIN, FAILURES_MAX, FORGET_S, Guard, address_of
from meshq.errors import InvariantError

MANY = limits.UNAUTHENTICATED_PER_ADDRESS_MAX


def visit(guard: Guard, address: str, now: float) -> float:
    """Come and go."""
    assert guard.arrived(address)
    guard.settled(address)
    return guard.delay(address, now)


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


def test_so_many_unknown_connections_of_an_address_are_served_and_no_more() -> None:
    guard = Guard()
    assert all(guard.arrived("a") for _ in range(MANY))
    assert not guard.arrived("a")
    assert guard.arrived("b")
    # The one that was turned away goes, and one that has shown who it is.
    guard.settled("a")
    assert not guard.arrived("a")
    guard.settled("a")
    guard.settled("a")
    assert guard.arrived("a")


def test_each_failure_doubles_the_delay_up_to_a_maximum() -> None:
    guard, waits = Guard(), []
    for _ in range(FAILURES_MAX + 2):
        guard.failed("a", 100.0)
        waits.append(visit(guard, "a", 100.0))
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 8.0, 8.0]
    assert (waits[0], waits[-1]) == (DELAY_S_MIN, DELAY_S_MAX)
    assert visit(guard, "b", 100.0) == 0.0


def test_failures_are_forgotten_one_by_one_and_in_the_end_all() -> None:
    guard = Guard()
    for _ in range(3):
        guard.failed("a", 0.0)
    assert visit(guard, "a", FORGET_S - 0.1) == 1.0
    assert visit(guard, "a", FORGET_S) == 0.5
    guard.failed("a", FORGET_S)
    assert visit(guard, "a", FORGET_S) == 1.0
    assert visit(guard, "a", FORGET_S * 4) == 0.0
    assert repr(guard) == "<Guard unknown=0 failed=0>"


def test_a_success_does_not_clear_the_way_for_guesses() -> None:
    guard = Guard()
    guard.failed("a", 0.0)
    visit(guard, "a", 0.0)
    assert visit(guard, "a", 0.0) == DELAY_S_MIN


def test_the_table_of_failures_is_bounded_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "GUARDED_ADDRESSES_MAX", 3)
    guard = Guard()
    for address in ("a", "b", "c", "a", "d"):
        guard.failed(address, 0.0)
    assert {address: visit(guard, address, 0.0) for address in "abcd"} == {"a": 0.5, "b": 0.0, "c": 0.25, "d": 0.25}


def test_what_has_not_come_cannot_go() -> None:
    with pytest.raises(InvariantError):
        Guard().settled("a")


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 2)), max_size=200))
def test_nothing_is_kept_of_who_is_gone_and_has_not_failed(steps: list[tuple[str, int]]) -> None:
    guard = Guard()
    here = dict.fromkeys("abc", 0)
    for now, (address, kind) in enumerate(steps):
        if kind == 0 and here[address]:
            guard.settled(address)
            here[address] -= 1
        elif kind == 1:
            here[address] += 1
            assert guard.arrived(address) == (here[address] <= MANY)
            assert 0.0 <= guard.delay(address, float(now)) <= DELAY_S_MAX
        elif kind == 2:
            guard.failed(address, float(now))
    for address, count in here.items():
        for _ in range(count):
            guard.settled(address)
        assert visit(guard, address, 1e9) == 0.0
    assert repr(guard) == "<Guard unknown=0 failed=0>"
