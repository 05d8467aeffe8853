"""What connections leave to the store, of the descriptors that a process may have."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshq import limits
from meshq.broker.connection._connection_bounds_plan import connection_bounds


@pytest.mark.parametrize(
    ("descriptors", "connections", "unauthenticated", "per_address", "per_user", "uploads"),
    [
        (16, 8, 4, 4, 6, 4),
        (256, 192, 96, 24, 144, 32),
        (1_024, 768, 384, 96, 576, 128),
        (4_096, 3_072, 1_536, 256, 2_304, 512),
        (1_048_576, 1_044_480, 4_096, 256, 4_096, 2_048),
    ],
)
def test_the_bounds_of_usual_limits(
    descriptors: int, connections: int, unauthenticated: int, per_address: int, per_user: int, uploads: int
) -> None:
    bounds = connection_bounds(descriptors)
    assert (bounds.connections, bounds.unauthenticated, bounds.per_address) == (
        connections,
        unauthenticated,
        per_address,
    )
    assert (bounds.sessions_per_user, bounds.uploads) == (per_user, uploads)


def test_the_operators_word_on_the_sessions_of_a_user_holds() -> None:
    assert connection_bounds(1_024, 10_000).sessions_per_user == 10_000
    assert connection_bounds(1_024, 1).sessions_per_user == 1


@given(st.integers(2, 2_000_000))
def test_the_store_always_keeps_its_part_and_nobody_takes_everything(descriptors: int) -> None:
    bounds = connection_bounds(descriptors)
    reserved = descriptors - bounds.connections
    assert min(descriptors // 2, limits.DESCRIPTORS_RESERVED_MIN) <= reserved
    assert 1 <= bounds.uploads <= max(reserved // 2, 1)
    assert 1 <= bounds.per_address <= bounds.unauthenticated <= max(bounds.connections // 2, 1)
    assert 1 <= bounds.sessions_per_user <= max(bounds.connections * 3 // 4, 1)
