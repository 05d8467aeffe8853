"""The syntax tree of a filter.  NOT of a condition is a node of its own: ``a NOT IN (1)`` is the NOT of ``a IN
(1)``.
"""

from __future__ import annotations

from typing import Any, NamedTuple


class Literal(NamedTuple):
    """A literal value."""

    value: Any


class Name(NamedTuple):
    """The name of a property or of a header."""

    name: str
    header: bool


class Negate(NamedTuple):
    """A number with the other sign; ``plus``: with the same sign."""

    operand: Node
    plus: bool


class Arithmetic(NamedTuple):
    """Arithmetic from left to right, with operators of one precedence."""

    first: Node
    rest: tuple[tuple[str, Node], ...]


class Compare(NamedTuple):
    """Two values and an operator of ``= <> < <= > >=``."""

    operator: str
    left: Node
    right: Node


class Between(NamedTuple):
    """A value from ``low`` to ``high``, both included."""

    value: Node
    low: Node
    high: Node


class In(NamedTuple):
    """A value that equals any of some literals of the same kind."""

    value: Node
    members: tuple[Any, ...]


class Like(NamedTuple):
    """A text that matches a pattern."""

    value: Node
    pattern: str
    escape: str


class IsNull(NamedTuple):
    """A name without a value, or with an unknown one."""

    value: Node


class Not(NamedTuple):
    """The negation of a condition."""

    term: Node


class All(NamedTuple):
    """Conditions joined by AND."""

    terms: tuple[Node, ...]


class Either(NamedTuple):
    """Conditions joined by OR."""

    terms: tuple[Node, ...]


Node = Literal | Name | Negate | Arithmetic | Compare | Between | In | Like | IsNull | Not | All | Either
