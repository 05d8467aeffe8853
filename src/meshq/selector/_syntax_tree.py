"""A filter as a tree.  NOT of a condition is a node of its own: ``a NOT IN (1)`` is the NOT of ``a IN (1)``."""

from __future__ import annotations

from typing import Any, NamedTuple


class Literal(NamedTuple):
    """A value that is written out."""

    value: Any


class Name(NamedTuple):
    """A property, or a header."""

    name: str
    header: bool


class Negate(NamedTuple):
    """The number with the other sign; with ``plus`` as it is."""

    operand: Node
    plus: bool


class Arithmetic(NamedTuple):
    """Numbers, from left to right; operators of one strength only."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Compare(NamedTuple):
    """Two values and one of ``= <> < <= > >=``."""

    operator: str
    left: Node
    right: Node


class Between(NamedTuple):
    """From ``low`` to ``high``, both included."""

    value: Node
    low: Node
    high: Node


class In(NamedTuple):
    """One of some literals, which are of one kind."""

    value: Node
    members: tuple[Any, ...]


class Like(NamedTuple):
    """A text that fits a pattern."""

    value: Node
    pattern: str
    escape: str


class IsNull(NamedTuple):
    """Not there, or unknown."""

    value: Node


class Not(NamedTuple):
    """The opposite."""

    term: Node


class All(NamedTuple):
    """AND."""

    terms: tuple[Node, ...]


class Either(NamedTuple):
    """OR."""

    terms: tuple[Node, ...]


Node = Literal | Name | Negate | Arithmetic | Compare | Between | In | Like | IsNull | Not | All | Either
