"""The disk of a term, on which syncs succeed only in the epoch of the term."""

from __future__ import annotations

import errno
from collections.abc import Sequence

from meshq.abc import Buffer, Disk, File


class Fence:
    """The file of an epoch by which its node finds out that another epoch has begun.

    A successor renames the directory of the epoch, so that the file is not at its path any more.
    """

    def __init__(self, disk: Disk, path: str) -> None:
        self.path: str = path
        #: Whether another epoch has begun; once True it stays True.
        self.fallen: bool = False
        self._disk = disk

    def check(self) -> None:
        """Open the file by its path.

        Raises:
            OSError: another epoch has begun, or the disk has failed.
        """
        try:
            self._disk.open(self.path).close()
        except FileNotFoundError as error:
            self.fallen = True
            raise OSError(errno.ESTALE, "another node has the store: a later epoch has begun", self.path) from error

    def failed(self) -> None:
        """Find out whether the failure of a call is that of a path in an epoch that is over."""
        if not self.fallen:
            try:
                self.check()
            except OSError:
                # What failed says what is wrong with the disk, if it is that.
                return


class FencedFile(File):
    """A file of an epoch, whose sync succeeds only within the epoch."""

    __slots__ = ("_fence", "_file")

    def __init__(self, file: File, fence: Fence) -> None:
        self._file = file
        self._fence = fence

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._file.write_at(offset, buffers)

    def read_at(self, offset: int, size: int) -> bytes:
        return self._file.read_at(offset, size)

    def size(self) -> int:
        return self._file.size()

    def truncate(self, size: int) -> None:
        self._file.truncate(size)

    def sync(self) -> float:
        seconds = self._file.sync()
        self._fence.check()
        return seconds

    def lock(self) -> bool:
        return self._file.lock()

    def close(self) -> None:
        self._file.close()


class FencedDisk(Disk):
    """The disk of a term, by which the node reaches its epoch only."""

    __slots__ = ("_disk", "_fence")

    def __init__(self, disk: Disk, fence: Fence) -> None:
        self._disk = disk
        self._fence = fence

    def open(self, path: str, *, create: bool = False) -> File:
        try:
            return FencedFile(self._disk.open(path, create=create), self._fence)
        except OSError:
            self._fence.failed()
            raise

    def replace(self, old: str, new: str) -> None:
        try:
            self._disk.replace(old, new)
        except OSError:
            self._fence.failed()
            raise

    def move_directory(self, old: str, new: str) -> None:
        self._disk.move_directory(old, new)

    def remove(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except OSError:
            self._fence.failed()
            raise

    def names(self, directory: str) -> list[str]:
        try:
            return self._disk.names(directory)
        except OSError:
            self._fence.failed()
            raise

    def make_directory(self, path: str) -> None:
        # It would make the parents, and so a directory of an epoch that is over.
        self._fence.check()
        self._disk.make_directory(path)

    def mode(self, directory: str) -> int:
        return self._disk.mode(directory)

    def sync_directory(self, path: str) -> None:
        try:
            self._disk.sync_directory(path)
        except OSError:
            self._fence.failed()
            raise
        self._fence.check()
