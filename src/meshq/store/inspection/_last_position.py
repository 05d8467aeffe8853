"""The position up to which a store is durable, read without opening the store."""

from __future__ import annotations

from meshq.abc import Disk
from meshq.errors import SettingsError
from meshq.store.directory._ping_pong_file import read_whole
from meshq.store.directory._store_lock import layout_of
from meshq.store.formats._batch_format import records_of
from meshq.store.formats._scan_format import scan
from meshq.store.formats._segment_format import NO_KEYS
from meshq.store.recovery._recovery import read_manifest


def last_position(disk: Disk, root: str) -> int | None:
    """Return the last position; 0: there is no record; None: the store is encrypted.

    Blocks.
    Raises:
        DamagedError: the store can't be read.
        OSError: the disk failed.
    """
    try:
        layout = layout_of(disk, root, NO_KEYS)
        manifest = read_manifest(disk, layout)
    except FileNotFoundError:
        return 0
    except SettingsError:
        return None
    if manifest is None:
        return 0
    position = manifest.last
    for entry in manifest.entries:
        if not entry.sealed:
            path = layout.segment(entry.number)
            found = scan(read_whole(disk, path, None), path, entry, keyring=NO_KEYS)
            position = max([position, *(one for batch in found.batches for one, *_ in records_of(found.data, batch))])
    return position
