"""Files and directories."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from meshq.abc._buffer import Buffer


class File(ABC):
    """An open file, for one user at a time.  All calls block; they are made from worker threads.

    Errors are ``OSError``s as the operating system gives them.  After an error of ``write_at`` or ``sync``
    nothing may be assumed of what was written: the caller stops (fail-stop), and never syncs again.
    """

    @abstractmethod
    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        """Write all buffers one after the other, starting at ``offset`` (bytes); short writes are continued."""

    @abstractmethod
    def read_at(self, offset: int, size: int) -> bytes:
        """Read up to ``size`` bytes from ``offset``; fewer only at the end of the file."""

    @abstractmethod
    def size(self) -> int:
        """Return the length of the file in bytes."""

    @abstractmethod
    def truncate(self, size: int) -> None:
        """Cut the file to its first ``size`` bytes; durable with the next sync.  The file is at least that long."""

    @abstractmethod
    def sync(self) -> float:
        """Make every completed write durable; return the duration in seconds."""

    @abstractmethod
    def lock(self) -> bool:
        """Take the file's exclusive lock, kept until ``close``; False if another process has the lock."""

    @abstractmethod
    def close(self) -> None:
        """Close the file without a sync.  Closing twice is silent."""


class Disk(ABC):
    """A tree of directories and files.  Paths are strings with ``/``.  All calls block.

    A created, renamed or removed name is durable only once its directory has been synced.
    """

    @abstractmethod
    def open(self, path: str, *, create: bool = False) -> File:
        """Open for reading and writing; ``create=True`` makes a new file (mode 0600) and fails if it exists.

        Where no descriptor is left, a new file is refused after a moment (EMFILE, ENFILE), as by a full disk; whatever
        is there already is waited for.
        """

    @abstractmethod
    def replace(self, old: str, new: str) -> None:
        """Rename the file ``old`` to ``new``, replacing a file of that name."""

    @abstractmethod
    def move_directory(self, old: str, new: str) -> None:
        """Rename the directory ``old`` to ``new``, with all that is in it; ``FileExistsError`` if ``new`` exists.

        Files in it that are open stay open, and are the same files.
        """

    @abstractmethod
    def remove(self, path: str) -> None:
        """Remove a file, or a directory in which nothing is left; ``OSError`` if something is."""

    @abstractmethod
    def names(self, directory: str) -> list[str]:
        """List the names in a directory, sorted; ``FileNotFoundError`` if the directory is missing."""

    @abstractmethod
    def make_directory(self, path: str) -> None:
        """Make a directory (mode 0700) and its missing parents; silent if it exists."""

    @abstractmethod
    def sync_directory(self, path: str) -> None:
        """Make the names in a directory durable."""

    def real_path(self, path: str) -> str:
        """Return a path without symbolic links; a disk without such links returns the path unchanged."""
        return path

    @abstractmethod
    def mode(self, directory: str) -> int:
        """Return the permission bits of a directory, as for ``chmod``; ``FileNotFoundError`` if missing."""
