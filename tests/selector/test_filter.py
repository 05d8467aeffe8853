"""What a filter says of a message: every operator, with values, with other types, and with nothing."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from meshq.selector import parse_filter
from tests.selector.views import message, verdict

TRUE, FALSE, UNKNOWN = True, False, None
#: Conditions that are true, false and unknown of any message without properties.
OF = {TRUE: "1 = 1", FALSE: "1 = 2", UNKNOWN: "missing = 1"}


@pytest.mark.parametrize(("one", "other"), list(itertools.product(OF, OF)))
def test_and_or_and_not_have_three_values(one: bool | None, other: bool | None) -> None:
    both = FALSE if FALSE in (one, other) else UNKNOWN if UNKNOWN in (one, other) else TRUE
    either = TRUE if TRUE in (one, other) else UNKNOWN if UNKNOWN in (one, other) else FALSE
    assert verdict(f"{OF[one]} AND {OF[other]}") is both
    assert verdict(f"{OF[one]} OR {OF[other]}") is either
    assert verdict(f"NOT {OF[one]}") is (UNKNOWN if one is UNKNOWN else not one)
    assert verdict(f"({OF[one]}) IS NULL") is (one is UNKNOWN)


@pytest.mark.parametrize(
    ("text", "properties", "expected"),
    [
        # comparisons
        ("a = 1", {"a": 1}, TRUE),
        ("a = 1", {"a": 1.0}, TRUE),
        ("a <> 1", {"a": 1.5}, TRUE),
        ("a <> 1", {"a": 1}, FALSE),
        ("a < 2", {"a": 1}, TRUE),
        ("a <= 2", {"a": 2.0}, TRUE),
        ("a > 2", {"a": 2}, FALSE),
        ("a >= 2", {"a": 2}, TRUE),
        ("2 < a", {"a": 3}, TRUE),
        ("a = b", {"a": "x", "b": "x"}, TRUE),
        ("a < 'b'", {"a": "a"}, TRUE),
        ("a >= 'b'", {"a": "a"}, FALSE),
        ("a = 9007199254740993", {"a": 9007199254740992.0}, FALSE),
        ("a = 'it''s'", {"a": "it's"}, TRUE),
        ("a = ''", {"a": ""}, TRUE),
        ("a = TRUE", {"a": True}, TRUE),
        ("a <> TRUE", {"a": False}, TRUE),
        ("a = FALSE", {"a": False}, TRUE),
        ("a = (b > 1)", {"a": True, "b": 2}, TRUE),
        ("TRUE", {}, TRUE),
        ("FALSE", {}, FALSE),
        ("a", {"a": True}, TRUE),
        ("NOT a", {"a": True}, FALSE),
        # no value is turned into another type
        ("a = 1", {"a": "1"}, UNKNOWN),
        ("a <> 1", {"a": "1"}, UNKNOWN),
        ("NOT a = 1", {"a": "1"}, UNKNOWN),
        ("a < 1", {"a": "1"}, UNKNOWN),
        ("a < 'b'", {"a": 1}, UNKNOWN),
        ("a = 1", {"a": True}, UNKNOWN),
        ("a < 1", {"a": False}, UNKNOWN),
        ("a = TRUE", {"a": 1}, UNKNOWN),
        ("a < b", {"a": False, "b": True}, UNKNOWN),
        ("a", {"a": 1}, UNKNOWN),
        ("a", {"a": "TRUE"}, UNKNOWN),
        ("a = 'x'", {"a": b"x"}, UNKNOWN),
        # bytes are there, equal to equal bytes, and nothing else
        ("a IS NOT NULL", {"a": b""}, TRUE),
        ("a = b", {"a": b"x", "b": b"x"}, TRUE),
        ("a <> b", {"a": b"x", "b": b"y"}, TRUE),
        ("a < b", {"a": b"x", "b": b"y"}, UNKNOWN),
        ("a LIKE 'x'", {"a": b"x"}, UNKNOWN),
        # what is missing, and what is None, is unknown
        *(
            (text, properties, UNKNOWN)
            for text in (
                "a = 1", "a <> 1", "a < 1", "a <= 1", "a > 1", "a >= 1", "1 = a", "a = a", "a + 1 = 2", "-a = 1",
                "+a = 1", "a * 0 = 0", "a / 1 = 1", "1 - a = 1", "a BETWEEN 1 AND 2", "2 BETWEEN 1 AND a",
                "2 BETWEEN a AND 3", "a IN (1, 2)", "a NOT IN (1, 2)", "a LIKE '%'", "a NOT LIKE '%'", "a", "NOT a",
                "a = TRUE", "a <> 'x'", "a NOT BETWEEN 1 AND 2",
            )
            for properties in ({}, {"a": None})
        ),
        ("a IS NULL", {}, TRUE),
        ("a IS NULL", {"a": None}, TRUE),
        ("a IS NOT NULL", {}, FALSE),
        ("a IS NULL", {"a": 0}, FALSE),
        ("a IS NOT NULL", {"a": False}, TRUE),
        ("3 BETWEEN a AND 2", {}, FALSE),
        # arithmetic
        ("a + 2 * 3 = 7", {"a": 1}, TRUE),
        ("(a + 2) * 3 = 9", {"a": 1}, TRUE),
        ("10 - 3 - 2 = 5", {}, TRUE),
        ("100 / 10 / 5 = 2", {}, TRUE),
        ("-a = 1", {"a": -1}, TRUE),
        ("- - a = -1", {"a": -1}, TRUE),
        ("+a = -1", {"a": -1}, TRUE),
        ("7 / 2 = 3", {}, TRUE),
        ("a / 2 = -3", {"a": -7}, TRUE),
        ("7 / 2.0 = 3.5", {}, TRUE),
        ("a + 0.5 = 1.5", {"a": 1}, TRUE),
        ("a + 1 = 1", {"a": "0"}, UNKNOWN),
        ("a + 1 = 2", {"a": True}, UNKNOWN),
        ("-a = 1", {"a": True}, UNKNOWN),
        ("+a = 1", {"a": "1"}, UNKNOWN),
        ("a / 0 = 0", {"a": 1}, UNKNOWN),
        ("a / 0.0 = 0", {"a": 1}, UNKNOWN),
        ("1 / a = 0", {"a": 0}, UNKNOWN),
        ("a / 0 IS NULL", {"a": 1}, TRUE),
        ("a + 1 > 0", {"a": 2**64 - 1}, UNKNOWN),
        ("a - 1 < 0", {"a": -(2**63)}, UNKNOWN),
        ("-a < 0", {"a": 2**64 - 1}, UNKNOWN),
        ("a * 10 > 0", {"a": 1e308}, UNKNOWN),
        ("a - a = 0", {"a": float("inf")}, UNKNOWN),
        ("a > 1e300", {"a": float("inf")}, TRUE),
        # between, in
        ("a BETWEEN 1 AND 3", {"a": 3}, TRUE),
        ("a BETWEEN 1 AND 3", {"a": 0.5}, FALSE),
        ("a NOT BETWEEN 1 AND 3", {"a": 4}, TRUE),
        ("a BETWEEN 'a' AND 'c'", {"a": "b"}, TRUE),
        ("a BETWEEN b AND b + 1", {"a": 2, "b": 1}, TRUE),
        ("a BETWEEN 1 AND 3 AND b = 1", {"a": 2, "b": 1}, TRUE),
        ("a IN ('x', 'y')", {"a": "y"}, TRUE),
        ("a IN ('x', 'y')", {"a": "z"}, FALSE),
        ("a NOT IN ('x', 'y')", {"a": "z"}, TRUE),
        ("a IN (1, -2, 3.5)", {"a": -2.0}, TRUE),
        ("a IN (1)", {"a": True}, UNKNOWN),
        ("a NOT IN (1)", {"a": "1"}, UNKNOWN),
        ("a IN (TRUE)", {"a": True}, TRUE),
        ("a + 1 IN (2)", {"a": 1}, TRUE),
        # precedence
        ("a = 1 OR a = 2 AND b = 1", {"a": 1, "b": 0}, TRUE),
        ("(a = 1 OR a = 2) AND b = 1", {"a": 1, "b": 0}, FALSE),
        ("NOT a = 1 AND b = 1", {"a": 2, "b": 1}, TRUE),
        ("NOT (a = 1 AND b = 1)", {"a": 1, "b": 2}, TRUE),
        ("NOT a IN (1) OR TRUE", {"a": 1}, TRUE),
        ("NOT NOT a = 1", {"a": 1}, TRUE),
        ("1 + 1 = 2 AND 2 < 3", {}, TRUE),
        ("-2 * -3 = 6", {}, TRUE),
        ("2 - -2 = 4", {}, TRUE),
        # spellings
        ("a='1'and(b)=2", {"a": "1", "b": 2}, TRUE),
        ("\n a\t= 1\r\nOr FALSE ", {"a": 1}, TRUE),
        ("A = 1", {"a": 1}, UNKNOWN),
        ('"odd name" = 1', {"odd name": 1}, TRUE),
        ('"say ""hi""" = 1', {'say "hi"': 1}, TRUE),
        ('"AND" = 1', {"AND": 1}, TRUE),
        ("$a_1 = 1", {"$a_1": 1}, TRUE),
        ("größe = 1", {"größe": 1}, TRUE),
        ("\u0131N = 1", {"\u0131N": 1}, TRUE),
        ("a = .5", {"a": 0.5}, TRUE),
        ("a = 5.", {"a": 5}, TRUE),
        ("a = 7E3", {"a": 7000}, TRUE),
        ("a = -57.9e-2", {"a": -0.579}, TRUE),
        ("a = 18446744073709551615", {"a": 2**64 - 1}, TRUE),
        ("a = -9223372036854775808", {"a": -(2**63)}, TRUE),
        ("a = '--'", {"a": "--"}, TRUE),
    ],
)  # fmt: skip
def test_what_it_says(text: str, properties: dict[str, Any], expected: bool | None) -> None:
    assert verdict(text, **properties) is expected
    assert parse_filter(text).matches(message(**properties)) is (expected is True)


HEADERS = {
    "priority": 7,
    "durable": False,
    "expiration": None,
    "timestamp": 1_500,
    "size": 42,
    "correlation_id": "c-1",
    "group": None,
    "content_type": "text/plain",
    "address": "orders",
}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("priority = 'high'", TRUE),
        ("durable", FALSE),
        ("durable = FALSE", TRUE),
        ("timestamp = 1.5", TRUE),
        ("expiration IS NULL", TRUE),
        ("size = 42", TRUE),
        ("correlation_id = 'c-1'", TRUE),
        ("group IS NULL", TRUE),
        ("content_type LIKE 'text/%'", TRUE),
        ("address = 'orders'", TRUE),
        ("AMQPriority = 7", TRUE),
        ("AMQDurable = 'NON_DURABLE'", TRUE),
        ("AMQTimestamp = 1500", TRUE),
        ("AMQExpiration = 0", TRUE),
        ("AMQSize = 42", TRUE),
        ("AMQCorrelationID = 'c-1'", TRUE),
        ("AMQGroupID IS NULL", TRUE),
        ("AMQContentType = 'text/plain'", TRUE),
        ("AMQAddress = 'orders'", TRUE),
        # In double quotes it is always a property.
        ("\"priority\" = 'high'", TRUE),
        ("\"AMQPriority\" = 'low'", TRUE),
        ('"size" IS NULL', TRUE),
    ],
)
def test_headers_have_names_of_their_own(text: str, expected: bool | None) -> None:
    assert verdict(text, HEADERS, priority="high", AMQPriority="low") is expected


def test_a_filter_is_its_text() -> None:
    one, same, other = parse_filter(" a = 1 "), parse_filter("a = 1"), parse_filter("a = 2")
    assert one == same and hash(one) == hash(same) and one != other and one != "a = 1"
    assert repr(one) == "<Filter 'a = 1'>"


def test_it_says_what_it_looks_at() -> None:
    found = parse_filter('b = 1 AND (size > a OR b IS NULL) AND "size" = 2')
    assert found.identifiers == ("b", "size", "a")
    assert found.uses_properties
    assert not parse_filter("correlation_id = 'x' OR TRUE").uses_properties


@pytest.mark.parametrize(
    ("text", "name", "keys", "exact"),
    [
        ("a = 'x'", "a", ("x",), True),
        ("'x' = a", "a", ("x",), True),
        ("(((a = -1)))", "a", (-1,), True),
        ("a = TRUE", "a", ((True,),), True),
        ("a IN ('x', 'y', 'x')", "a", ("x", "y"), True),
        ("a = 1 OR a IN (2, 3) OR a = 1", "a", (1, 2, 3), True),
        ("a > 1 AND b = 2", "b", (2,), False),
        ("a = 1 AND b = 2", "a", (1,), False),
        ("(c > 1 AND a = 1) AND b = 2", "a", (1,), False),
        ("correlation_id = 'r-1'", "correlation_id", ("r-1",), True),
    ],
)
def test_a_filter_that_wants_certain_values_can_be_looked_up(
    text: str, name: str, keys: tuple[Any, ...], exact: bool
) -> None:
    index = parse_filter(text).index
    assert index is not None
    assert (index.name.name, index.keys, index.exact) == (name, keys, exact)


@pytest.mark.parametrize(
    "text",
    ["a <> 1", "a > 1", "NOT a = 1", "a = b", "a = 1 OR b = 1", "a = 1 OR a > 5", "a", "1 = 1", "a IS NULL",
     "a + 1 = 2", "a NOT IN (1)"],
)  # fmt: skip
def test_other_filters_have_to_be_asked(text: str) -> None:
    assert parse_filter(text).index is None


@pytest.mark.parametrize("name", ["size", "priority", "group", "durable", "timestamp", "address", "content_type"])
def test_a_property_wins_over_the_plain_header_of_its_name_where_the_message_has_one(name: str) -> None:
    headers = dict.fromkeys(["size", "priority", "group", "durable", "timestamp", "address", "content_type"], 7)
    assert verdict(f"{name} = 'mine'", headers, **{name: "mine"}) is True
    assert verdict(f"{name} IS NULL", headers, **{name: None}) is True
    assert verdict(f'"{name}" IS NULL', headers) is True
    if name != "timestamp":
        assert verdict(f"{name} = 7", headers, other="mine") is True


def test_the_other_spelling_always_means_the_header() -> None:
    headers = {"priority": 4, "size": 10}
    assert verdict("AMQPriority = 4 AND AMQSize = 10", headers, priority=9, size=1) is True
    assert verdict("priority = 9 AND size = 1", headers, priority=9, size=1) is True
