"""How far messages go, and at which priority."""

from __future__ import annotations

import pytest

from meshq import limits
from meshq.broker.catalog._network_demand_plan import forward_filter
from meshq.network._routing_plan import consumer_priority
from meshq.selector import parse_filter
from tests.selector.views import Plain, message

HERE, THERE, ELSEWHERE = "a" * 32, "b" * 32, "c" * 32


def seen(path: str | None, **properties: object) -> Plain:
    """A message that has this path."""
    hops = 0 if path is None else path.count("\n") + 1
    return message({"path": path, "hops": hops}, **properties)


def test_the_priority_begins_at_minus_five_and_falls_by_one_a_hop() -> None:
    assert [consumer_priority(hops, decrease=True) for hops in (1, 2, 3, 16)] == [-5, -6, -7, -20]
    assert [consumer_priority(hops, decrease=False) for hops in (1, 2, 3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("ttl", "path", "goes"),
    [
        (1, None, True),
        (1, f"{HERE} a", False),
        (2, f"{HERE} a", True),
        (2, f"{HERE} a\n{ELSEWHERE} c", False),
        (3, f"{HERE} a\n{ELSEWHERE} c", True),
        (3, f"{THERE} b", False),
        (9, f"{HERE} a\n{THERE} b\n{ELSEWHERE} c", False),
    ],
)
def test_a_message_goes_as_many_hops_as_it_may_and_nowhere_twice(ttl: int, path: str | None, goes: bool) -> None:
    assert parse_filter(forward_filter(THERE, ttl)).matches(seen(path)) is goes


def test_the_filter_of_demand_holds_beside_the_path() -> None:
    one = parse_filter(forward_filter(THERE, 2, "region = 'us' OR region = 'ca'"))
    assert one.matches(seen(None, region="us"))
    assert one.matches(seen(f"{HERE} a", region="ca"))
    assert not one.matches(seen(None, region="emea"))
    assert not one.matches(seen(f"{THERE} b", region="ca"))


def test_a_filter_that_is_too_long_beside_the_path_is_left_out() -> None:
    long = "x = '" + "y" * (limits.FILTER_BYTES_MAX - 6) + "'"
    assert parse_filter(long)
    assert parse_filter(forward_filter(THERE, 2, long)).matches(seen(None))
