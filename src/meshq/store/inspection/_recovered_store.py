"""A store that is not open, recovered: its last position and its live records."""

from __future__ import annotations

import attrs

from meshq.abc import Disk, Entropy
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._record import JournalRecord
from meshq.store.recovery._recovered_records import recovered_records
from meshq.store.recovery._recovery import recover


@attrs.frozen
class RecoveredStore:
    """The state of a store after a recovery: the last position, and the live records with their tombstones."""

    last: int
    records: list[JournalRecord]


def recovered_store(disk: Disk, root: str, entropy: Entropy) -> RecoveredStore:
    """Recover the store in a directory without opening a journal, and read all its records.

    The store must not be open.  Blocks.
    Raises:
        DamagedError: durable bytes are missing or changed.
        SettingsError: the store is encrypted, or of a newer version.
        OSError: the disk failed.
    """
    layout = Layout(root)
    recovery = recover(disk, layout, entropy)
    records = list(recovered_records(disk, layout, recovery, deleted=False))
    return RecoveredStore(recovery.manifest.last, records)
