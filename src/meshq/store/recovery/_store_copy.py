"""A copy of another store, written segment by segment; it is a store once it is finished."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from meshq.abc import Disk, StoredBatch, StoredSegment
from meshq.errors import UsageError
from meshq.ids import NodeId
from meshq.settings import EncryptionKey
from meshq.store.directory._directories import make_directories
from meshq.store.directory._identity import Identity, write_identity
from meshq.store.formats._batch_format import SIZE_MASK, TABLE, BatchData
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import Manifest, SegmentEntry
from meshq.store.formats._segment_format import SALT_BYTES, SegmentHeader
from meshq.store.recovery._recovery import write_manifest
from meshq.store.segments._sealed_segment import write_sealed


class StoreCopy:
    """The copy of a store in an empty directory, with salts of its own; all calls block.

    ``node_id``, ``journal_id``: those of the store that is copied.  Until ``finish`` no start takes the directory for a
    store.
    """

    def __init__(
        self,
        disk: Disk,
        directory: str,
        token: Callable[[int], bytes],
        *,
        identity: tuple[bytes, bytes],
        encryption_keys: Sequence[EncryptionKey] = (),
    ) -> None:
        keyring = Keyring([key.reveal() for key in encryption_keys])
        self._disk = disk
        self._layout = Layout(directory, keyring)
        self._token = token
        self._identity = Identity(NodeId(identity[0]), identity[1])
        self._entries: list[SegmentEntry] = []

    def begin(self) -> None:
        """Make the directories and the identity.  Raises: SettingsError, OSError."""
        make_directories(self._disk, self._layout)
        write_identity(self._disk, self._layout, self._identity)

    def add(self, segment: StoredSegment, batches: Sequence[StoredBatch]) -> None:
        """Write a whole segment; durable on return.

        Raises:
            UsageError: the batches contradict each other.
            OSError: the disk failed, or is full.
        """
        if not batches:
            return
        header = SegmentHeader(
            number=segment.number,
            base=segment.base,
            epoch=0,
            node_id=self._identity.node_id,
            journal_id=self._identity.journal_id,
            salt=self._token(SALT_BYTES),
            key_id=self._layout.keyring.current_id,
        )
        data = [_batch_data(batch, compacted=segment.compacted) for batch in batches]
        written = write_sealed(self._disk, self._layout, header, data, durable=0, compacted=segment.compacted)
        self._entries.append(written.entry)

    def finish(self, last: int) -> None:
        """Make a store of the copy, whose records end at a position; durable on return.  Raises: OSError."""
        identity = self._identity
        manifest = Manifest(generation=0, node_id=identity.node_id, journal_id=identity.journal_id)
        write_manifest(self._disk, self._layout, manifest.changed(entries=self._entries, last=last))


def _batch_data(batch: StoredBatch, *, compacted: bool) -> BatchData:
    rows = list(batch.rows)
    if sum(row & SIZE_MASK for row in rows) != len(batch.content) or (batch.positions is not None) != compacted:
        raise UsageError(f"the batch from position {batch.first} contradicts itself")
    if batch.positions is None:
        return BatchData(batch.first, rows, [batch.content], batch.flags)
    return BatchData(batch.first, rows, [batch.content], batch.flags | TABLE, list(batch.positions))
