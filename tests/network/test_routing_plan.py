"""How far messages go, and at which priority."""

from __future__ import annotations

import pytest

from meshq import FilterError, limits
from meshq.broker.catalog._network_demand_plan import forward_filter
from meshq.network._routing_plan import consumer_priority
from meshq.selector import parse_filter
from tests.selector.views import Plain, message

HERE, THERE, ELSEWHERE, MIDDLE, LAST = (letter * 32 for letter in "abcde")


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
    assert forward_filter([THERE], ttl).matches(seen(path)) is goes


def test_the_filter_of_demand_holds_beside_the_path() -> None:
    one = forward_filter([THERE], 2, "region = 'us' OR region = 'ca'")
    assert one.matches(seen(None, region="us"))
    assert one.matches(seen(f"{HERE} a", region="ca"))
    assert not one.matches(seen(None, region="emea"))
    assert not one.matches(seen(f"{THERE} b", region="ca"))


def test_a_filter_that_is_too_long_beside_the_path_is_left_out() -> None:
    long = "x = '" + "y" * (limits.FILTER_BYTES_MAX - 6) + "'"
    assert parse_filter(long)
    assert forward_filter([THERE], 2, long).matches(seen(None))


@pytest.mark.parametrize("deep", ["(" * 32 + "a = 1" + ")" * 32, " OR ".join(f"a = {number}" for number in range(128))])
def test_a_filter_that_is_too_deep_or_has_too_many_terms_beside_the_path_is_left_out(deep: str) -> None:
    assert parse_filter(deep)
    one = forward_filter([THERE], 2, deep)
    assert one.matches(seen(None))
    assert not one.matches(seen(f"{THERE} b"))


def test_what_is_no_filter_is_refused() -> None:
    with pytest.raises(FilterError):
        forward_filter([THERE], 2, "a = = 1")


@pytest.mark.parametrize(
    ("routes", "path", "goes"),
    [
        # One way to the only consumer, of three links.
        ([f"{LAST}/{MIDDLE}/{THERE}"], None, True),
        ([f"{LAST}/{MIDDLE}/{THERE}"], [HERE], False),
        ([f"{MIDDLE}/{THERE}"], [HERE], True),
        ([f"{MIDDLE}/{THERE}"], [HERE, ELSEWHERE], False),
        ([f"{MIDDLE}/{THERE}"], [MIDDLE], False),
        # One of two ways is enough.
        ([f"{MIDDLE}/{THERE}", f"{LAST}/{THERE}"], [MIDDLE], True),
        ([f"{MIDDLE}/{THERE}", f"{LAST}/{THERE}"], [MIDDLE, LAST], False),
        ([f"{MIDDLE}/{THERE}", THERE], [MIDDLE, HERE], True),
        ([f"{LAST}/{MIDDLE}/{THERE}", f"{MIDDLE}/{THERE}"], [LAST], True),
        # Longer than a message may go.
        ([f"{ELSEWHERE}/{LAST}/{MIDDLE}/{THERE}"], [HERE], False),
        # Of the ways that are not known one may be open.
        ([f"{MIDDLE}/{THERE}", "+"], [MIDDLE], True),
        ([f"{MIDDLE}/{THERE}", "+"], [THERE], False),
    ],
)
def test_a_message_goes_only_where_it_can_come_to_a_consumer(
    routes: list[str], path: list[str] | None, goes: bool
) -> None:
    one = forward_filter(routes, 3)
    assert one.matches(seen("\n".join(path) if path else None)) is goes


def test_routes_whose_condition_is_too_long_are_asked_of_the_next_broker_only() -> None:
    ways = ["/".join([*(f"{way * 8 + number:032x}" for number in range(8)), THERE]) for way in range(7)]
    one = forward_filter(ways, 16)
    assert one.matches(seen("\n".join(way[:32] for way in ways)))
    assert not one.matches(seen(THERE))
