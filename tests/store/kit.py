"""A store on a simulated disk, and short ways to look at it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import attrs

from meshq.errors import DamagedError, MeshqError
from meshq.store import CheckpointRecord, Journal, JournalOwner, JournalRecord
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import INDEX_SUFFIX, Layout
from meshq.store.formats._manifest_format import Manifest
from meshq.store.inspection._check import Report, check_store
from meshq.store.recovery._recovered_records import recovered_records
from meshq.store.recovery._recovery import read_manifest
from meshq.testing import InlineThreads, SimDisk
from qa.journal.model import ROOT_DIRECTORY, journal_env, recover_store
from qa.journal.model import recover_and_check as recover_and_check

SEGMENT_BYTES = 16 * 1024


@attrs.define(eq=False)
class Store:
    """One directory on one disk, through several lives of a journal."""

    disk: SimDisk = attrs.field(factory=lambda: SimDisk(random.Random(0)))
    #: Chaos points that are on.
    failpoint: dict[str, bool] = attrs.field(factory=dict)
    lives: int = 0
    #: Set by a test that leaves the store damaged on purpose.
    damaged: bool = False
    idle: Callable[[], bool] = lambda: False
    #: What it is encrypted with, the newest first.
    keys: tuple[bytes, ...] = ()

    def journal(self, **options: Any) -> Journal:
        """A journal of the next life."""
        self.lives += 1
        env = journal_env(
            self.disk,
            seed=self.lives,
            failpoint=lambda name: self.failpoint.get(name, False),
            threads=InlineThreads(lambda: self.idle()),
        )
        options = {
            "segment_bytes": SEGMENT_BYTES,
            "segment_bytes_min": 1024,
            "env": env,
            "encryption_keys": self.keys,
            **options,
        }
        return Journal(ROOT_DIRECTORY, **options)

    def records(self, *, deleted: bool = False) -> list[JournalRecord]:
        """What a start right now would find; a disk of its own, so nothing is changed here."""
        copy = self.disk.copy()
        keyring = Keyring(self.keys)
        layout = Layout(ROOT_DIRECTORY, keyring)
        return list(recovered_records(copy, layout, recover_store(copy, keyring=keyring), deleted=deleted))

    def report(self) -> Report:
        """Every byte."""
        return check_store(self.disk, ROOT_DIRECTORY, Keyring(self.keys))

    def manifest(self) -> Manifest:
        """The newest manifest."""
        manifest = read_manifest(self.disk, Layout(ROOT_DIRECTORY))
        assert manifest is not None
        return manifest

    def indexes(self) -> list[str]:
        """The files of all indexes."""
        return [path for path in self.disk.files() if path.endswith(INDEX_SUFFIX)]

    def remove_indexes(self) -> None:
        """Leave the segments without indexes: a start reads all of them."""
        for path in self.indexes():
            self.disk.remove(path)

    def segments(self) -> list[str]:
        """The files of the segments that count."""
        return [Layout(ROOT_DIRECTORY).segment(entry.number) for entry in self.manifest().entries]


def _ignore(*_: object) -> None:
    return


def make_owner(
    *,
    durable_moved: Callable[[int], None] = _ignore,
    failed: Callable[[MeshqError], None] = _ignore,
    full_changed: Callable[[], None] = _ignore,
    damaged: Callable[[DamagedError], None] = _ignore,
    checkpoint: Callable[[], list[CheckpointRecord]] | None = None,
) -> JournalOwner:
    """An owner who listens only to what a test is about."""
    return JournalOwner(
        durable_moved=durable_moved,
        failed=failed,
        full_changed=full_changed,
        damaged=damaged,
        checkpoint=checkpoint,
    )


async def replayed(journal: Journal) -> list[tuple[int, bytes]]:
    """Position and payload of what a replay gives."""
    return [(record.position, record.payload) async for record in journal.replay()]
