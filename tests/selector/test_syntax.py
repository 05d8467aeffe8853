"""What is no filter: one typed error, with the column and what could stand there; and the bounds."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshq import limits
from meshq.errors import FilterError, MeshqError, SettingsError, UsageError
from meshq.selector import parse_filter
from tests.selector.views import message, verdict


@pytest.mark.parametrize(
    ("text", "column", "allowed"),
    [
        ("", 1, "a name, a literal"),
        ("   ", 4, "a name, a literal"),
        ("a =", 4, "a name, a literal"),
        ("a = ", 5, "a name, a literal"),
        ("  a = = 1", 7, "a name, a literal"),
        ("a == 1", 4, "a name, a literal"),
        ("a != 1", 3, "an operator"),
        ("a = 1 b = 2", 7, "AND, OR or the end"),
        ("a = 1 = 2", 7, "AND, OR or the end"),
        ("(a = 1", 7, "')'"),
        ("a = 1)", 6, "AND, OR or the end"),
        ("()", 2, "a name, a literal"),
        ("a = 1 AND", 10, "a name, a literal"),
        ("OR a = 1", 1, "a name, a literal"),
        ("NOT", 4, "a name, a literal"),
        ("a NOT 5", 7, "BETWEEN, IN or LIKE"),
        ("a NOT = 5", 7, "BETWEEN, IN or LIKE"),
        ("a BETWEEN 1", 12, "AND and the upper bound"),
        ("a BETWEEN 1 OR 2", 13, "AND and the upper bound"),
        ("a IN 1", 6, "'('"),
        ("a IN ()", 7, "a literal"),
        ("a IN (b)", 7, "a literal"),
        ("a IN (-'x')", 8, "a number"),
        ("a IN (1, 'b')", 10, "a number"),
        ("a IN (1; 2)", 8, "an operator|a name"),
        ("a IN (1 2)", 9, "',' or ')'"),
        ("a IS 1", 6, "NULL or NOT NULL"),
        ("a IS NOT 1", 10, "NULL"),
        ("a = NULL", 5, "IS NULL"),
        ("a LIKE b", 8, "a pattern"),
        ("a LIKE 'x' ESCAPE", 18, "one character"),
        ("a LIKE 'x' ESCAPE 'xx'", 19, "one character"),
        ("a LIKE 'x' ESCAPE ''", 19, "one character"),
        ("a LIKE 'a''!b' ESCAPE '!'", 12, "before %, _ or itself"),
        ("a LIKE 'ab!' ESCAPE '!'", 11, "before %, _ or itself"),
        ("a = 'x", 5, "ends with '"),
        ('"x = 1', 1, 'ends with "'),
        ('"" = 1', 1, "at least one character"),
        ("a = 12L", 7, "the end of the number"),
        ("a = 1.2.3", 8, "the end of the number"),
        ("a = 0x1F", 6, "the end of the number"),
        ("a = 18446744073709551616", 5, "up to 18446744073709551615"),
        ("a = -9223372036854775809", 5, "from -9223372036854775808"),
        ("a = 1e999", 5, "64 bits"),
        ("a; DROP", 2, "a name, a literal, an operator"),
        ("a = ?", 5, "a name, a literal, an operator"),
        ("a = 1and b = 2", 6, "the end of the number"),
        # what can never be true, by its types
        ("5", 1, "a condition"),
        ("'x'", 1, "a condition"),
        ("a + 1", 1, "a condition"),
        ("NOT 5", 5, "a condition"),
        ("a = 1 AND 'x'", 11, "a condition"),
        ("'x' OR a = 1", 1, "a condition"),
        ("a = 1 OR (b - 1)", 10, "a condition"),
        ("1 = 'x'", 5, "a number"),
        ("'x' = 1", 7, "text"),
        ("a + 'x' = 1", 5, "a number"),
        ("(a = 1) + 1 = 2", 1, "a number"),
        ("-'x' = 1", 2, "a number"),
        ("a < TRUE", 5, "which have an order"),
        ("a BETWEEN 1 AND 'x'", 17, "a number"),
        ("1 BETWEEN a AND 'x'", 17, "a number"),
        ("1 LIKE 'x'", 1, "text"),
        ("AMQPriority = 'high'", 15, "a number"),
        ("AMQDurable = 1", 14, "text"),
        ("AMQSize LIKE '1%'", 1, "text"),
        ("AMQPriorty = 1", 1, "AMQPriority, "),
    ],
)
def test_the_error_says_where_and_what_could_stand_there(text: str, column: int, allowed: str) -> None:
    with pytest.raises(FilterError) as caught:
        parse_filter(text)
    error = caught.value
    assert error.column == column
    assert any(part in error.allowed for part in allowed.split("|")), error.allowed
    assert f"at column {column} " in str(error) and error.allowed in str(error)
    assert (error.setting, error.value, error.outcome, error.code) == ("filter", text, "not_done", "filter")
    assert isinstance(error, SettingsError) and isinstance(error, UsageError)


def test_a_long_filter_is_shown_around_the_place() -> None:
    with pytest.raises(FilterError, match="…") as caught:
        parse_filter("a = 1 AND " * 40 + "= 1" + " AND a = 1" * 40)
    assert len(str(caught.value)) < 300
    assert "(it is '…AND a = 1 AND a = 1 AND = 1 AND a = 1 AND a = 1 …')" in str(caught.value)
    for text, shown in (("a = ? " + "x" * 90, "'a = ? x"), ("x" * 90 + " ?", "'…x")):
        with pytest.raises(FilterError) as caught:
            parse_filter(text)
        assert shown in str(caught.value) and str(caught.value).count("…") == 1


def test_of_a_long_word_the_first_32_characters_are_shown() -> None:
    with pytest.raises(FilterError, match=f"column 7 of it '{'x' * 32}' was found"):
        parse_filter("a = 1 " + "x" * 40)


def test_what_is_no_text_is_refused() -> None:
    for value in (None, 1, b"a = 1", ["a"]):
        with pytest.raises(SettingsError, match="filter="):
            parse_filter(value)
    with pytest.raises(FilterError, match="column 6"):
        parse_filter("a = '\ud800'")


def test_the_length_is_bounded() -> None:
    fits = "a = '" + "x" * (limits.FILTER_BYTES_MAX - 6) + "'"
    assert verdict(fits) is None
    for text in (fits + " ", fits.replace("x", "ä", 1)):
        with pytest.raises(SettingsError, match=f"at most {limits.FILTER_BYTES_MAX} bytes"):
            parse_filter(text)


@pytest.mark.parametrize("opening", ["(", "NOT ", "- ", "NOT ("])
def test_the_depth_is_bounded(opening: str) -> None:
    levels = opening.count("(") + len(opening.replace("(", "").split())

    def nested(count: int) -> str:
        inside = "a = 1" if opening != "- " else "a"
        return opening * count + inside + ")" * (opening.count("(") * count) + (" = 1" if opening == "- " else "")

    count = limits.FILTER_DEPTH_MAX // levels
    verdict(nested(count), a=1)
    with pytest.raises(FilterError, match="one level too many"):
        parse_filter(nested(count + 1))
    # Only what is inside each other counts.
    verdict(" AND ".join([nested(4)] * 20), a=1)


@pytest.mark.parametrize("joint", [" OR ", " AND "])
def test_the_number_of_terms_is_bounded(joint: str) -> None:
    fits = joint.join(["a=1"] * (limits.FILTER_TERMS_MAX // 2))
    assert verdict(fits, a=1) is True
    with pytest.raises(FilterError, match="one term too many"):
        parse_filter(fits + joint + "a")
    assert verdict("+".join(["1"] * (limits.FILTER_TERMS_MAX - 1)) + "=255") is True
    # Members of a list cost nothing per message.
    assert verdict(f"a IN ({','.join(map(str, range(500)))})", a=499) is True


WORDS = st.sampled_from(
    ["a", "b", "size", "AMQ", "AND", "OR", "NOT", "IN", "LIKE", "ESCAPE", "IS", "NULL", "BETWEEN", "TRUE", "(", ")",
     ",", "=", "<>", "<", ">=", "+", "-", "*", "/", "1", "2.5", ".5e3", "1e99", "99999999999999999999", "'x'", "'%_!'",
     "'!'", '"q"', "'", '"', "é", ";", "\x00", "\ud800"]
)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=800)
@given(st.lists(WORDS, max_size=40).map(" ".join) | st.text(max_size=60))
def test_nothing_else_is_ever_raised(text: str) -> None:
    try:
        found = parse_filter(text)
    except MeshqError as error:
        assert isinstance(error, SettingsError)
        if isinstance(error, FilterError):
            assert 1 <= error.column <= len(text) + 1
        return
    for value in (None, 1, 2.5, True, "x", b"x"):
        assert found.verdict(message(a=value, b=value, q=value)) in (True, False, None)
    again = parse_filter(found.text)
    assert again == found and again.index == found.index
