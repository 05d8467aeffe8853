"""The journal: one log in one directory, for one owner at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from os import PathLike
from types import TracebackType

import trio
from trio import TaskStatus

from meshq.abc import Buffer, Env, RecordSource, ReplicationSink
from meshq.directories import StoreDirectories
from meshq.errors import (
    BusyError,
    ClosedError,
    JournalBrokenError,
    NotFoundError,
    SettingsError,
    UsageError,
    invariant,
    kind_of,
)
from meshq.ids import IDENTITY_BYTES, NodeId, Position
from meshq.limits import SEGMENT_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SINK_TIMEOUT_S
from meshq.logs import logger
from meshq.loops import check_in_trio
from meshq.settings import EncryptionKey, Secret
from meshq.settings import encryption_keys as check_keys
from meshq.statistics import JournalStatistics
from meshq.store._journal_block import JournalBlock
from meshq.store._open_journal import DISK_ERRORS, OpenJournal
from meshq.store.bodies._large_bodies import LargeBodyFiles
from meshq.store.commit._commit_log import CommitLog
from meshq.store.commit._journal_life import JournalLife
from meshq.store.commit._journal_owner import JournalOwner, OwnerLink
from meshq.store.directory._directories import make_directories, root_of, with_absolute_paths
from meshq.store.directory._store_lock import StoreLock
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._record import PLAIN, JournalRecord
from meshq.store.formats._record_prefix import NO_PREFIX, RecordPrefix
from meshq.store.reading._record_reader import RecordReader
from meshq.store.reading._replay import Replay
from meshq.store.recovery._recovered_records import recovered_records
from meshq.store.recovery._recovery import Recovery, recover

_log = logger("store")


class Journal:
    """A durable log of records on one directory.

    ``async with Journal(directory) as journal`` opens it, and closes it at the end.  An owner that has a nursery
    of its own calls ``open``, reads ``recovered``, calls ``attach``, starts ``run`` and ends with ``aclose``.

    ``encryption_keys``: 32 bytes each.  The first key encrypts; all keys read.
    ``directories``: the parts of the store that lie elsewhere.
    ``record_prefix``: how many bytes of each record the owner needs at a start; the segment indexes hold these.
    ``sink``: where records have to be durable, too, before they count as durable.

    ``segment_bytes_min`` is there for tests of rolls and compaction, which take smaller segments than are useful.
    """

    def __init__(
        self,
        directory: str | PathLike[str],
        *,
        segment_bytes: int = SEGMENT_BYTES,
        node_id: bytes | None = None,
        env: Env | None = None,
        segment_bytes_min: int = SEGMENT_BYTES_MIN,
        encryption_keys: Sequence[EncryptionKey | Secret | bytes | str] = (),
        directories: StoreDirectories | None = None,
        record_prefix: RecordPrefix = NO_PREFIX,
        sink: ReplicationSink | None = None,
    ) -> None:
        if not segment_bytes_min <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise SettingsError("segment_bytes", segment_bytes, f"{segment_bytes_min} to {SEGMENT_BYTES_MAX}")
        if node_id is not None and len(node_id) != IDENTITY_BYTES:
            raise SettingsError("node_id", node_id, f"{IDENTITY_BYTES} bytes")
        self._env_given = env
        self._segment_bytes = segment_bytes
        keyring = Keyring([key.reveal() for key in check_keys(encryption_keys)])
        self._layout = Layout(root_of(directory), keyring, directories or StoreDirectories())
        self._wanted_node_id = node_id
        self._record_prefix = record_prefix
        self._sink = sink
        self._lock = StoreLock()
        self._life = JournalLife()
        self._link = OwnerLink()
        self._parts_or_none: OpenJournal | None = None
        #: The records of the last life, until the owner has read them.
        self._recovery: Recovery | None = None
        self._closed = trio.Event()
        self._block: JournalBlock | None = None

    def __repr__(self) -> str:
        return f"<Journal {self._layout.root!r} {self.state} last={self.last} durable={self.durable}>"

    @property
    def _parts(self) -> OpenJournal:
        if self._parts_or_none is None:
            raise self._life.refusal()
        return self._parts_or_none

    @property
    def log(self) -> CommitLog:
        """The commit log, which places records; once the journal is open, for an owner that places many."""
        return self._parts.log

    @property
    def source(self) -> RecordSource:
        """The records on this disk; once the journal is open."""
        return self._parts.source

    @property
    def state(self) -> str:
        """``new``, ``opening``, ``open``, ``failed`` or ``closed``."""
        return self._life.shown

    @property
    def durable(self) -> Position:
        """All records up to here are on disk, and wherever the sink says."""
        return Position(0) if self._parts_or_none is None else self._parts_or_none.log.durable

    @property
    def last(self) -> Position:
        """The highest position given to a record."""
        return Position(0) if self._parts_or_none is None else self._parts_or_none.log.last

    @property
    def full(self) -> bool:
        """Whether the disk has no space for new records."""
        return self._parts_or_none is not None and self._parts_or_none.state.allocator.full

    @property
    def node_id(self) -> NodeId:
        """The id of the node that owns this journal; known once the journal is open."""
        if self._parts_or_none is None:
            raise UsageError("the node id of a journal is known once it is open")
        return NodeId(self._parts_or_none.state.manifest.node_id)

    @property
    def journal_id(self) -> bytes:
        """The id of this journal: a new journal in the same directory has another one."""
        return self._parts.log.journal_id

    @property
    def paging_directory(self) -> str:
        """The directory for the owner's pages."""
        return self._layout.paging

    def large_files(self) -> LargeBodyFiles:
        """Return the files of large bodies, which lie beside the open journal."""
        env = self._parts.state.env
        return LargeBodyFiles(env.disk, self._layout, env.entropy.token)

    # -- opening ---------------------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Lock the directory and recover its records; on return the recovered state is durable.

        Checkpoint: always.
        Cancellation: waits for the step under way; the journal is closed.
        Raises:
            BusyError: the store is open, here or in another process; or this journal was opened before.
            DamagedError: durable bytes are missing or changed; nothing was changed.
            SettingsError: the store is of a newer version or of another node, or a part is not in the given
                directory; nothing was changed.
            JournalBrokenError: the disk failed.
            ClosedError: ``aclose`` was called meanwhile; the journal is closed.
        """
        if self._life.state != "new":
            raise BusyError(f"a journal is opened once; this one is {self.state}")
        self._life.on("open")
        try:
            await self._recover()
        except BaseException as error:
            self._end()
            if isinstance(error, OSError):
                raise JournalBrokenError(f"{self._layout.root} can't be opened: {error}", outcome="not_done") from error
            raise

    async def _recover(self) -> None:
        self._layout = with_absolute_paths(self._layout)
        if self._env_given is None:
            from meshq.env import default_env

            check_in_trio("Journal")
            self._env_given = default_env()
        env = self._env_given
        await env.threads.run(self._enter_directory, env)
        self._check_not_closing()
        recovery = await env.threads.run(recover, env.disk, self._layout, env.entropy, self._wanted_node_id)
        self._check_not_closing()
        self._set_up(env, recovery)

    def _check_not_closing(self) -> None:
        if self._life.closing:
            raise ClosedError("the journal was closed while it was being opened")

    def _enter_directory(self, env: Env) -> None:
        # Kept here and not returned: the result of a cancelled call is lost.
        make_directories(env.disk, self._layout)
        self._lock.take(env.disk, self._layout)

    def _set_up(self, env: Env, recovery: Recovery) -> None:
        self._parts_or_none = OpenJournal(
            env,
            self._layout,
            recovery,
            life=self._life,
            link=self._link,
            segment_bytes=self._segment_bytes,
            record_prefix=self._record_prefix,
            sink=self._sink,
        )
        self._recovery = recovery
        for number, reason in recovery.refused.items():
            _log.warning("%s is refused: %s", self._layout.index(number), reason, extra={"event": "index_refused"})
        self._life.on("recover")

    def attach(self, owner: JournalOwner) -> None:
        """Call this owner from now on, in place of an earlier one; before ``run``, to miss nothing."""
        self._link.attach(owner)

    def detach(self) -> None:
        """Tell the owner of no durable position any more; records that are placed are written all the same."""
        self._link.mute()

    def recovered(self, *, deleted: bool = False, prefixes: bool = False) -> Iterator[JournalRecord]:
        """Iterate over the records that the journal held at ``open``, by position; once, before ``run``.

        Live records, and the tombstones that are still needed.  ``deleted=True``: also the records that were deleted
        after the owner's last checkpoint (``record.deleted``), whose soft state, such as the highest numbers given,
        is younger than that checkpoint; and deleted records that refer to live ones.  ``prefixes=True``: only the
        prefix of a record, where its segment's index has all that the owner needs (``record.missing``).

        Blocks while it reads.
        Raises:
            UsageError: the records were read before, or the journal is not open, or runs.
            DamagedError: durable bytes are missing or changed; while it is iterated.
            OSError: the disk failed; while it is iterated.
        """
        recovery = self._recovery
        if recovery is None or self._life.state != "open":
            raise UsageError("recovered() is read once, between open and run")
        self._recovery = None
        env = self._parts.state.env
        form = self._record_prefix.form if prefixes else 0
        return recovered_records(env.disk, self._layout, recovery, deleted=deleted, form=form)

    def read_recovered(self, positions: Sequence[int]) -> dict[int, bytes]:
        """Read the whole payloads of live records, between ``open`` and ``run``.

        Blocks while it reads.
        Raises:
            UsageError: the journal is not open, or runs.
            DamagedError: durable bytes are missing or changed.
            OSError: the disk failed.
        """
        if self._life.state != "open":
            raise UsageError("read_recovered() reads between open and run")
        found = RecordReader(self._parts.state).read_now(positions)
        return {position: record.payload for position, record in found.items()}

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write the placed records until ``aclose``.

        Checkpoint: always.
        Cancellation: the batch under way is finished; other placed records wait for ``aclose``.
        Raises:
            UsageError: the journal is not open, or ``run`` was called before.
            JournalBrokenError: the disk failed; nothing was acknowledged since.
        """
        if self._life.state not in ("open", "flushing") or not self._parts.begin():
            raise UsageError(f"run() needs an open journal that does not run yet; this one is {self.state}")
        self._recovery = None
        await self._parts.run(task_status)

    # -- placing -----------------------------------------------------------------------------------------------------

    def append_nowait(
        self,
        kind: int,
        parts: Sequence[Buffer],
        *,
        tombstone: bool = False,
        deletes: Sequence[int] = (),
        refs: Sequence[int] = (),
        lazy: bool = False,
        vital: bool = False,
    ) -> Position:
        """Place a record: give it a position, which is durable once ``durable`` has reached it.

        ``parts`` are joined only when they are written and must not change until then.  A record is live until another
        record deletes it; a tombstone is kept while a record that it deletes or refers to is.  ``lazy``: not worth
        a sync of its own for ``limits.LAZY_COMMIT_S``.  ``vital``: a small record that is needed to drain the journal;
        a full disk accepts it, as it accepts tombstones.  A record is atomic; two records are not.

        Raises:
            UsageError: the record is too large, its kind is out of range, or a tombstone has no target.
            AddressFullError: the disk has no space for new records; nothing was placed.
            JournalBrokenError, ClosedError: nothing was placed.
        """
        return self._parts.log.append_nowait(
            kind, parts, tombstone=tombstone, deletes=deletes, refs=refs, lazy=lazy, vital=vital
        )

    def atomic_batch(self, size_bytes: int) -> AbstractContextManager[None]:
        """Place records in one batch: after a crash all of them are there, or none is.

        The records are placed in one step, without a checkpoint, and have ``size_bytes`` at most.  The disk space is
        checked at the start; no record inside is refused for it.

        Raises:
            UsageError: no batch holds so many bytes; nothing was placed.
            AddressFullError: the disk has no space for new records; nothing was placed.
            JournalBrokenError, ClosedError: nothing was placed.
        """
        return self._parts.log.atomic_batch(size_bytes)

    def request_commit(self) -> None:
        """Commit the placed records without waiting for more."""
        self._parts.log.request_commit()

    async def wait_durable(self, position: int) -> None:
        """Return when the record at ``position`` is on disk.

        Checkpoint: when it is not there yet.
        Cancellation: the record stays placed.
        Raises:
            JournalBrokenError: the disk failed; whether the record was written is unknown.
        """
        await self._parts.log.wait_durable(position)

    def request_space(self, size_bytes: int, then: Callable[[], None]) -> bool:
        """Ask for disk space for a record, or an atomic batch, that is about to be placed; True: place it now.

        Otherwise ``then`` is called once: when there is space, and ``has_space`` is true during that call; or when the
        disk is known to be full.
        """
        return self._parts.log.request_space(size_bytes, then)

    def has_space(self, size_bytes: int) -> bool:
        """Whether a record that is placed now is certain to fit on the disk."""
        return self._parts.log.has_space(size_bytes)

    async def read(self, positions: Sequence[int]) -> dict[int, JournalRecord]:
        """Read the live records at durable positions; records that were deleted meanwhile are left out.

        Checkpoint: always.
        Cancellation: the call is waited for and its result lost.
        Raises:
            JournalBrokenError: the disk failed, or durable bytes are changed: the journal has failed.
            ClosedError: the journal is not open.
        """
        if self.state != "open":
            raise self._life.broken() if self._life.failure is not None else self._life.refusal()
        parts = self._parts
        await trio.lowlevel.checkpoint()
        try:
            return await RecordReader(parts.state).read(positions)
        except DISK_ERRORS as error:
            parts.fail(error)
            raise self._life.broken() from error

    # -- a log of plain records ------------------------------------------------------------------------------------

    async def append(self, payload: bytes) -> Position:
        """Write one record; on return it survives a power failure.

        Records are ordered as the calls began.  Records that arrive while a sync runs share the next.

        Checkpoint: always.
        Cancellation: the record is on disk whole or not at all; the caller can't tell which.
        Raises:
            SettingsError: the payload is not bytes-like; nothing was written.
            UsageError: the payload is over ``limits.RECORD_BYTES_MAX``; nothing was written.
            AddressFullError: the disk is full; nothing was written.
            JournalBrokenError: the disk failed; whether the record was written is unknown.
            ClosedError: the journal is not open; nothing was written.
        """
        position = self.append_nowait(PLAIN, (_payload(payload),))
        await self.wait_durable(position)
        return position

    async def append_many(self, payloads: Sequence[bytes]) -> list[Position]:
        """Write records in order; on return all of them survive a power failure.

        Checkpoint: always.
        Cancellation: the first records are on disk; the caller can't tell how many.
        Raises:
            SettingsError: a payload is not bytes-like; nothing was written.
            UsageError, AddressFullError: as ``append``; records before the one that was refused are written.
            JournalBrokenError: the disk failed; whether the records were written is unknown.
            ClosedError: the journal is not open; nothing was written.
        """
        positions = [self.append_nowait(PLAIN, (payload,)) for payload in list(map(_payload, payloads))]
        if positions:
            await self.wait_durable(positions[-1])
        return positions

    async def delete(self, position: int) -> None:
        """Delete a record; on return the deletion survives a power failure.

        Checkpoint: always.
        Cancellation: done or not done; delete again to be sure.
        Raises:
            SettingsError: the position is not an integer; nothing changed.
            NotFoundError: no live record has this position.
            JournalBrokenError: the disk failed; whether the record is deleted is unknown.
            ClosedError: the journal is not open; nothing changed.
        """
        if type(position) is not int:
            raise SettingsError("position", position, "what append returned")
        if position > self.durable:
            await self.wait_durable(min(position, self.last))
        if not self._parts.state.usage.is_live(position):
            raise NotFoundError(f"no live record has position {position}")
        await self.wait_durable(self.append_nowait(PLAIN, (), tombstone=True, deletes=(position,)))

    def replay(self) -> Replay:
        """Iterate over the live records of ``append`` in order, as they are at this call.

        A record that is deleted before the iteration reaches it is left out.
        """
        return Replay(self._parts.state, self._parts.segment)

    # -- closing ---------------------------------------------------------------------------------------------------

    async def aclose(self, *, sink_timeout: float = SINK_TIMEOUT_S) -> None:
        """Write the placed records, seal the segment and unlock the directory.  Silent the second time.

        A sink that does not have the records ``sink_timeout`` seconds later has failed, as the log says.

        Checkpoint: always.
        Cancellation: the journal is closed nevertheless.
        """
        with trio.CancelScope(shield=True):
            life = self._life
            if life.state == "new":
                life.on("close")
                self._closed.set()
            if life.closing:
                await self._closed.wait()
                return
            self._link.mute()
            if life.on("close") == "abandoned":
                # ``open`` ends the journal when its step under way is done.
                await self._closed.wait()
                return
            try:
                await self._parts.finish(sink_timeout)
            finally:
                self._end()

    def _end(self) -> None:
        if self._parts_or_none is not None:
            self._parts_or_none.close()
        self._lock.close()
        self._life.on("end")
        self._closed.set()

    # -- a block ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Journal:
        await self.open()
        self._recovery = None
        self._parts.begin()
        self._block = JournalBlock(self._parts, self._life)
        await self._block.enter()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        invariant(self._block is not None, "a block is left that was entered")
        return self._block is not None and await self._block.leave(error, self.aclose)

    # -- statistics ---------------------------------------------------------------------------------------------

    def statistics(self) -> JournalStatistics:
        """Return a snapshot of counts, sizes and the disk's speed."""
        return self._parts.statistics()


def _payload(value: object) -> bytes:
    """Copy a payload into bytes: the journal's thread reads it later."""
    if type(value) is bytes:
        return value
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]
    except TypeError:
        raise SettingsError("payload", None, "bytes or something like bytes", shown=kind_of(value)) from None
