"""Which messages go back, decided for one message and one way."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from meshq import limits
from meshq.broker.network import _replay
from meshq.broker.network._replay_plan import OTHERS_MAX, ReplayFilter, is_open, onward_of, others_of
from meshq.broker.queue._consumer_roster import ConsumerRoster
from meshq.broker.queue._consumer_state import WantedBehind
from meshq.selector import Filter, parse_filter
from meshq.wire import BrokerPath, PathStep
from tests.selector.views import message

HERE = "here"


def been(path: str, left: str = "", returns: int = 0) -> BrokerPath:
    """A message that has come over these brokers, each with one letter."""
    return BrokerPath(tuple(PathStep(one, "") for one in path), tuple(left), returns)


@pytest.mark.parametrize(
    ("path", "way", "hops", "there"),
    [
        # Back to the last, to the first, and to the first over the last.
        ("ab", "b", 2, True),
        ("ab", "a", 2, True),
        ("ab", "ab", 2, True),
        # The way back needs no hop, the way on from there does.
        ("a", "a", 1, True),
        ("a", "ca", 1, True),
        ("a", "dca", 1, False),
        ("abc", "dcb", 3, True),
        # Over one that has not had it to one that has.
        ("a", "ad", 2, True),
        ("a", "ad", 1, False),
        # Where nobody has had it nothing is taken back.
        ("a", "dc", 3, True),
        ("a", "dc", 2, False),
    ],
)
def test_a_way_is_open_as_far_as_what_is_left_of_the_path_allows(path: str, way: str, hops: int, there: bool) -> None:
    assert is_open(been(path), HERE, way, hops) is there


def test_a_message_goes_back_only_so_often() -> None:
    most = limits.NETWORK_RETURNS_MAX
    assert is_open(been("ab", returns=most - 2), HERE, "ab", 2)
    assert not is_open(been("ab", returns=most - 1), HERE, "ab", 2)
    assert is_open(been("ab", returns=most), HERE, "c", 3)


def replay(others: Sequence[str] = (), wanted: str = "TRUE", ways: Sequence[str] = ("a",)) -> ReplayFilter:
    onward = parse_filter("AMQBrokerPath IS NULL")
    asked = [tuple(way) for way in ways]
    filters = [parse_filter(one) for one in others]
    return ReplayFilter(onward, node_id=HERE, ways=asked, hops=2, wanted=parse_filter(wanted), others=filters)


def matches(filter: Filter, path: str, **properties: Any) -> bool:
    about = {"been": been(path), "path": path or None}
    return filter.matches(message(about, **properties))


@pytest.mark.parametrize(
    ("filter", "path", "goes"),
    [
        (replay(), "a", True),
        (replay(), "", True),
        (replay(ways=()), "a", False),
        (replay(["x = 1"]), "a", False),
        (replay(["x = 2", "y = 1"]), "a", True),
        # What is unknown here is not accepted here.
        (replay(["y > 1"]), "a", True),
        (replay(wanted="x = 1"), "a", True),
        (replay(wanted="x = 2"), "a", False),
        (replay(wanted="y = 1"), "a", False),
    ],
)
def test_what_nobody_here_accepts_and_somebody_there_wants_goes_back(filter: Filter, path: str, goes: bool) -> None:
    assert matches(filter, path, x=1) is goes


def test_a_filter_of_what_goes_back_is_another_one_with_other_consumers_here() -> None:
    assert replay(["x = 1"]) == replay(["x = 1"]) and hash(replay(["x = 1"])) == hash(replay(["x = 1"]))
    for other in (replay(["x = 2"]), replay(), replay(ways=["b"]), replay(["x = 1"], wanted="x = 1")):
        assert other != replay(["x = 1"])
    # For other nodes it is the one of what goes on.
    assert replay().text == "AMQBrokerPath IS NULL" and replay() != parse_filter(replay().text)
    assert parse_filter(replay().text) != replay() and replay() != 7


def roster(*filters: Filter | None) -> ConsumerRoster:
    """A roster of consumers with these filters, none of which is served."""
    made = ConsumerRoster(*(cast("Any", SimpleNamespace()) for _ in range(4)))
    for one in filters:
        made._count_filter(one, 1)
    return made


def test_who_accepts_everything_keeps_everything() -> None:
    one, two = replay(), parse_filter("x = 1")
    assert others_of(onward_of(one) or one, roster(one, two, two).filters_by_text) == [two]
    assert others_of(two, roster(one, two).filters_by_text) == [onward_of(one)]
    assert others_of(two, roster(two, two).filters_by_text) == [two]
    assert others_of(one, roster(one, None).filters_by_text) is None
    many = [parse_filter(f"x = {number}") for number in range(OTHERS_MAX + 1)]
    assert others_of(one, roster(one, *many).filters_by_text) is None
    assert others_of(many[0], roster(*many).filters_by_text) == many[1:]


def test_only_another_set_of_filters_makes_the_filters_of_what_goes_back_anew() -> None:
    made = roster(parse_filter("x = 1"), None)
    versions = [made.filters_version]
    for change in (1, 1, -1, -1):
        made._count_filter(parse_filter("x = 1"), change)
        versions.append(made.filters_version)
    # With a second one, which may be another link; and without it.
    assert [after - before for before, after in pairwise(versions)] == [1, 0, 0, 1]
    made._count_filter(parse_filter("x = 1"), -1)
    assert [*made.filters_by_text] == [None] and made.filters_version == versions[-1] + 1


def test_each_kind_of_filter_has_all_fields() -> None:
    made = {type(one): one for one in (parse_filter("x = 1"), replay())}
    kinds, found = [Filter], list[type[Filter]]()
    while kinds:
        found.append(kinds.pop())
        kinds += found[-1].__subclasses__()
    for kind in found:
        for base in kind.__mro__[:-1]:
            assert all(hasattr(made[kind], name) for name in base.__dict__["__slots__"])


def test_consumers_that_come_and_go_ask_only_where_something_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = roster(parse_filter("x = 1"), replay()), list[Any]()

    class Link:
        filter, routes, wanted, served = replay(), ("a" * 32,), WantedBehind("", 2, "TRUE"), False

    link: Any = Link()
    made.replaying[link] = None
    queue: Any = SimpleNamespace(roster=made)
    monkeypatch.setattr(_replay, "parse_filter", lambda text: asked.append(text) or parse_filter(text))
    follow = _replay.Replay(HERE, lambda queue: None).follow
    for text, count in (("x = 1", 1), ("x = 1", 1), ("x = 1", 1), ("x = 2", 2)):
        made._count_filter(parse_filter(text), 1)
        follow(queue)
        follow(queue)
        assert asked == ["TRUE"] * count
