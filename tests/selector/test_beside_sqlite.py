"""Filters beside SQLite, where an expression means the same in both."""

from __future__ import annotations

import sqlite3
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.selector.views import verdict

# Columns by type, as SQLite compares everything with everything and a filter does not.
NUMBERS = ("n1", "n2", "n3")
TEXTS = ("t1", "t2")
SMALL = st.integers(-6, 6) | st.sampled_from([-2.5, 0.5, 1.0, 2.25])
WORDS = st.text("ab_%'", max_size=3)


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def joined(*parts: Any) -> Any:
    return st.tuples(*(st.just(part) if isinstance(part, str) else part for part in parts)).map("".join)


number = st.recursive(
    st.sampled_from(NUMBERS) | SMALL.map(str),
    lambda inner: (
        joined("(", inner, st.sampled_from([" + ", " - ", " * ", " / "]), inner, ")")
        | joined(inner, st.sampled_from([" + ", " - ", " * ", " / "]), inner)
        | joined("(- ", inner, ")")
    ),
    max_leaves=5,
)
text = st.sampled_from(TEXTS) | WORDS.map(quoted)
OPERATORS = st.sampled_from([" = ", " <> ", " < ", " <= ", " > ", " >= "])
MAYBE_NOT = st.sampled_from(["", "NOT "])
comparison = (
    joined(number, OPERATORS, number)
    | joined(text, OPERATORS, text)
    | joined(number, " IS ", MAYBE_NOT, "NULL")
    | joined(text, " IS ", MAYBE_NOT, "NULL")
    | joined(number, " ", MAYBE_NOT, "BETWEEN ", number, " AND ", number)
    | joined(text, " ", MAYBE_NOT, "BETWEEN ", text, " AND ", text)
    | joined(number, " ", MAYBE_NOT, "IN (", st.lists(SMALL.map(str), min_size=1, max_size=3).map(", ".join), ")")
    | joined(text, " ", MAYBE_NOT, "IN (", st.lists(WORDS.map(quoted), min_size=1, max_size=3).map(", ".join), ")")
    | joined(text, " ", MAYBE_NOT, "LIKE ", WORDS.map(quoted))
    | joined(text, " ", MAYBE_NOT, "LIKE ", st.sampled_from(["'a!_%'", "'!%_'", "'%!!'"]), " ESCAPE '!'")
)
condition = st.recursive(
    comparison,
    lambda inner: (
        joined(inner, st.sampled_from([" AND ", " OR "]), inner)
        | joined("(", inner, ")")
        | joined("NOT (", inner, ")")
        | joined("NOT ", comparison)
    ),
    max_leaves=6,
)
row = st.fixed_dictionaries({**dict.fromkeys(NUMBERS, st.none() | SMALL), **dict.fromkeys(TEXTS, st.none() | WORDS)})


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None)
@given(condition, row)
def test_the_two_agree(expression: str, values: dict[str, Any]) -> None:
    connection = sqlite3.connect(":memory:")
    try:
        connection.execute("PRAGMA case_sensitive_like = ON")
        columns = ", ".join(f":{name} AS {name}" for name in values)
        (found,) = connection.execute(f"SELECT ({expression}) FROM (SELECT {columns})", values).fetchone()
    finally:
        connection.close()
    expected = None if found is None else bool(found)
    assert verdict(expression, **values) is expected
