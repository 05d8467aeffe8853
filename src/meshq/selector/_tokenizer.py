"""The tokenizer of filters: literals, names, keywords and signs, each with its column."""

from __future__ import annotations

import math
import re
from typing import Any, Final, NamedTuple

from meshq.errors import FilterError

KEYWORDS: Final = frozenset({"AND", "BETWEEN", "ESCAPE", "FALSE", "IN", "IS", "LIKE", "NOT", "NULL", "OR", "TRUE"})
#: What the encoding of whole numbers can hold.
INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**64 - 1

_TOKEN: Final = re.compile(
    r"""\s*(?:
      (?P<number>(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)
    | (?P<text>'(?:[^']|'')*')
    | (?P<quoted>"(?:[^"]|"")*")
    | (?P<word>(?:[^\W\d]|\$)[\w$]*)
    | (?P<sign><>|<=|>=|[=<>+\-*/(),])
    | (?P<end>\Z)
    )""",
    re.VERBOSE,
)
_WORD_START: Final = re.compile(r"[\w$.]")
_SHOWN: Final = 24


class Token(NamedTuple):
    """A token.  ``kind``: number, text, name, quoted, end, or the keyword or sign itself."""

    kind: str
    value: Any
    column: int
    text: str


def wrong(text: str, column: int, found: str, allowed: str) -> FilterError:
    """Make the error for the text at a column."""
    start = max(0, column - 1 - _SHOWN)
    part = text[start : column - 1 + _SHOWN]
    shown = ("…" if start else "") + part + ("…" if start + len(part) < len(text) else "")
    return FilterError(
        f"the filter is no condition: at column {column} of it {found} was found; allowed: {allowed} (it is {shown!r})",
        text=text,
        column=column,
        allowed=allowed,
    )


def tokens_of(text: str) -> list[Token]:
    """Split a text into tokens; the last token is ``end``.

    Raises:
        FilterError: something is no word of the language.
    """
    found: list[Token] = []
    at = 0
    while True:
        match = _TOKEN.match(text, at)
        if match is None:
            raise _no_word(text, at)
        kind = str(match.lastgroup)
        column = match.start(kind) + 1
        at = match.end()
        token = _token(text, kind, match.group(kind), column)
        found.append(token)
        if kind == "end":
            return found
        if kind == "number" and _WORD_START.match(text, at):
            raise wrong(text, at + 1, repr(text[at]), "the end of the number")


def _no_word(text: str, at: int) -> FilterError:
    at += len(text[at:]) - len(text[at:].lstrip())
    first = text[at]
    if first in "'\"":
        return wrong(text, at + 1, f"a {first} without its partner", f"text that ends with {first}")
    return wrong(text, at + 1, repr(first), "a name, a literal, an operator or a parenthesis")


def _token(text: str, kind: str, word: str, column: int) -> Token:
    if kind == "number":
        return Token(kind, _number(text, word, column), column, word)
    if kind == "text":
        return Token(kind, word[1:-1].replace("''", "'"), column, word)
    if kind == "quoted":
        name = word[1:-1].replace('""', '"')
        if not name:
            raise wrong(text, column, "an empty name", "a name of at least one character in double quotes")
        return Token(kind, name, column, word)
    if kind == "word":
        # Not every letter whose capital is one of these is.
        keyword = word.upper() if word.isascii() else ""
        return Token(keyword if keyword in KEYWORDS else "name", word, column, word)
    if kind == "end":
        return Token(kind, None, column, "the end")
    return Token(word, None, column, word)


def _number(text: str, word: str, column: int) -> int | float:
    if word.isdigit():
        whole = int(word)
        if whole > INT_MAX:
            raise wrong(text, column, "a number that is too large", f"whole numbers up to {INT_MAX}")
        return whole
    number = float(word)
    if not math.isfinite(number):
        raise wrong(text, column, "a number that is too large", "numbers that 64 bits can hold")
    return number
