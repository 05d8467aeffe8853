"""A ping-pong file: two files written in turn, of which one always holds the last state that was written whole.

A state is written under a temporary name, synced, renamed and the directory synced.  So a file with its final name was
whole when it got that name, and a file that fails its check is damaged, never unfinished.  A damaged file is refused
even if the other one is whole: nothing tells whether the damaged one was newer.
"""

from __future__ import annotations

import contextlib
import errno
from typing import Final

from meshq.abc import Disk
from meshq.store.formats._layout_format import TEMPORARY_SUFFIX
from meshq.store.formats._ping_pong_format import PingPongCopy, decode_copy, encode_copy


class DiskFullError(OSError):
    """The disk is full and nothing has changed: the attempt was undone and may be repeated."""


#: No space on the disk, a quota that is used up, and no descriptor for a new file.
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE})


def is_disk_full(error: OSError) -> bool:
    """Whether an error says that the disk has no space for a file: the attempt may be repeated."""
    return error.errno in _FULL


def read_whole(disk: Disk, path: str, size: int | None = None) -> bytes:
    """Read the first ``size`` bytes of a file, or all."""
    file = disk.open(path)
    try:
        return file.read_at(0, file.size() if size is None else size)
    finally:
        file.close()


class PingPongFile:
    """The two files ``<directory>/<purpose>-0`` and ``-1``."""

    __slots__ = ("_directory", "_disk", "_purpose")

    def __init__(self, disk: Disk, directory: str, purpose: str) -> None:
        self._disk = disk
        self._directory = directory
        self._purpose = purpose

    def path(self, generation: int) -> str:
        """Return the path of the file for this generation."""
        return f"{self._directory}/{self._purpose}-{generation % 2}"

    def read(self) -> PingPongCopy | None:
        """Read the newest state; None if nothing was ever written.

        Raises: DamagedError, SettingsError (a newer version), OSError.
        """
        names = self._disk.names(self._directory)
        copies = []
        for slot in (0, 1):
            path = self.path(slot)
            if path.rpartition("/")[2] in names:
                copies.append(decode_copy(self._purpose.encode(), read_whole(self._disk, path), path))
        return max(copies, key=lambda copy: copy.generation, default=None)

    def write(self, copy: PingPongCopy) -> None:
        """Write the newest state; durable on return.

        Raises:
            DiskFullError: the disk is full; the state is as it was.
            OSError: anything else failed; which state is durable is unknown.
        """
        path = self.path(copy.generation)
        temporary = path + TEMPORARY_SUFFIX
        data = encode_copy(self._purpose.encode(), copy)
        try:
            write_new(self._disk, temporary, data)
        except OSError as error:
            if not is_disk_full(error):
                raise
            with contextlib.suppress(OSError):
                self._disk.remove(temporary)
            raise DiskFullError(error.errno, error.strerror, temporary) from error
        self._disk.replace(temporary, path)
        self._disk.sync_directory(self._directory)


def write_new(disk: Disk, path: str, data: bytes) -> None:
    """Make a file with this content, synced; its name is not durable yet.  Raises: OSError."""
    file = disk.open(path, create=True)
    try:
        file.write_at(0, [data])
        file.sync()
    finally:
        file.close()
