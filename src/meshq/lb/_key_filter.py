"""Regular expressions for keys, which are bounded in form and length so that none of them can take long.

Python's ``re`` tries one way after another, and some expressions of a dozen characters have more ways than there is
time: ``(a+)+b``.  A broker judges a key for each connection, in the one thread in which it does everything else, by
expressions that an operator changes while it runs.  A limit of time is no help, since ``re`` can't be interrupted.

So an expression is counted before it is used.  The ways in which it may be tried on the longest key are a product of
small numbers, if nothing repeated holds a choice in itself, and so are the steps that all these ways take together;
what needs more than ``STEPS_MAX`` is refused with a sentence that says so, and so is what can't be counted: references
to groups, and looking ahead or behind.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from meshq.errors import SettingsError

#: Characters of an expression, and of a key: of a longer key only so many count.
EXPRESSION_CHARACTERS_MAX: Final = 256
KEY_CHARACTERS_MAX: Final = 256
#: Groups within groups.
DEPTH_MAX: Final = 8
#: Steps of all ways to try an expression on the longest key; a million take ``re`` a few hundredths of a second.
STEPS_MAX: Final = 1_000_000
#: Characters that a repeated literal or set passes over in the time of one step.
_RUN_CHARACTERS: Final = 16

_ALLOWED: Final = (
    "a regular expression of literals, sets, ^, $, |, groups and *, +, ?, {m,n}, in which nothing repeated holds a"
    f" choice or a repetition, of at most {EXPRESSION_CHARACTERS_MAX} characters, and with at most {STEPS_MAX:,} steps"
    f" to try it on a key of {KEY_CHARACTERS_MAX} characters: begin it with ^, or use fewer * and +"
)
#: Escapes that stand for one character or for a place; a letter or digit beside them means something else.
_ESCAPES: Final = frozenset("dDsSwWbBAZtnrfv")
_REPEAT: Final = re.compile(r"\{(\d{0,3})(?:(,)(\d{0,3}))?\}")
#: The rest of what ``re`` takes for a repetition, with any number of digits, where none of at most three was found.
_BRACED: Final = re.compile(r"\d*(?:,\d*)?\}")


class _Part(NamedTuple):
    """A part of an expression.

    ``ways``: in which it can be tried from one place on; ``steps``: of all of them.  ``plain``: it holds no choice.
    ``anchored``: it begins where keys do.  ``width``: the fewest characters that it takes; ``single``: it is just one.
    """

    ways: int
    steps: int
    plain: bool
    anchored: bool = False
    width: int = 0
    single: bool = False


class _NotCountableError(Exception):
    """The expression is not one whose ways can be counted."""


class KeyFilter:
    """A regular expression for keys.

    Raises:
        SettingsError: it is no such expression, or could take long.
    """

    def __init__(self, setting: str, text: str) -> None:
        self.text: str = text
        try:
            steps = _Counter(text).steps() if type(text) is str and len(text) <= EXPRESSION_CHARACTERS_MAX else 0
            if not 0 < steps <= STEPS_MAX:
                raise SettingsError(setting, text if type(text) is not str else text[:64], _ALLOWED)
            self._pattern = re.compile(text)
        except (_NotCountableError, re.error, OverflowError) as error:
            raise SettingsError(setting, text, _ALLOWED) from error

    def found(self, key: str) -> str:
        """Return the part of a key that the expression finds; the whole key, where it finds nothing."""
        match = self._pattern.search(key[:KEY_CHARACTERS_MAX])
        return match[0] if match is not None and match[0] else key

    def finds(self, key: str) -> bool:
        """Return whether the expression finds anything in a key."""
        match = self._pattern.search(key[:KEY_CHARACTERS_MAX])
        return match is not None and bool(match[0])

    def matches(self, key: str) -> bool:
        """Return whether the expression matches a whole key."""
        return len(key) <= KEY_CHARACTERS_MAX and self._pattern.fullmatch(key) is not None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, KeyFilter) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)

    def __repr__(self) -> str:
        return f"KeyFilter({self.text!r})"


class _Counter:
    """Counts the steps in which an expression can be tried, from its first character to its last."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0

    def steps(self) -> int:
        """Return the most steps that a search for the expression in the longest key takes.

        Raises:
            _NotCountableError: it has a part that is not allowed.
        """
        found = self._choice(0)
        if self._at < len(self._text):
            raise _NotCountableError
        return found.steps * (1 if found.anchored else KEY_CHARACTERS_MAX)

    def _peek(self) -> str:
        return self._text[self._at : self._at + 1]

    def _choice(self, depth: int) -> _Part:
        if depth > DEPTH_MAX:
            raise _NotCountableError
        branches = [self._sequence(depth)]
        while self._peek() == "|":
            self._at += 1
            branches.append(self._sequence(depth))
        plain = len(branches) == 1 and branches[0].plain
        ways, steps = sum(one.ways for one in branches), sum(one.steps for one in branches)
        anchored, width = all(one.anchored for one in branches), min(one.width for one in branches)
        return _Part(ways, steps, plain, anchored, width)

    def _sequence(self, depth: int) -> _Part:
        # One step to begin with: nothing takes none, however often it is repeated.
        ways, steps, width, plain, anchored, first = 1, 1, 0, True, False, True
        while self._peek() not in ("", "|", ")"):
            part = self._repeated(self._atom(depth))
            anchored = anchored or (first and part.anchored)
            # The part is tried anew for each way of those before it.
            steps += ways * part.steps
            ways, width = ways * part.ways, width + part.width
            plain, first = plain and part.plain, False
        return _Part(ways, steps, plain, anchored, width)

    def _repeated(self, part: _Part) -> _Part:
        low, high = self._quantifier()
        if (low, high) == (1, 1):
            return part
        if high > 1 and not part.plain:
            # Each of its ways begins anew with each repetition.
            raise _NotCountableError
        ways = part.ways + high - low if high > 1 else part.ways + 1
        # The key ends before the last ones begin.
        times = min(high, KEY_CHARACTERS_MAX // part.width + 1) if part.width else high
        # Each place where the repetition may end is a step of its own.
        steps = high - low + 1 + (-(-high // _RUN_CHARACTERS) if part.single else times * part.steps)
        return _Part(ways, steps, part.plain and low == high, part.anchored and low > 0, low * part.width)

    def _quantifier(self) -> tuple[int, int]:
        """Return how often the part before may be there, at least and at most."""
        sign = self._peek()
        found = _REPEAT.match(self._text, self._at) if sign == "{" else None
        if found is not None:
            low = int(found[1] or 0)
            high = int(found[3] or KEY_CHARACTERS_MAX) if found[2] else low
            self._at = found.end()
        elif sign and sign in "*+?":
            low = int(sign == "+")
            high = 1 if sign == "?" else KEY_CHARACTERS_MAX
            self._at += 1
        else:
            return 1, 1
        if not low <= high <= KEY_CHARACTERS_MAX or high == 0:
            raise _NotCountableError
        if self._peek() == "?":
            # The same ways in another order.
            self._at += 1
        if self._peek() and self._peek() in "*+?{":
            raise _NotCountableError
        return low, high

    def _atom(self, depth: int) -> _Part:
        sign = self._peek()
        self._at += 1
        if sign == "(":
            return self._group(depth)
        if sign == "[":
            self._set()
        elif sign == "\\":
            escaped = self._peek()
            if not escaped or (escaped.isalnum() and escaped not in _ESCAPES):
                raise _NotCountableError
            self._at += 1
            return _Part(1, 1, plain=(one := escaped not in "bBAZ"), anchored=escaped == "A", width=one, single=one)
        elif sign in "*+?" or (sign == "{" and _BRACED.match(self._text, self._at)):
            raise _NotCountableError
        return _Part(1, 1, plain=(one := sign not in "^$"), anchored=sign == "^", width=one, single=one)

    def _group(self, depth: int) -> _Part:
        if self._text.startswith("?:", self._at):
            self._at += 2
        elif self._peek() == "?":
            raise _NotCountableError
        inner = self._choice(depth + 1)
        if self._peek() != ")":
            raise _NotCountableError
        self._at += 1
        return inner

    def _set(self) -> None:
        """Pass over a set, which stands for one character."""
        start = self._at
        if self._peek() == "^":
            self._at += 1
            start += 1
        while self._peek() and (self._peek() != "]" or self._at == start):
            self._at += 2 if self._peek() == "\\" else 1
        if self._peek() != "]":
            raise _NotCountableError
        self._at += 1
