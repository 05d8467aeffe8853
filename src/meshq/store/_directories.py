"""The directories of a store, made durable, and the lock that keeps everybody else out of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from os import PathLike, fspath

from meshq.abc import Disk, File
from meshq.directories import StoreDirectories, why_exposed
from meshq.errors import BusyError, SettingsError
from meshq.store._layout_format import Layout


def parent(path: str) -> str:
    """The directory that has this name."""
    above, slash, _ = path.rstrip("/").rpartition("/")
    return above or (slash or ".")


def make_directories(disk: Disk, layout: Layout) -> None:
    """Make what is missing of a store's own directory; durable on return.

    Raises:
        SettingsError: everybody may write to one of its directories; nothing was made.
        OSError: the disk failed.
    """
    _check_private(disk, layout)
    outside = layout.directories.outside.values()
    for path in (layout.root, layout.journal, layout.bindings):
        if path not in outside:
            make_directory(disk, path)


def _check_private(disk: Disk, layout: Layout) -> None:
    for setting, path, why in why_not_private(disk, layout.root, layout.directories):
        raise SettingsError(setting, path, f"a directory that not everybody may write to: {why}")


def why_not_private(
    disk: Disk, directory: str | PathLike[str], directories: StoreDirectories
) -> Iterator[tuple[str, str, str]]:
    """The directories of a store, as far as they are there, that are none for one: the setting that has brought each
    there, the directory, and what is wrong with it.

    Raises:
        SettingsError: ``directory`` is no directory's name.
        OSError: one of them can't be looked at.
    """
    layout = Layout(root_of(directory), directories=directories)
    places = {"data_dir": layout.root}
    places |= {f"directories.{part}": path for part, path in directories.outside.items()}
    # Whoever may write to a part has what is in it, whatever the directory above says; a link may lead anywhere.
    inside = [path for path in layout.parts if path not in places.values()]
    for setting, path in (*places.items(), *(("data_dir", path) for path in inside)):
        try:
            exposed = why_exposed(path, disk.mode(path))
        except FileNotFoundError:
            # Made by this process, for this process.
            continue
        if exposed:
            yield setting, path, exposed


def make_directory(disk: Disk, path: str) -> None:
    """Make a directory with those above it, unless it is there; durable on return.  Raises: OSError."""
    missing: list[str] = []
    above = path
    while not _exists(disk, above):
        missing.append(above)
        above = parent(above)
    # A life that was killed right here has made it, and its name may be in memory only.
    if above not in (".", "/"):
        _sync_if_ours(disk, parent(above))
    for made in reversed(missing):
        disk.make_directory(made)
        disk.sync_directory(parent(made))


def _sync_if_ours(disk: Disk, path: str) -> None:
    try:
        disk.sync_directory(path)
    except OSError as error:
        # Where this process may not read or write, it has made nothing.
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise


def _exists(disk: Disk, path: str) -> bool:
    if path in (".", "/"):
        return True
    try:
        disk.names(path)
    except FileNotFoundError:
        return False
    return True


def take_lock(disk: Disk, layout: Layout) -> File:
    """The open lock file; closing it gives the store free.

    Raises:
        BusyError: somebody has the store open.
        OSError: the disk failed.
    """
    try:
        file = disk.open(layout.lock)
    except FileNotFoundError:
        try:
            file = disk.open(layout.lock, create=True)
        except FileExistsError:
            file = disk.open(layout.lock)
    try:
        locked = file.lock()
    except BaseException:
        file.close()
        raise
    if not locked:
        file.close()
        text = f"the store in {layout.root} is open already, here or in another process"
        advice = "one broker at a time uses a data_dir; several processes connect to one broker, or have one each"
        raise BusyError(f"{text}: {advice}")
    return file


def root_of(directory: str | PathLike[str]) -> str:
    """The root of a store, without slashes at its end.

    Raises:
        SettingsError: it is no directory's name.
    """
    root = fspath(directory)
    if not isinstance(root, str) or not root or "\0" in root:
        # Nothing would be the root of the file system.
        raise SettingsError("directory", directory, "a directory")
    return root.rstrip("/") or "/"
