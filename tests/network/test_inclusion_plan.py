"""Which destinations pass a connector."""

from __future__ import annotations

import pytest

from meshq import Queues, SettingsError, Topics
from meshq.network._inclusion_plan import InclusionPlan

NONE = InclusionPlan()


@pytest.mark.parametrize("name", ["TRADE", "TRADE.STOCK.X", "a b", "PRICE.>x"[:5]])
@pytest.mark.parametrize("routing", ["anycast", "multicast"])
def test_without_any_setting_every_destination_passes(routing: str, name: str) -> None:
    assert NONE.passes(routing, name)
    assert NONE.static == ()


@pytest.mark.parametrize(
    ("pattern", "fit", "unfit"),
    [
        ("PRICE.>", ["PRICE", "PRICE.STOCK", "PRICE.STOCK.NASDAQ.IBM"], ["PRICES", "A.PRICE", "price.x"]),
        ("PRICE.STOCK.>", ["PRICE.STOCK", "PRICE.STOCK.X", "PRICE.STOCK.X.Y"], ["PRICE", "PRICE.X", "PRICE.STOCKS"]),
        (
            "PRICE.STOCK.NASDAQ.*",
            ["PRICE.STOCK.NASDAQ.IBM", "PRICE.STOCK.NASDAQ.A", "PRICE.STOCK.NASDAQ.*x"[:22]],
            ["PRICE.STOCK.NASDAQ", "PRICE.STOCK.NASDAQ.A.B", "PRICE.STOCK.NYSE.IBM"],
        ),
        (
            "PRICE.STOCK.*.IBM",
            ["PRICE.STOCK.NYSE.IBM", "PRICE.STOCK.NASDAQ.IBM", "PRICE.STOCK.X.IBM"],
            ["PRICE.STOCK.IBM", "PRICE.STOCK.A.B.IBM", "PRICE.STOCK.NYSE.SUN"],
        ),
        # A number sign is a character like any other.
        ("A.#", ["A.#"], ["A", "A.B", "A.B.C"]),
    ],
)
def test_wildcards_are_one_word_or_any_number_of_words(pattern: str, fit: list[str], unfit: list[str]) -> None:
    plan = InclusionPlan(dynamically_included=[Queues(pattern)])
    assert [name for name in fit if not plan.passes("anycast", name)] == []
    assert [name for name in unfit if plan.passes("anycast", name)] == []


def test_only_what_is_included_passes_and_a_queue_is_no_topic() -> None:
    plan = InclusionPlan(dynamically_included=[Queues("TRADE.STOCK.>"), Topics("PRICE.STOCK.>")])
    assert plan.passes("anycast", "TRADE.STOCK.X")
    assert plan.passes("multicast", "PRICE.STOCK.X")
    assert not plan.passes("multicast", "TRADE.STOCK.X")
    assert not plan.passes("anycast", "PRICE.STOCK.X")
    assert not plan.passes("anycast", "ORDERS")


def test_what_is_excluded_never_passes_and_the_rest_does() -> None:
    plan = InclusionPlan(excluded=[Queues("TRADE.STOCK.NYSE.*"), Topics("PRICE.STOCK.NYSE.*")])
    assert not plan.passes("anycast", "TRADE.STOCK.NYSE.IBM")
    assert plan.passes("anycast", "TRADE.STOCK.NASDAQ.IBM")
    assert plan.passes("anycast", "ORDERS")
    assert not plan.passes("multicast", "PRICE.STOCK.NYSE.IBM")
    assert plan.passes("multicast", "TRADE.STOCK.NYSE.IBM")


def test_exclusion_beats_static_inclusion_which_beats_dynamic_inclusion() -> None:
    plan = InclusionPlan(
        dynamically_included=[Queues("TRADE.STOCK.>")],
        excluded=[Queues("TRADE.STOCK.NYSE.*")],
        statically_included=[Queues("TRADE.STOCK.NYSE.IBM"), Queues("ORDERS"), Queues("ORDERS")],
    )
    assert plan.passes("anycast", "TRADE.STOCK.NASDAQ.IBM")
    assert not plan.passes("anycast", "TRADE.STOCK.NYSE.IBM")
    assert plan.passes("anycast", "ORDERS")
    assert plan.static == (Queues("ORDERS"),)


@pytest.mark.parametrize("pattern", ["", "A..B", ".A", "A.", "A*", "A.>B", "a::b", "$meshq.x", "a\nb", "a" * 513])
def test_a_pattern_that_is_none_is_refused_by_name(pattern: str) -> None:
    with pytest.raises(SettingsError, match="pattern="):
        Queues(pattern)


def test_a_pattern_of_another_type_is_refused() -> None:
    with pytest.raises(SettingsError, match="pattern=7"):
        Topics(7)  # type: ignore[arg-type]


def test_equal_destinations_are_equal_and_kinds_differ() -> None:
    assert Queues("A") == Queues("A")
    assert Queues("A") != Topics("A")
    assert Queues("A.b").is_name
    assert not Queues("A.*").is_name
    assert not Queues(">").is_name
