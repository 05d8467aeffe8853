"""A small file that a crash leaves whole, in its old form or in its new one."""

from __future__ import annotations

from collections.abc import Callable

from meshq.abc import Disk, File


def replace_file(
    disk: Disk, directory: str, name: str, data: bytes, *, renames: Callable[[], None] | None = None
) -> None:
    """Put these bytes in place of a file of a directory; durable on return.

    ``renames``: called once the next call may change the file; an error before that leaves the old bytes for sure.

    Raises: OSError.
    """
    path = f"{directory}/{name}"
    file = open_or_create(disk, f"{path}.tmp")
    try:
        file.truncate(0)
        file.write_at(0, [data])
        file.sync()
    finally:
        file.close()
    if renames is not None:
        renames()
    disk.replace(f"{path}.tmp", path)
    disk.sync_directory(directory)


def open_or_create(disk: Disk, path: str) -> File:
    """Open a file; create it if there is none.  Raises: OSError."""
    try:
        return disk.open(path)
    except FileNotFoundError:
        return disk.open(path, create=True)
