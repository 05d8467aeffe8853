"""A model of the records that a journal must give back, and the outside world of its trials."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import attrs

from meshq.abc import Disk, Env, Threads
from meshq.env import OpenSslTls
from meshq.errors import invariant
from meshq.limits import GIB
from meshq.store import CheckpointRecord, Journal, JournalOwner, JournalRecord
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._segment_format import NO_KEYS
from meshq.store.recovery._recovered_records import recovered_records
from meshq.store.recovery._recovery import Recovery, recover
from meshq.testing import InlineThreads, SimEntropy, SimWallClock
from meshq.testing._datagrams import NoDatagrams
from meshq.testing._node import NoNetwork

T = TypeVar("T")
ROOT_DIRECTORY = "/store"
CHECKPOINT_KIND = 200


def journal_env(
    disk: Disk, *, seed: int = 0, failpoint: Callable[[str], bool] | None = None, threads: Threads | None = None
) -> Env:
    """The outside world of a journal under test."""
    return Env(
        disk=disk,
        threads=InlineThreads() if threads is None else threads,
        network=NoNetwork(),
        datagrams=NoDatagrams(),
        tls=OpenSslTls(),
        wall=SimWallClock(),
        entropy=SimEntropy(random.Random(seed)),
        memory_bytes=GIB,
        failpoint=(lambda name: False) if failpoint is None else failpoint,
    )


@attrs.define
class ExpectedRecord:
    """A record that was placed."""

    kind: int
    payload: bytes = attrs.field(repr=lambda payload: f"{len(payload)} bytes")
    deletes: tuple[int, ...] = ()
    refs: tuple[int, ...] = ()
    tombstone: bool = False


class LostError(AssertionError):
    """A journal did not give back the records that it had to."""


@attrs.define(eq=False)
class Model:
    """The records that were placed in a journal."""

    placed: dict[int, ExpectedRecord] = attrs.field(factory=dict)
    #: Positions of each checkpoint that was asked for.
    checkpoints: list[list[int]] = attrs.field(factory=list)
    journal: Journal | None = None
    #: What the store is read with.
    keyring: Keyring = NO_KEYS

    def place(self, kind: int, payload: bytes, *, lazy: bool = False, **options: Any) -> int:
        """Place a record, and remember it."""
        invariant(self.journal is not None, "a journal is open")
        assert self.journal is not None
        position = self.journal.append_nowait(kind, (payload[:7], payload[7:]), lazy=lazy, **options)
        deletes, refs = tuple(options.get("deletes", ())), tuple(options.get("refs", ()))
        self.placed[position] = ExpectedRecord(kind, payload, deletes, refs, options.get("tombstone", False))
        return position

    def owner(self) -> JournalOwner:
        """The owner of the journal, who has a checkpoint and does nothing else."""

        def ignore(*_: object) -> None:
            return

        return JournalOwner(
            durable_moved=ignore, failed=ignore, full_changed=ignore, damaged=ignore, checkpoint=self.checkpoint
        )

    def checkpoint(self) -> list[CheckpointRecord]:
        """The owner's checkpoint: two records."""
        invariant(self.journal is not None, "a journal is open")
        assert self.journal is not None
        first = self.journal.last + 1
        drafts = [CheckpointRecord(CHECKPOINT_KIND, b"state %d/%d" % (first, part)) for part in range(2)]
        old = tuple(self.checkpoints[-1]) if self.checkpoints else ()
        self.checkpoints.append([first, first + 1])
        for number, draft in enumerate(drafts):
            self.placed[first + number] = ExpectedRecord(draft.kind, draft.payload, () if number else old)
        return drafts

    def truncate(self, last: int) -> None:
        """Forget the records that a crash has taken: the next life gives their positions again."""
        self.placed = {position: promise for position, promise in self.placed.items() if position <= last}
        self.checkpoints = [positions for positions in self.checkpoints if positions[-1] <= last]

    def alive(self, last: int) -> list[int]:
        """The living roots if the journal ends with ``last``."""
        dead: dict[int, None] = {}
        for position, promise in self.placed.items():
            if position <= last:
                dead.update(dict.fromkeys(promise.deletes))
        return [p for p, promise in self.placed.items() if p <= last and not promise.tombstone and p not in dead]

    def covered(self, last: int) -> int:
        """Up to where the last checkpoint speaks."""
        return max([positions[0] - 1 for positions in self.checkpoints if positions[-1] <= last], default=0)

    def check(self, records: Sequence[JournalRecord], last: int) -> None:
        """Compare with the records of a recovery that ended with ``last``; deleted records included.

        Raises: LostError.
        """
        alive = dict.fromkeys(self.alive(last))
        found = {record.position: record for record in records}
        if len(found) != len(records) or list(found) != sorted(found):
            raise LostError("records come twice or out of order")
        for record in records:
            promise = self.placed.get(record.position)
            if promise is None or record.position > last:
                raise LostError(f"record {record.position} was never placed")
            if ExpectedRecord(record.kind, record.payload, record.deletes, record.refs, record.tombstone) != promise:
                raise LostError(f"record {record.position} is not what was placed: {promise}")
            if record.deleted != (not record.tombstone and record.position not in alive):
                raise LostError(f"record {record.position}: deleted={record.deleted}")
        covered = self.covered(last)
        for position, promise in self.placed.items():
            if position > last:
                continue
            wanted = position in alive or (not promise.tombstone and bool(self.checkpoints) and position > covered)
            wanted |= promise.tombstone and any(target in alive for target in promise.refs)
            if wanted and position not in found:
                raise LostError(f"record {position} is lost: {promise}")
        living = [record.position for record in records if not record.tombstone and not record.deleted]
        if living != sorted(alive):
            raise LostError(f"living {living}, not {sorted(alive)}")


def recover_and_check(disk: Disk, model: Model, durable: int, last: int, seed: int = 1) -> list[JournalRecord]:
    """Recover a store, and compare it with all that may and must be there.

    Raises: LostError; whatever the recovery raises.
    """
    recovery = recover_store(disk, seed, model.keyring)
    found = recovery.manifest.last
    if not durable <= found <= last:
        raise LostError(f"the journal ends with {found}, but {durable} was acknowledged and {last} placed")
    records = list(recovered_records(disk, Layout(ROOT_DIRECTORY, model.keyring), recovery, deleted=True))
    model.check(records, found)
    return records


def recover_store(disk: Disk, seed: int = 1, keyring: Keyring = NO_KEYS) -> Recovery:
    """Recover the store of a test, without a journal around it."""
    layout = Layout(ROOT_DIRECTORY, keyring)
    for path in (layout.journal, layout.bindings):
        disk.make_directory(path)
    return recover(disk, layout, SimEntropy(random.Random(seed)))
