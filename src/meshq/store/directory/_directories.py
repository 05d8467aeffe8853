"""The directories of a store, made durable and private, and the lock file in each of them."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from os import PathLike, fspath
from pathlib import Path

import attrs

from meshq.abc import Disk, File
from meshq.directories import StoreDirectories, why_exposed
from meshq.errors import BusyError, SettingsError
from meshq.store.formats._layout_format import Layout


def parent(path: str) -> str:
    """Return the directory that contains this path."""
    above, slash, _ = path.rstrip("/").rpartition("/")
    return above or (slash or ".")


def make_directories(disk: Disk, layout: Layout) -> None:
    """Make the missing directories in a store's own directory; durable on return.

    Raises:
        SettingsError: other users may write to one of its directories; nothing was made.
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
    """Yield the directories of a store that other users may write to: the setting that names each, the path, the
    problem.

    Raises:
        SettingsError: ``directory`` is not a path.
        OSError: a directory can't be read.
    """
    layout = Layout(root_of(directory), directories=directories)
    places = {"data_dir": layout.root}
    places |= {f"directories.{part}": path for part, path in directories.outside.items()}
    # The parts are checked, too: write access to a part is enough to change its files, and a link may lead anywhere.
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
    """Make a directory and its missing parents; durable on return.  Raises: OSError."""
    missing: list[str] = []
    above = path
    while not _exists(disk, above):
        missing.append(above)
        above = parent(above)
    # A life that was killed here has made the directory, and its name may be in memory only.
    if above not in (".", "/"):
        _sync_if_ours(disk, parent(above))
    for made in reversed(missing):
        disk.make_directory(made)
        disk.sync_directory(parent(made))


def _sync_if_ours(disk: Disk, path: str) -> None:
    try:
        disk.sync_directory(path)
    except OSError as error:
        # This process has made nothing in a directory that it may not read or write.
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
    """Lock a directory; return the open lock file, which unlocks it when it is closed.

    Raises:
        BusyError: the store is open, here or in another process.
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
    """Return the root of a store, without slashes at its end.

    Raises:
        SettingsError: ``directory`` is not a path.
    """
    root = fspath(directory)
    if not isinstance(root, str) or not root or "\0" in root:
        # An empty path would be the root of the file system.
        raise SettingsError("directory", directory, "a directory")
    return root.rstrip("/") or "/"


def with_absolute_paths(layout: Layout) -> Layout:
    """Make the paths absolute: the program may change its working directory while the journal is open."""
    outside = {part: str(Path(path).absolute()) for part, path in layout.directories.outside.items()}
    return attrs.evolve(layout, root=str(Path(layout.root).absolute()), directories=StoreDirectories(**outside))
