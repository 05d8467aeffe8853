"""The ballast: a file that is removed on a full disk, so that a manifest has space."""

from __future__ import annotations

import contextlib
from typing import Final

import trio

from meshq.abc import Disk, Env
from meshq.limits import KIB
from meshq.store.directory._ping_pong_file import DiskFullError, is_disk_full, write_new

#: Segments are prepared, copied and removed here, so that commits never wait for that.
POOL: Final = "background"
#: A manifest of a thousand segments.
BALLAST_BYTES: Final = 64 * KIB
#: On a very full disk, in pages of 4 KiB: the header and the records of a compacted copy, and its manifest of a hundred
#: segments or two.  With less than that no compaction would free anything.
BALLAST_BYTES_MIN: Final = 16 * KIB


class Ballast:
    """The ballast of one journal: made, or removed for a manifest that is not written yet, or missing."""

    __slots__ = ("_being_removed", "_env", "_path", "_removed", "_size")

    def __init__(self, env: Env, path: str) -> None:
        self._env = env
        self._path = path
        #: The size of the ballast; 0 without one.
        self._size = 0
        #: Set when the file is gone: the ballast may be wanted again before.
        self._being_removed: trio.Event | None = None
        #: The ballast was removed for a manifest that is not written yet.
        self._removed = False

    @property
    def missing(self) -> bool:
        """Whether the ballast is to be made."""
        return not (self._size or self._removed)

    async def make(self, size: int = BALLAST_BYTES) -> None:
        """Make the ballast, a smaller one if need be.  Raises: DiskFullError, OSError."""
        while self._being_removed is not None:
            await self._being_removed.wait()
        while not self._size:
            try:
                await self._env.threads.run(_make, self._env.disk, self._path, size, pool=POOL)
                self._size = size
            except DiskFullError:
                if size == BALLAST_BYTES_MIN:
                    raise
                size = BALLAST_BYTES_MIN

    async def shrink(self) -> bool:
        """Give up most of the ballast; False if there is no more to give up.  Raises: DiskFullError, OSError."""
        if self._size <= BALLAST_BYTES_MIN:
            return False
        await self._remove()
        await self.make(BALLAST_BYTES_MIN)
        return True

    async def remove_for_space(self) -> bool:
        """Remove the ballast until ``wanted_again``; False if there is none.  Raises: OSError."""
        if not self._size:
            return False
        self._removed = True
        await self._remove()
        return True

    def wanted_again(self) -> bool:
        """End the removal for space; True if the ballast is to be made again."""
        removed, self._removed = self._removed, False
        return removed

    def remove_now(self) -> None:
        """Remove the ballast.  Blocks.  Raises: OSError."""
        if self._size:
            self._env.disk.remove(self._path)
        self._size = 0

    async def _remove(self) -> None:
        # Set before the removal: two tasks may want to remove the ballast.
        self._size = 0
        gone = self._being_removed = trio.Event()
        try:
            await self._env.threads.run(self._env.disk.remove, self._path, pool=POOL)
        finally:
            self._being_removed = None
            gone.set()


def _make(disk: Disk, path: str, size: int) -> None:
    try:
        write_new(disk, path, bytes(size))
    except OSError as error:
        if not is_disk_full(error):
            raise
        with contextlib.suppress(FileNotFoundError):
            disk.remove(path)
        raise DiskFullError(error.errno, error.strerror, path) from error
