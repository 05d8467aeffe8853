"""Setting and removing address settings, in memory and in the journal at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from meshq import limits
from meshq.broker.catalog._definition_records import DefinitionRecords
from meshq.broker.catalog._names import check_own
from meshq.broker.catalog._router import Router
from meshq.broker.catalog._settings_table import SettingsTable
from meshq.broker.log._release_queue import ReleaseQueue
from meshq.errors import DamagedError, NotFoundError, SettingsError, UsageError
from meshq.settings import address_settings_of, check_pattern, kept_address_settings_of


class SettingsDefinitions:
    """Sets and removes the address settings of patterns while the node runs."""

    def __init__(
        self,
        router: Router,
        release_queue: ReleaseQueue,
        records: DefinitionRecords,
        check_settings: Callable[[SettingsTable], None],
    ) -> None:
        """``check_settings`` checks new settings against the open producers, and raises UsageError."""
        self._router = router
        self._release_queue = release_queue
        self._records = records
        self._check_settings = check_settings

    def set(self, pattern: str, fields: dict[str, Any]) -> None:
        """Set the address settings of a pattern, in place of earlier ones, also for later lives of the node.

        Raises:
            SettingsError: the pattern, or a setting, is not valid; nothing changed.
            UsageError: an open producer could not go on with the settings; nothing changed.
        """
        check_own(check_pattern(pattern))
        settings = address_settings_of(fields)
        table = self._router.table
        if pattern not in table.set and len(table.set) >= limits.ADDRESS_SETTINGS_MAX:
            raise UsageError(f"the node has its {limits.ADDRESS_SETTINGS_MAX} patterns that were set while it ran")
        self._check_settings(table.changed(pattern, settings))
        old = table.positions.get(pattern, 0)
        position = self._records.write({"kind": "settings", "pattern": pattern, **fields}, [old] if old else None)
        table.put(pattern, settings, position)
        self._release_queue.doom(self._router.settings_changed())

    def remove(self, pattern: str) -> None:
        """Delete the settings that were set for a pattern while the node ran.

        Raises:
            NotFoundError: none were set.
            UsageError: an open producer could not go on without the settings; nothing changed.
        """
        table = self._router.table
        if pattern not in table.set:
            raise NotFoundError(f"no address settings were set for {pattern!r} while the node ran")
        self._check_settings(table.changed(pattern, None))
        self._records.forget([table.positions[pattern]])
        table.drop(pattern)
        self._release_queue.doom(self._router.settings_changed())

    def restore(self, values: dict[str, Any], position: int) -> None:
        """Restore the settings of a pattern from the journal."""
        fields = {name: value for name, value in values.items() if name not in ("kind", "pattern")}
        try:
            settings = kept_address_settings_of(fields)
        except SettingsError as error:
            raise DamagedError("journal", position, "settings that can be", str(error)) from error
        self._router.table.put(values["pattern"], settings, position)
        self._router.settings_changed()
