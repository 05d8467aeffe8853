"""The settings of addresses: the settings from the start of the broker, overridden by settings made while it ran."""

from __future__ import annotations

from collections.abc import Mapping

from meshq.address import tells_events
from meshq.settings import AddressSettings, kept_address_settings_of, settings_for


class SettingsTable:
    """Settings by pattern."""

    __slots__ = ("_given", "positions", "set")

    def __init__(self, given: Mapping[str, AddressSettings]) -> None:
        self._given = dict(given)
        #: What was set at run time, by pattern, and where the journal says so (0: nowhere).
        self.set: dict[str, AddressSettings] = {}
        self.positions: dict[str, int] = {}

    def of(self, address: str) -> AddressSettings:
        """The settings of an address: field by field, the most specific pattern that sets it wins."""
        found = settings_for({**self._given, **self.set} if self.set else self._given, address)
        if not tells_events(address):
            return found
        given = {name: getattr(found, name) for name in found.given}
        return kept_address_settings_of({**given, "default_routing": "multicast", "auto_create_queues": True})

    def pattern(self, pattern: str) -> AddressSettings | None:
        """Return the settings of a pattern; None if the pattern has none."""
        return self.set.get(pattern) or self._given.get(pattern)

    def changed(self, pattern: str, settings: AddressSettings | None) -> SettingsTable:
        """The table as it would be if a pattern said this; None: no more than what the broker was built with."""
        other = SettingsTable(self._given)
        other.set = {name: found for name, found in self.set.items() if name != pattern}
        if settings is not None:
            other.set[pattern] = settings
        return other

    def put(self, pattern: str, settings: AddressSettings, position: int) -> None:
        """Replace all settings of a pattern."""
        self.set[pattern] = settings
        self.positions[pattern] = position

    def drop(self, pattern: str) -> None:
        """Delete the settings set at run time; those from the start of the broker apply again."""
        del self.set[pattern], self.positions[pattern]
