"""A look at the store of a node that asks for a backup, before it is run; all calls block."""

from __future__ import annotations

from collections.abc import Iterable

from meshq.abc import Disk
from meshq.errors import RefusedError
from meshq.ha import SharedDirectory
from meshq.ha.colocated import BackupRequest, check_place


def look_at_store(disk: Disk, request: BackupRequest, taken: Iterable[str], root: str) -> None:
    """Check that the directory of a request has the store of its node, at a place that is allowed; nothing is changed.

    Raises:
        SettingsError: without symbolic links it is a place that is not allowed.
        RefusedError: the store is not there, or can't be read.
        DamagedError: the store is damaged.
    """
    path, real = request.data_dir, disk.real_path
    try:
        check_place(real(path), [real(one) for one in taken], real(root) if root else "")
        found = SharedDirectory(disk, path, makes_store=False).node_id()
    except OSError as error:
        raise RefusedError(f"the store of {request.name!r} in {path!r} can't be read here: {error}") from error
    if found != request.node_id:
        what = f"the store of the node {found}" if found else "no store, or is not there"
        raise RefusedError(f"{path!r}, the directory of {request.name!r}, has {what}, at the host")
