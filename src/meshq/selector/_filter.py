"""A filter: parsed once, evaluated for many messages."""

from __future__ import annotations

from typing import Final, TypeVar

from meshq import limits
from meshq.errors import SettingsError, with_kind
from meshq.selector._compile import Verdict, condition
from meshq.selector._equality_index import EqualityIndex, equality_index_of
from meshq.selector._message_view import PATH_NAMES, MessageView
from meshq.selector._parser import parse
from meshq.selector._syntax_tree import Like, Name, Node
from meshq.selector._tokenizer import wrong

T = TypeVar("T")
_ALLOWED: Final = f"text of at most {limits.FILTER_BYTES_MAX} bytes"


class Filter:
    """A condition.  Two filters are equal if their texts are.

    ``names``: the properties and headers in the condition.  ``uses_properties``: some of them are properties.
    ``index``: the equality index; None if the filter must be evaluated for each message.
    ``searches``: the number of LIKE, which search a text.  ``terms``: the number of names to read.
    ``asks_path``: the path of a message through a network of brokers decides alone.
    ``verdict``: the function that returns True, False or None (unknown) for a message.
    """

    __slots__ = ("asks_path", "index", "names", "searches", "terms", "text", "uses_properties", "verdict")

    def __init__(self, text: str, node: Node) -> None:
        names = tuple(dict.fromkeys(_parts(node, Name)))
        self._set(
            text=text,
            names=names,
            searches=len(_parts(node, Like)),
            terms=len(_parts(node, Name)),
            uses_properties=any(not name.header for name in names),
            asks_path=all(name.header and name.name in PATH_NAMES for name in names),
            index=equality_index_of(node),
            verdict=condition(node),
        )

    def _set(
        self,
        *,
        text: str,
        names: tuple[Name, ...],
        searches: int,
        terms: int,
        uses_properties: bool,
        asks_path: bool,
        index: EqualityIndex | None,
        verdict: Verdict,
    ) -> None:
        """Set all fields: a subclass that makes them in another way can forget none."""
        self.text: str = text
        self.names: tuple[Name, ...] = names
        self.searches: int = searches
        self.terms: int = terms
        self.uses_properties: bool = uses_properties
        self.asks_path: bool = asks_path
        self.index: EqualityIndex | None = index
        self.verdict: Verdict = verdict

    def __repr__(self) -> str:
        return f"<Filter {self.text!r}>"

    def __eq__(self, other: object) -> bool:
        return self.text == other.text if isinstance(other, Filter) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.text)

    @property
    def identifiers(self) -> tuple[str, ...]:
        """The names in the filter, in the order of their first appearance."""
        return tuple(dict.fromkeys(name.name for name in self.names))

    def matches(self, view: MessageView) -> bool:
        """Whether the condition is true for a message; unknown is not true."""
        return self.verdict(view) is True


def parse_filter(text: object) -> Filter:
    """Parse a filter.

    Raises:
        SettingsError: the filter is not a string, or too long.
        FilterError: the text is not a condition; the error names the column and the allowed words.
    """
    if type(text) is not str:
        raise SettingsError("filter", text, _ALLOWED, shown=with_kind(text))
    try:
        size = len(text.encode())
    except UnicodeEncodeError as error:
        raise wrong(text, error.start + 1, "half a character", "text that can be encoded") from None
    if size > limits.FILTER_BYTES_MAX:
        raise SettingsError("filter", text, _ALLOWED, shown=f"<{size} bytes>")
    return Filter(text.strip(), parse(text))


def _parts(node: Node, kind: type[T]) -> list[T]:
    """Return the nodes of one kind in a tree, in order."""
    found: list[T] = []
    waiting: list[object] = [node]
    while waiting:
        item = waiting.pop()
        if isinstance(item, kind):
            found.append(item)
        if isinstance(item, tuple):
            waiting += reversed(item)
    return found
