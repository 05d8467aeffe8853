"""The equality index of a filter, which finds matching filters by a message's value instead of evaluating each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from meshq.selector._message_view import MessageView, reader
from meshq.selector._syntax_tree import All, Compare, Either, In, Literal, Name, Node


class EqualityIndex(NamedTuple):
    """A lookup of a filter that can be true only for messages in which ``name`` has one of the values behind ``keys``.

    ``exact``: the filter is true for all of these messages.
    """

    name: Name
    keys: tuple[Any, ...]
    exact: bool

    @property
    def read(self) -> Callable[[MessageView], Any]:
        """The function that reads the value of the name from a message."""
        return reader(self.name.name, self.name.header)


def index_key(value: Any) -> Any:
    """Return a value as a dictionary key: keys are equal exactly if the values are equal in a filter."""
    return (value,) if type(value) is bool else value


def equality_index_of(node: Node) -> EqualityIndex | None:
    """Return the equality index of a filter; None if it has none."""
    terms = node.terms if isinstance(node, All) else (node,)
    for term in terms:
        found = _values(term)
        if found is not None:
            name, values = found
            keys = tuple(dict.fromkeys(map(index_key, values)))
            return EqualityIndex(name, keys, exact=len(terms) == 1)
    return None


def _values(node: Node) -> tuple[Name, tuple[Any, ...]] | None:
    """Return the name, and the values of which it must have one for the condition to be true."""
    if isinstance(node, Compare) and node.operator == "=":
        for name, literal in ((node.left, node.right), (node.right, node.left)):
            if isinstance(name, Name) and isinstance(literal, Literal):
                return name, (literal.value,)
    if isinstance(node, In) and isinstance(node.value, Name):
        return node.value, node.members
    if isinstance(node, Either):
        parts = [_values(term) for term in node.terms]
        first = parts[0]
        if first is not None and all(part is not None and part[0] == first[0] for part in parts):
            return first[0], tuple(value for part in parts if part is not None for value in part[1])
    return None
