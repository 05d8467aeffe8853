"""A session, as far as the core knows it."""

from __future__ import annotations

from typing import Protocol

from meshq.broker.catalog._settings_table import SettingsTable
from meshq.errors import MeshqError


class CreditOpener(Protocol):
    """The credits of a session's producers."""

    def open_all(self) -> None:
        """Open credits at addresses that have become bounded."""


class OpenProducers(Protocol):
    """The producers of a session."""

    @property
    def credits(self) -> CreditOpener:
        """The credits of the producers."""

    def check_windows(self, table: SettingsTable) -> None:
        """Check that settings fit the producers.  Raises: UsageError."""


class ServedConsumers(Protocol):
    """The consumers of a session."""

    def lose_queue(self, name: str, error: MeshqError) -> None:
        """End the consumers of a deleted queue."""


class ServedSession(Protocol):
    """A session, as far as the core knows sessions."""

    @property
    def producers(self) -> OpenProducers:
        """The producers of the session."""

    @property
    def consumers(self) -> ServedConsumers:
        """The consumers of the session."""
