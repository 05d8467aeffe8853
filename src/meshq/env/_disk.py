"""The real disk.

What makes a write durable differs by system.  On Linux ``fdatasync`` writes a file's bytes and length and
makes the device empty its cache; on macOS only ``F_FULLFSYNC`` does the latter.  A failed sync is never tried
again: the kernel has marked the pages clean by then, so a second one would report success for bytes that are
lost.  A file remembers its first failure and refuses every later write and sync.

The lock is ``flock``: it belongs to the open file, so a second open within the same process is refused like
one of another process, and closing some other descriptor of the same file does not drop it.  A forked child
shares the lock, and would keep it after the death of its parent; so the child closes its copies of locked files
before anything else.  Closing a copy leaves the lock to the parent.

A process, or a system, that has no descriptor left (EMFILE, ENFILE) says nothing about the disk.  Whatever opens
something that is there waits in its worker thread until there is a descriptor; a new file is refused after a moment, as
by a full disk, because its writer can do without it for a while.
"""

from __future__ import annotations

import errno
import math
import os
import stat
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, TypeVar

from meshq.abc import Buffer, Disk, File
from meshq.logs import logger

try:
    import fcntl
except ImportError:  # not a POSIX system: the module loads, and opening a file says why it can't be
    fcntl = None  # type: ignore[assignment]

T = TypeVar("T")
_log = logger("env")
#: No descriptor is left: in this process, in the whole system.
NO_DESCRIPTOR: Final = frozenset({errno.EMFILE, errno.ENFILE})
#: Seconds between two attempts to get one, and between two warnings.
DESCRIPTOR_PAUSE_S: Final = 0.05
DESCRIPTOR_WARNING_S: Final = 10.0
#: Seconds after which a new file is refused for want of one.
CREATE_PATIENCE_S: Final = 1.0
FILE_MODE = 0o600
DIRECTORY_MODE = 0o700
#: Buffers that one system call takes; POSIX promises 16, Linux and macOS have 1,024.
BUFFERS_MAX = os.sysconf("SC_IOV_MAX") if hasattr(os, "sysconf") else 16


def _flush_to_device(descriptor: int, *, directory: bool = False) -> None:
    """Flush the data written through ``descriptor`` to the device, so that it survives a loss of power."""
    if sys.platform == "darwin":
        fcntl.fcntl(descriptor, fcntl.F_FULLFSYNC)
    elif directory:
        os.fsync(descriptor)
    else:
        os.fdatasync(descriptor)


#: The open files that this process has locked, or locks just now: like the names of brokers, they *are* the process.
_LOCKED: Final[dict[RealFile, None]] = {}


def _close_in_child() -> None:
    """Close the locked files of the parent process."""
    for file in list(_LOCKED):
        file.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_in_child)


class RealFile(File):
    """An open file of the operating system."""

    __slots__ = ("_descriptor", "_failed", "_path")

    def __init__(self, path: str, descriptor: int) -> None:
        self._path = path
        #: -1 once closed; the system answers EBADF to that.
        self._descriptor = descriptor
        #: The first error of a write or sync; nothing is written or synced after it.
        self._failed: OSError | None = None

    def __repr__(self) -> str:
        state = "closed" if self._descriptor < 0 else "failed" if self._failed else "open"
        return f"<RealFile {self._path!r} {state}>"

    def write_at(self, offset: int, buffers: Sequence[Buffer]) -> None:
        self._refuse_after_failure()
        try:
            self._write_all(offset, buffers)
        except OSError as error:
            self._failed = error
            raise

    def read_at(self, offset: int, size: int) -> bytes:
        data = os.pread(self._descriptor, size, offset)
        if len(data) == size or not data:
            return data
        # A short read is the end of the file or the most that one call moves; only another call can tell.
        pieces = [data]
        missing = size - len(data)
        while missing and (data := os.pread(self._descriptor, missing, offset + size - missing)):
            pieces.append(data)
            missing -= len(data)
        return b"".join(pieces)

    def size(self) -> int:
        return os.fstat(self._descriptor).st_size

    def truncate(self, size: int) -> None:
        self._refuse_after_failure()
        os.ftruncate(self._descriptor, size)

    def sync(self) -> float:
        self._refuse_after_failure()
        begun = time.perf_counter()
        try:
            _flush_to_device(self._descriptor)
        except OSError as error:
            self._failed = error
            raise
        return time.perf_counter() - begun

    def lock(self) -> bool:
        # Entered before the lock is taken: another thread may fork in between.
        _LOCKED[self] = None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def close(self) -> None:
        descriptor, self._descriptor = self._descriptor, -1
        # Closed twice, or never locked.
        _LOCKED.pop(self, None)
        if descriptor >= 0:
            os.close(descriptor)

    def _refuse_after_failure(self) -> None:
        if self._failed is not None:
            raise OSError(
                errno.EIO, "an earlier write or sync failed, so this file takes no more", self._path
            ) from self._failed

    def _write_all(self, offset: int, buffers: Sequence[Buffer]) -> None:
        views = [memoryview(buffer) for buffer in buffers]
        total = sum(view.nbytes for view in views)
        if not total:
            return
        written = os.pwritev(self._descriptor, buffers[:BUFFERS_MAX], offset)
        while written < total:
            views = _after(views, written)
            offset += written
            total -= written
            written = os.pwritev(self._descriptor, views[:BUFFERS_MAX], offset)
            if not written:
                raise OSError(errno.EIO, "the system wrote nothing and named no error", self._path)


def _after(views: list[memoryview], count: int) -> list[memoryview]:
    """Return ``views`` without their first ``count`` bytes and without empty ones."""
    left: list[memoryview] = []
    for view in views:
        if count >= view.nbytes:
            count -= view.nbytes
            continue
        left.append(view.cast("B")[count:] if count else view)
        count = 0
    return left


def _with_descriptor(path: str, opening: Callable[[], T], patience_s: float = math.inf) -> T:
    """Return the result of ``opening``, which needs a descriptor for ``path``; try again while there is none.

    Raises: OSError; EMFILE and ENFILE only after ``patience_s``.
    """
    begun = time.monotonic()
    warn_at = begun
    while True:
        try:
            found = opening()
        except OSError as error:
            now = time.monotonic()
            if error.errno not in NO_DESCRIPTOR or now - begun >= patience_s:
                raise
            if now >= warn_at:
                text = "%s can't be opened: %s; it is tried again until a descriptor is free"
                _log.warning(text, path, error.strerror, extra={"event": "no_descriptor"})
                warn_at = now + DESCRIPTOR_WARNING_S
            time.sleep(DESCRIPTOR_PAUSE_S)
        else:
            if warn_at > begun:
                waited_s = time.monotonic() - begun
                _log.info("%s is open after %.1f s", path, waited_s, extra={"event": "descriptor_found"})
            return found


def _make_directory(path: str) -> None:
    try:
        os.mkdir(path, DIRECTORY_MODE)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def _require_posix(path: str) -> None:
    """Refuse other systems, which have no lock that dies with its process and can't make a name durable."""
    if fcntl is None:
        raise OSError(errno.ENOTSUP, "a store needs a POSIX system (file locks, directory syncs)", path)


class RealDisk(Disk):
    """The files of this host.  Relative paths start at the working directory."""

    __slots__ = ()

    def open(self, path: str, *, create: bool = False) -> File:
        _require_posix(path)
        flags = os.O_RDWR | os.O_CLOEXEC
        if create:
            flags |= os.O_CREAT | os.O_EXCL
        patience_s = CREATE_PATIENCE_S if create else math.inf
        return RealFile(path, _with_descriptor(path, lambda: os.open(path, flags, FILE_MODE), patience_s))

    def replace(self, old: str, new: str) -> None:
        os.replace(old, new)

    def move_directory(self, old: str, new: str) -> None:
        # The system would replace an empty directory, and rename files.
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), new)
        if not stat.S_ISDIR(os.lstat(old).st_mode):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), old)
        os.rename(old, new)

    def remove(self, path: str) -> None:
        try:
            os.unlink(path)
        except (IsADirectoryError, PermissionError):
            # Systems have either error for a directory.
            if not os.path.isdir(path) or os.path.islink(path):
                raise
            os.rmdir(path)

    def names(self, directory: str) -> list[str]:
        return sorted(_with_descriptor(directory, lambda: os.listdir(directory)))

    def make_directory(self, path: str) -> None:
        # Not os.makedirs: it gives the parents that it makes the mode of the umask.
        try:
            _make_directory(path)
        except FileNotFoundError:
            parent = os.path.dirname(path.rstrip("/"))
            if not parent or parent == path or os.path.isdir(parent):
                # Not for want of that one: below /proc, for example, nothing can be made.
                raise
            self.make_directory(parent)
            # Some places that are there take no directories, and say that they are not there.
            _make_directory(path)

    def real_path(self, path: str) -> str:
        return os.path.realpath(path)

    def mode(self, directory: str) -> int:
        found = os.stat(directory).st_mode
        if not stat.S_ISDIR(found):
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), directory)
        return stat.S_IMODE(found)

    def sync_directory(self, path: str) -> None:
        _require_posix(path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
        descriptor = _with_descriptor(path, lambda: os.open(path, flags))
        try:
            _flush_to_device(descriptor, directory=True)
        finally:
            os.close(descriptor)
