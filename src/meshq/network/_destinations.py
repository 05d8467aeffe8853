"""Destinations of a network of brokers: queues and topics, by name or pattern."""

from __future__ import annotations

from typing import Any, ClassVar

import attrs

from meshq.address import INTERNAL, SEPARATOR, Routing, is_pattern, matches_destination
from meshq.errors import SettingsError

_WILDCARDS = ("*", ">")
_ALLOWED = "words between dots, each of them a name, '*' for one word or '>' for any number of them"


def _pattern(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    good = is_pattern(value) and SEPARATOR not in value and not value.startswith(INTERNAL)
    # A wildcard is a whole word.
    if not good or any(mark in word and word != mark for word in value.split(".") for mark in _WILDCARDS):
        raise SettingsError(attribute.name, value, _ALLOWED)


@attrs.frozen
class Destinations:
    """Destinations whose name fits a pattern: ``*`` is one word, ``>`` any number of them, none included."""

    routing: ClassVar[Routing]
    pattern: str = attrs.field(validator=_pattern)

    @property
    def is_name(self) -> bool:
        """Whether the pattern is the name of one destination."""
        # No name has a word that is a wildcard in settings of addresses.
        return not any(word in (*_WILDCARDS, "#") for word in self.pattern.split("."))

    def match(self, routing: str, address: str) -> bool:
        """Whether a destination is one of these."""
        return routing == self.routing and matches_destination(self.pattern, address)


@attrs.frozen
class Queues(Destinations):
    """Queues whose name fits a pattern, for the settings of a ``NetworkConnector``."""

    routing: ClassVar[Routing] = "anycast"


@attrs.frozen
class Topics(Destinations):
    """Topics, that is multicast addresses, whose name fits a pattern, for the settings of a ``NetworkConnector``."""

    routing: ClassVar[Routing] = "multicast"
