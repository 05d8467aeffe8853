"""The directories of backups that a host runs with stores of their own; all calls block."""

from __future__ import annotations

from contextlib import suppress

import attrs

from meshq.abc import Disk
from meshq.errors import DamagedError
from meshq.ha._whole_file import replace_file
from meshq.ha.colocated._ended_backups_plan import ASIDE, PREFIX, backup_number, is_left_behind, latest_number
from meshq.ha.colocated._kept_backup_format import BYTES_MAX, NAME, KeptBackup
from meshq.ha.replication import NodeDirectory
from meshq.store import make_directory


@attrs.frozen(kw_only=True)
class FoundBackups:
    """The backups that a host remembers.  ``latest``: the highest number that it has given; ``damaged``: those that
    can't be read."""

    latest: int
    backups: tuple[KeptBackup, ...]
    damaged: tuple[DamagedError, ...]


class KeptBackups:
    """The directories of the backups of one host.  ``root``: the directory of the host."""

    def __init__(self, disk: Disk, root: str) -> None:
        self._disk = disk
        self._root = root.rstrip("/") or "/"

    def look(self) -> FoundBackups:
        """Return the backups that the host has begun, and not ended for good.  Raises: OSError."""
        try:
            names = self._disk.names(self._root)
        except FileNotFoundError:
            names = []
        found: list[KeptBackup] = []
        damaged: list[DamagedError] = []
        for name in sorted(names, key=backup_number):
            if name.startswith(PREFIX) and (number := backup_number(name)):
                try:
                    found += self._read(number)
                except DamagedError as error:
                    damaged.append(error)
        return FoundBackups(latest=latest_number(names), backups=tuple(found), damaged=tuple(damaged))

    def _read(self, number: int) -> list[KeptBackup]:
        path = f"{self._directory(number)}/{NAME}"
        try:
            file = self._disk.open(path)
        except FileNotFoundError:
            return []
        try:
            return [KeptBackup.decode(number, file.read_at(0, BYTES_MAX), path)]
        finally:
            file.close()

    def keep(self, backup: KeptBackup, before: KeptBackup | None) -> None:
        """Remember a backup, as it was ``before`` if there was one; durable on return.

        Raises:
            OSError: it is remembered as before, unless the disk refuses that, too.
        """
        directory = self._directory(backup.number)
        try:
            make_directory(self._disk, directory)
            replace_file(self._disk, directory, NAME, backup.encode())
        except OSError:
            # The file may be there all the same.
            with suppress(OSError):
                self._restore(directory, before)
            raise

    def _restore(self, directory: str, before: KeptBackup | None) -> None:
        if before is not None:
            replace_file(self._disk, directory, NAME, before.encode())
            return
        self._disk.remove(f"{directory}/{NAME}")
        self._disk.sync_directory(directory)

    def is_left_behind(self, number: int, node_epoch: int) -> bool:
        """Whether a backup that does not run has nothing that its node lacks.  Raises: DamagedError, OSError."""
        found = NodeDirectory(self._disk, self._directory(number)).standing()
        return is_left_behind(epoch=found.epoch, acted=found.acted, claimed=found.claimed, node_epoch=node_epoch)

    def set_aside(self, number: int) -> str:
        """Forget a backup for good; its store stays, under a name that no start takes.  Return where.

        Durable after ``sync``.

        Raises:
            OSError: it is remembered as before.
        """
        name = f"{PREFIX}{number}"
        aside = f"{self._root}/{ASIDE}{name}"
        self._disk.move_directory(f"{self._root}/{name}", aside)
        return aside

    def sync(self) -> None:
        """Make it durable which backups were set aside.  Raises: OSError."""
        self._disk.sync_directory(self._root)

    def _directory(self, number: int) -> str:
        return f"{self._root}/{PREFIX}{number}"
