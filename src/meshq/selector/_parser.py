"""The parser of filters: tokens to a tree, by recursive descent.  ``docs/design/filters.md`` has the grammar."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from meshq import limits
from meshq.errors import FilterError
from meshq.selector._like import PatternError, compile_like
from meshq.selector._message_view import HEADERS, RESERVED_PREFIX
from meshq.selector._syntax_tree import (
    All,
    Arithmetic,
    Between,
    Compare,
    Either,
    In,
    IsNull,
    Like,
    Literal,
    Name,
    Negate,
    Node,
    Not,
)
from meshq.selector._tokenizer import INT_MIN, Token, tokens_of, wrong

_COMPARISONS: Final = ("=", "<>", "<", "<=", ">", ">=")
_VALUE: Final = "a name, a literal, a sign or '('"
_GOES_ON: Final = "an operator, AND, OR or the end"
#: What a value of each kind is called; ``any``: only the message will tell.
_CALLED: Final = {"number": "a number", "text": "text", "condition": "a condition"}


class ParsedPart(NamedTuple):
    """A parsed part of a filter: its node, its kind (number, text, condition or any), its column."""

    node: Node
    kind: str
    column: int


def parse(text: str) -> Node:
    """Parse a filter into a tree.

    Raises:
        FilterError: it is no condition, or too large.
    """
    parser = _Parser(text)
    part = parser.condition()
    parser.expect("end", _GOES_ON)
    return parser.as_condition(part)


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = tokens_of(text)
        self._at = 0
        self._depth = 0
        self._terms = 0

    # -- words

    @property
    def _next(self) -> Token:
        return self._tokens[self._at]

    def _take(self) -> Token:
        token = self._tokens[self._at]
        self._at += 1
        return token

    def _takes(self, *kinds: str) -> bool:
        """Take the next token if it is of one of these kinds; return whether it was."""
        if self._next.kind not in kinds:
            return False
        self._at += 1
        return True

    def expect(self, kind: str, allowed: str) -> Token:
        """Take the next token, which must be of this kind."""
        if self._next.kind != kind:
            raise self._unexpected(allowed)
        return self._tokens[self._at] if kind == "end" else self._take()

    def _unexpected(self, allowed: str) -> FilterError:
        token = self._next
        found = token.text if token.kind == "end" else repr(token.text[:32])
        return wrong(self._text, token.column, found, allowed)

    def _deeper(self, column: int) -> None:
        self._depth += 1
        if self._depth > limits.FILTER_DEPTH_MAX:
            allowed = f"{limits.FILTER_DEPTH_MAX} parentheses, NOTs and signs inside each other"
            raise wrong(self._text, column, "one level too many", allowed)

    # -- kinds

    def as_condition(self, part: ParsedPart) -> Node:
        """Return the node of a part that can be true or false."""
        return self._as(part, "condition")

    def _as(self, part: ParsedPart, kind: str) -> Node:
        if part.kind not in (kind, "any"):
            raise wrong(self._text, part.column, _CALLED[part.kind], _CALLED[kind])
        return part.node

    def _comparable(self, left: ParsedPart, right: ParsedPart, *, ordered: bool) -> None:
        for part in (left, right):
            if ordered and part.kind == "condition":
                raise wrong(self._text, part.column, _CALLED[part.kind], "a number or text, which have an order")
        if "any" not in (left.kind, right.kind):
            self._as(right, left.kind)

    # -- conditions, the weakest operator first

    def condition(self) -> ParsedPart:
        """``and OR and …``."""
        return self._joined("OR", self._and, Either)

    def _and(self) -> ParsedPart:
        return self._joined("AND", self._not, All)

    def _joined(self, word: str, operand: Callable[[], ParsedPart], kind: type[All | Either]) -> ParsedPart:
        part = operand()
        if self._next.kind != word:
            return part
        terms: list[Node] = []
        while True:
            node = self.as_condition(part)
            # What stands in parentheses may be more of the same.
            terms += node.terms if isinstance(node, kind) else (node,)
            if not self._takes(word):
                return ParsedPart(kind(tuple(terms)), "condition", part.column)
            part = operand()

    def _not(self) -> ParsedPart:
        token = self._next
        if not self._takes("NOT"):
            return self._comparison()
        self._deeper(token.column)
        part = self._not()
        self._depth -= 1
        return ParsedPart(Not(self.as_condition(part)), "condition", token.column)

    def _comparison(self) -> ParsedPart:
        left = self._sum()
        token = self._next
        if self._takes(*_COMPARISONS):
            right = self._sum()
            self._comparable(left, right, ordered=token.kind not in ("=", "<>"))
            return ParsedPart(Compare(token.kind, left.node, right.node), "condition", left.column)
        if self._takes("IS"):
            negated = self._takes("NOT")
            self.expect("NULL", "NULL" if negated else "NULL or NOT NULL")
            return self._negated(IsNull(left.node), negated, left)
        negated = self._takes("NOT")
        if self._takes("BETWEEN"):
            return self._negated(self._between(left), negated, left)
        if self._takes("IN"):
            return self._negated(self._in(left), negated, left)
        if self._takes("LIKE"):
            return self._negated(self._like(left), negated, left)
        if negated:
            raise self._unexpected("BETWEEN, IN or LIKE")
        return left

    def _negated(self, node: Node, negated: bool, left: ParsedPart) -> ParsedPart:
        return ParsedPart(Not(node) if negated else node, "condition", left.column)

    def _between(self, value: ParsedPart) -> Between:
        low = self._sum()
        self._comparable(value, low, ordered=True)
        self.expect("AND", "AND and the upper bound")
        high = self._sum()
        self._comparable(value, high, ordered=True)
        self._comparable(low, high, ordered=True)
        return Between(value.node, low.node, high.node)

    def _in(self, value: ParsedPart) -> In:
        self.expect("(", "'(' and a list of literals")
        members = [self._member()]
        while self._takes(","):
            members.append(self._member())
        self.expect(")", "',' or ')'")
        for member in members:
            self._as(member, members[0].kind)
            self._comparable(value, member, ordered=False)
        return In(value.node, tuple(member.node.value for member in members if isinstance(member.node, Literal)))

    def _member(self) -> ParsedPart:
        token = self._next
        minus = token.kind == "-"
        signed = self._takes("+", "-")
        if self._next.kind != "number" and (signed or self._next.kind not in ("text", "TRUE", "FALSE")):
            raise self._unexpected("a number" if signed else "a literal")
        part = self._literal(self._take())
        return self._minus(part, token.column) if minus else part

    def _like(self, value: ParsedPart) -> Like:
        self._as(value, "text")
        pattern = self.expect("text", "a pattern in single quotes")
        escape = ""
        if self._takes("ESCAPE"):
            token = self.expect("text", "one character in single quotes")
            escape = token.value
            if len(escape) != 1:
                raise wrong(self._text, token.column, token.text[:32], "one character in single quotes")
        try:
            compile_like(pattern.value, escape)
        except PatternError as error:
            # Quotes that stand twice in the filter stand once in the pattern.
            before = pattern.value[: error.index]
            column = pattern.column + 1 + len(before) + before.count("'")
            raise wrong(
                self._text, column, f"the escape character {escape!r}", "that character before %, _ or itself"
            ) from None
        return Like(value.node, pattern.value, escape)

    # -- values

    def _sum(self) -> ParsedPart:
        return self._arithmetic(("+", "-"), self._product)

    def _product(self) -> ParsedPart:
        return self._arithmetic(("*", "/"), self._signed)

    def _arithmetic(self, operators: tuple[str, str], operand: Callable[[], ParsedPart]) -> ParsedPart:
        part = operand()
        if self._next.kind not in operators:
            return part
        column = part.column
        first = self._as(part, "number")
        rest: list[tuple[str, Node]] = []
        while self._next.kind in operators:
            operator = self._take().kind
            rest.append((operator, self._as(operand(), "number")))
        return ParsedPart(Arithmetic(first, tuple(rest)), "number", column)

    def _signed(self) -> ParsedPart:
        token = self._next
        if not self._takes("+", "-"):
            return self._primary()
        self._deeper(token.column)
        part = self._signed()
        self._depth -= 1
        node = self._as(part, "number")
        if token.kind == "+":
            return ParsedPart(node if part.kind == "number" else Negate(node, True), "number", token.column)
        return self._minus(ParsedPart(node, part.kind, part.column), token.column)

    def _minus(self, part: ParsedPart, column: int) -> ParsedPart:
        node = part.node
        if isinstance(node, Literal):
            if type(node.value) is int and -node.value < INT_MIN:
                raise wrong(self._text, column, "a number that is too small", f"whole numbers from {INT_MIN}")
            return ParsedPart(Literal(-node.value), "number", column)
        return ParsedPart(Negate(node, False), "number", column)

    def _primary(self) -> ParsedPart:
        token = self._next
        if token.kind == "(":
            self._deeper(token.column)
            self._take()
            part = self.condition()
            self.expect(")", "an operator, AND, OR or ')'")
            self._depth -= 1
            return ParsedPart(part.node, part.kind, token.column)
        if token.kind not in ("name", "quoted", "number", "text", "TRUE", "FALSE"):
            raise self._unexpected("IS NULL or IS NOT NULL behind a value" if token.kind == "NULL" else _VALUE)
        self._terms += 1
        if self._terms > limits.FILTER_TERMS_MAX:
            allowed = f"{limits.FILTER_TERMS_MAX} names and literals in all"
            raise wrong(self._text, token.column, "one term too many", allowed)
        self._take()
        return self._name(token) if token.kind in ("name", "quoted") else self._literal(token)

    def _literal(self, token: Token) -> ParsedPart:
        if token.kind in ("TRUE", "FALSE"):
            return ParsedPart(Literal(token.kind == "TRUE"), "condition", token.column)
        return ParsedPart(Literal(token.value), token.kind, token.column)

    def _name(self, token: Token) -> ParsedPart:
        name = token.value
        header = HEADERS.get(name) if token.kind == "name" else None
        if header is not None:
            # A message may have a property of a plain header's name, of any type.
            return ParsedPart(
                Name(name, True), header.kind if name.startswith(RESERVED_PREFIX) else "any", token.column
            )
        if token.kind == "name" and name.startswith(RESERVED_PREFIX):
            known = ", ".join(known for known in HEADERS if known.startswith(RESERVED_PREFIX))
            raise wrong(self._text, token.column, repr(name[:32]), f"{known}; or a property in double quotes")
        return ParsedPart(Name(name, False), "any", token.column)
