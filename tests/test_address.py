"""Names of addresses and queues, and the patterns that settings are given by."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from meshq.address import Target, check_name, check_routing, matches, matches_destination, parse_target, specificity
from meshq.errors import SettingsError


@pytest.mark.parametrize("name", ["q", "orders.eu-1", "a:b", "ein Größenmaß", "日本", "x" * 512, "ü" * 256, " "])
def test_a_name_is_any_printable_text_of_at_most_512_bytes(name: str) -> None:
    assert check_name("queue", name) == name


@pytest.mark.parametrize("name", ["", "a::b", "::", "a\n", "\0", "x" * 513, "ü" * 257, "\ud800", b"q", None, 7])
def test_anything_else_is_refused_with_the_setting_and_what_is_allowed(name: object) -> None:
    with pytest.raises(SettingsError, match="1 to 512 bytes of text") as caught:
        check_name("queue", name)
    assert caught.value.setting == "queue"
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("text", "target"), [("a", Target("a", None)), ("a::b", Target("a", "b")), ("a:b::c:", Target("a:b", "c:"))]
)
def test_an_address_may_name_one_of_its_queues(text: str, target: Target) -> None:
    assert parse_target(text) == target


@pytest.mark.parametrize("text", ["", "::", "a::", "::b", "a::b::c", "a:::::b", 7, None])
def test_a_target_with_a_part_that_is_no_name_is_refused(text: object) -> None:
    with pytest.raises(SettingsError):
        parse_target(text)  # type: ignore[arg-type]


def test_a_routing_type_is_one_of_two() -> None:
    assert [check_routing("routing", routing) for routing in ("anycast", "multicast")] == ["anycast", "multicast"]
    for wrong in ("ANYCAST", "", None, 1):
        with pytest.raises(SettingsError, match="'anycast' or 'multicast'"):
            check_routing("routing", wrong)


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("a.b", ["a.b"], ["a", "a.b.c", "a.c", "ab"]),
        ("*", ["a", "*"], ["a.b", "a."]),
        ("a.*.c", ["a.b.c", "a..c"], ["a.c", "a.b.b.c"]),
        ("#", ["a", "a.b", ""], []),
        ("a.#", ["a", "a.b", "a.b.c"], ["b", "ab"]),
        ("#.c", ["c", "a.c", "a.b.c"], ["c.a", "a.cc"]),
        ("a.#.d", ["a.d", "a.b.d", "a.b.c.d", "a.d.d"], ["a", "a.b", "d"]),
        ("#.#", ["a", "a.b"], []),
        ("#.b.#", ["b", "a.b.c", "b.b"], ["a", "a.c"]),
        ("news.europe.#", ["news.europe", "news.europe.sport", "news.europe.sport.ski"], ["news", "news.asia"]),
        ("news.*", ["news.europe"], ["news", "news.europe.sport"]),
        ("news.*.sport", ["news.europe.sport"], ["news.sport", "news.europe", "news.europe.ski.sport"]),
    ],
)
def test_patterns_match_whole_words(pattern: str, fitting: list[str], others: list[str]) -> None:
    assert [name for name in fitting if not matches(pattern, name)] == []
    assert [name for name in others if matches(pattern, name)] == []


@pytest.mark.parametrize(
    ("pattern", "fitting", "others"),
    [
        ("PRICE.>", ["PRICE", "PRICE.STOCK", "PRICE.STOCK.NASDAQ.IBM"], ["PRICES", "TRADE.PRICE", "STOCK"]),
        ("PRICE.STOCK.>", ["PRICE.STOCK", "PRICE.STOCK.IBM", "PRICE.STOCK.NASDAQ.IBM"], ["PRICE", "PRICE.BOND", "X"]),
        (
            "PRICE.STOCK.NASDAQ.*",
            ["PRICE.STOCK.NASDAQ.IBM", "PRICE.STOCK.NASDAQ.ORCL", "PRICE.STOCK.NASDAQ.*"],
            ["PRICE.STOCK.NASDAQ", "PRICE.STOCK.NASDAQ.IBM.A", "PRICE.STOCK.NYSE.IBM"],
        ),
        (
            "PRICE.STOCK.*.IBM",
            ["PRICE.STOCK.NASDAQ.IBM", "PRICE.STOCK.NYSE.IBM", "PRICE.STOCK.#.IBM"],
            ["PRICE.STOCK.IBM", "PRICE.STOCK.NYSE.A.IBM", "PRICE.STOCK.NYSE.ORCL"],
        ),
        (">", ["a", "a.b"], []),
        ("a.#", ["a.#"], ["a", "a.b", "a.b.c"]),
    ],
)
def test_in_a_network_of_brokers_patterns_have_another_wildcard(
    pattern: str, fitting: list[str], others: list[str]
) -> None:
    assert [name for name in fitting if not matches_destination(pattern, name)] == []
    assert [name for name in others if matches_destination(pattern, name)] == []
    # And that one is none in the patterns of address settings.
    assert not matches("a.>", "a.b") and matches("a.>", "a.>")


def slow_match(pattern: list[str], words: list[str]) -> bool:
    """The definition."""
    if not pattern:
        return not words
    if pattern[0] == "#":
        return any(slow_match(pattern[1:], words[start:]) for start in range(len(words) + 1))
    return bool(words) and pattern[0] in ("*", words[0]) and slow_match(pattern[1:], words[1:])


WORDS = st.sampled_from(["a", "b", "c"])


@given(st.lists(st.one_of(WORDS, st.sampled_from(["*", "#"])), min_size=1, max_size=6), st.lists(WORDS, min_size=1))
def test_patterns_match_by_definition(pattern: list[str], words: list[str]) -> None:
    assert matches(".".join(pattern), ".".join(words)) == slow_match(pattern, words)


def test_many_wildcards_cost_no_more_than_words_times_words() -> None:
    assert not matches(".".join(["#", "a"] * 100), ".".join(["a"] * 99 + ["b"]))


def test_a_word_is_more_specific_than_a_star_and_a_star_than_a_hash() -> None:
    ordered = ["#", "#.b", "*.#", "*", "*.b", "a.#", "a", "a.*", "a.b"]
    given = ["a.b", "#", "a", "*.#", "*.b", "a.*", "*", "#.b", "a.#"]
    assert sorted(given, key=specificity) == ordered


PATTERN = st.lists(st.one_of(WORDS, st.sampled_from(["*", "#"])), min_size=1, max_size=5)


@given(PATTERN, st.lists(WORDS, min_size=1))
def test_of_the_patterns_of_a_name_the_name_itself_is_the_most_specific(pattern: list[str], words: list[str]) -> None:
    name, wild = ".".join(words), ".".join(pattern)
    if matches(wild, name):
        assert specificity(wild) <= specificity(name)
