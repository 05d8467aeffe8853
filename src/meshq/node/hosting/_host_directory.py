"""The directories of the backups that a host runs; one that can't be read hides no other.  All calls block."""

from __future__ import annotations

from meshq.abc import Disk
from meshq.errors import DamagedError
from meshq.ha.colocated import FoundBackups, KeptBackup, KeptBackups


class HostDirectory(KeptBackups):
    """The directory of a host, in which each backup is looked at by itself: one that can't be read hides no other."""

    def __init__(self, disk: Disk, root: str) -> None:
        super().__init__(disk, root)
        #: Why a backup could not be read at the last look, by its number.
        self.unread: dict[int, DamagedError | OSError] = {}

    def look(self) -> FoundBackups:
        """Return the backups that can be read; ``unread`` has the others.

        Raises:
            OSError: the directory of the host can't be read.
        """
        self.unread = {}
        return super().look()

    def _read(self, number: int) -> list[KeptBackup]:
        try:
            return super()._read(number)
        except NotADirectoryError:
            # A file is no backup; its number is given to nobody all the same.
            return []
        except (DamagedError, OSError) as error:
            self.unread[number] = error
            return []
