"""The compiler of filters: a tree becomes closures, which take a message and return a value; None is NULL or
unknown.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable
from typing import Any, Final

from meshq.selector._like import compile_like
from meshq.selector._message_view import MessageView, reader
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
from meshq.selector._tokenizer import INT_MAX, INT_MIN

Evaluate = Callable[[MessageView], Any]
Verdict = Callable[[MessageView], bool | None]

_NUMBERS: Final = (int, float)
_ORDERS: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


def condition(node: Node) -> Verdict:
    """Compile a condition: the function returns True, False or None (unknown) for a message."""
    evaluate = _MAKERS[type(node)](node)
    if not isinstance(node, Name):
        return evaluate

    def verdict(view: MessageView) -> bool | None:
        found = evaluate(view)
        return found if type(found) is bool else None

    return verdict


def _value(node: Node) -> Evaluate:
    return _MAKERS[type(node)](node)


def _literal(node: Literal) -> Evaluate:
    value = node.value
    return lambda view: value


def _name(node: Name) -> Evaluate:
    return reader(node.name, node.header)


# -- arithmetic


def _bounded(number: Any) -> Any:
    """Return a result, or None (unknown) if a property can't hold it."""
    if type(number) is int:
        return number if INT_MIN <= number <= INT_MAX else None
    return number if math.isfinite(number) else None


def _quotient(left: Any, right: Any) -> Any:
    if not right:
        return None
    if type(left) is type(right) is int:
        # Towards zero, as SQL has it.
        whole = abs(left) // abs(right)
        return whole if (left < 0) == (right < 0) else -whole
    return left / right


_ARITHMETIC: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _quotient,
}


def _arithmetic(node: Arithmetic) -> Evaluate:
    first = _value(node.first)
    rest = [(_ARITHMETIC[sign], _value(operand)) for sign, operand in node.rest]

    def evaluate(view: MessageView) -> Any:
        total = first(view)
        for calculate, operand in rest:
            other = operand(view)
            if type(total) not in _NUMBERS or type(other) not in _NUMBERS:
                return None
            total = calculate(total, other)
            if total is None or (total := _bounded(total)) is None:
                return None
        return total

    return evaluate


def _negate(node: Negate) -> Evaluate:
    operand, plus = _value(node.operand), node.plus

    def evaluate(view: MessageView) -> Any:
        number = operand(view)
        if type(number) not in _NUMBERS:
            return None
        return number if plus else _bounded(-number)

    return evaluate


# -- comparisons


def _compare(node: Compare) -> Verdict:
    left, right = _value(node.left), _value(node.right)
    if node.operator in _ORDERS:
        return _ordered(_ORDERS[node.operator], left, right)
    wanted = node.operator == "="

    def verdict(view: MessageView) -> bool | None:
        one, other = left(view), right(view)
        kind, other_kind = type(one), type(other)
        if one is None or (kind is not other_kind and (kind not in _NUMBERS or other_kind not in _NUMBERS)):
            return None
        return bool(one == other) is wanted

    return verdict


def _ordered(holds: Callable[[Any, Any], bool], left: Evaluate, right: Evaluate) -> Verdict:
    def verdict(view: MessageView) -> bool | None:
        one, other = left(view), right(view)
        if type(one) is str:
            return holds(one, other) if type(other) is str else None
        if type(one) not in _NUMBERS or type(other) not in _NUMBERS:
            return None
        return holds(one, other)

    return verdict


def _between(node: Between) -> Verdict:
    above = _compare(Compare(">=", node.value, node.low))
    below = _compare(Compare("<=", node.value, node.high))
    return _every([above, below])


def _in(node: In) -> Verdict:
    value, members = _value(node.value), frozenset(node.members)
    kinds = tuple(_NUMBERS if type(node.members[0]) in _NUMBERS else (type(node.members[0]),))

    def verdict(view: MessageView) -> bool | None:
        found = value(view)
        return found in members if type(found) in kinds else None

    return verdict


def _like(node: Like) -> Verdict:
    value, fits = _value(node.value), compile_like(node.pattern, node.escape)

    def verdict(view: MessageView) -> bool | None:
        found = value(view)
        return fits(found) if type(found) is str else None

    return verdict


def _is_null(node: IsNull) -> Verdict:
    value = _value(node.value)
    return lambda view: value(view) is None


# -- logic


def _not(node: Not) -> Verdict:
    term = condition(node.term)

    def verdict(view: MessageView) -> bool | None:
        found = term(view)
        return None if found is None else not found

    return verdict


def _every(terms: list[Verdict]) -> Verdict:
    def verdict(view: MessageView) -> bool | None:
        result: bool | None = True
        for term in terms:
            found = term(view)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return verdict


def _all(node: All) -> Verdict:
    return _every([condition(term) for term in node.terms])


def _either(node: Either) -> Verdict:
    terms = [condition(term) for term in node.terms]

    def verdict(view: MessageView) -> bool | None:
        result: bool | None = False
        for term in terms:
            found = term(view)
            if found:
                return True
            if found is None:
                result = None
        return result

    return verdict


_MAKERS: Final[dict[type, Callable[[Any], Evaluate]]] = {
    Literal: _literal,
    Name: _name,
    Negate: _negate,
    Arithmetic: _arithmetic,
    Compare: _compare,
    Between: _between,
    In: _in,
    Like: _like,
    IsNull: _is_null,
    Not: _not,
    All: _all,
    Either: _either,
}
