"""The table of destinations of a network connector: queues or topics, by a pattern."""

from __future__ import annotations

from typing import Any

import attrs

from meshq.errors import SettingsError
from meshq.network import Queues, Topics


def _pattern(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    if value is None:
        return
    try:
        Queues(value)
    except SettingsError as error:
        raise SettingsError(attribute.name, value, error.allowed) from error


@attrs.frozen(kw_only=True)
class DestinationsTable:
    """Destinations of a network connector, either ``queues`` or ``topics``: those whose name fits the pattern, where
    ``*`` is one word, and ``>`` any number of them.
    """

    queues: str | None = attrs.field(default=None, validator=_pattern)
    topics: str | None = attrs.field(default=None, validator=_pattern)

    def destinations(self) -> Queues | Topics:
        """Return the destinations.

        Raises:
            SettingsError: it has none, or both.
        """
        if self.queues is not None and self.topics is None:
            return Queues(self.queues)
        if self.topics is not None and self.queues is None:
            return Topics(self.topics)
        given = "neither" if self.queues is None else "both"
        raise SettingsError("queues", given, "exactly one of queues and topics", shown=given)
