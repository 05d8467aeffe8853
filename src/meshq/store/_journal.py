"""The journal: one log in one directory, for one owner at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import Any

import attrs
import trio
from trio import TaskStatus

from meshq.abc import Env
from meshq.directories import StoreDirectories
from meshq.errors import (
    BusyError,
    ClosedError,
    DamagedError,
    JournalBrokenError,
    SettingsError,
    UsageError,
    invariant,
)
from meshq.ids import IDENTITY_BYTES, NodeId, Position
from meshq.limits import SEGMENT_BYTES, SEGMENT_BYTES_MAX, SEGMENT_BYTES_MIN, SEGMENT_HEADER_BYTES
from meshq.logs import logger
from meshq.loops import check_in_trio
from meshq.settings import EncryptionKey, Secret
from meshq.settings import encryption_keys as check_keys
from meshq.statistics import JournalStatistics
from meshq.store._record_log import RecordLog
from meshq.store._record_reader import RecordReader
from meshq.store.allocation._batch_space import batch_bytes_for
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.allocation._segment_allocator import SegmentAllocator
from meshq.store.bodies._large_bodies import LargeBodyFiles
from meshq.store.commit._group_commit import ALL, NOTHING, RECORDS
from meshq.store.commit._journal_state import JournalState
from meshq.store.directory._directories import make_directories, root_of
from meshq.store.directory._ping_pong_file import DiskFullError
from meshq.store.directory._store_lock import StoreLock
from meshq.store.formats._keyring_format import Keyring
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._record import JournalRecord
from meshq.store.formats._record_prefix import NO_PREFIX, RecordPrefix
from meshq.store.maintenance._compactor import Compactor
from meshq.store.maintenance._segment_indexer import SegmentIndexer
from meshq.store.recovery._recovered_records import recovered_records
from meshq.store.recovery._recovery import Recovery, recover

_log = logger("store")
#: The errors of the disk, which end a journal in order.
DISK_ERRORS = (OSError, DamagedError, SettingsError)


class Journal(RecordLog):
    """A durable log of records on one directory.

    ``async with Journal(directory) as journal`` opens it, and closes it at the end.  An owner that has a nursery
    of its own calls ``open``, reads ``recovered``, starts ``run`` and ends with ``aclose``.

    ``encryption_keys``: 32 bytes each.  The first key encrypts; all keys read.
    ``directories``: the parts of the store that lie elsewhere.
    ``record_prefix``: how many bytes of each record the owner needs at a start; the segment indexes hold these.

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
    ) -> None:
        if not segment_bytes_min <= segment_bytes <= SEGMENT_BYTES_MAX:
            raise SettingsError("segment_bytes", segment_bytes, f"{segment_bytes_min} to {SEGMENT_BYTES_MAX}")
        if node_id is not None and len(node_id) != IDENTITY_BYTES:
            raise SettingsError("node_id", node_id, f"{IDENTITY_BYTES} bytes")
        super().__init__(env, segment_bytes)
        keyring = Keyring([key.reveal() for key in check_keys(encryption_keys)])
        self._layout = Layout(root_of(directory), keyring, directories or StoreDirectories())
        self._wanted_node_id = node_id
        self._lock = StoreLock()
        self._recovery: Recovery | None = None
        #: ``run`` was called; the tasks are running.
        self._runs = False
        self._running = False
        self._stopped = trio.Event()
        self._run_scope = trio.CancelScope()
        self._closing = False
        self._closed_event = trio.Event()
        self._torn_bytes = 0
        self._record_prefix = record_prefix
        self._refused_indexes = 0
        #: Called for each sealed segment that is found damaged in the background; its records are not read.
        self.on_damaged: Callable[[DamagedError], None] | None = None
        self._manager: Any = None
        self._block: trio.CancelScope | None = None

    def __repr__(self) -> str:
        return f"<Journal {self._layout.root!r} {self.state} last={self.last} durable={self.durable}>"

    @property
    def node_id(self) -> NodeId:
        """The id of the node that owns this journal; known once the journal is open."""
        if self._journal_state_or_none is None:
            raise UsageError("the node id of a journal is known once it is open")
        return NodeId(self._journal_state.manifest.node_id)

    @property
    def journal_id(self) -> bytes:
        """The id of this journal: a new journal in the same directory has another one."""
        return self._journal_state.manifest.journal_id

    @property
    def paging_directory(self) -> str:
        """The directory for the owner's pages."""
        return self._layout.paging

    def large_files(self) -> LargeBodyFiles:
        """Return the files of large bodies, which lie beside the open journal."""
        env = self._journal_state.env
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
        """
        if self.state != "new":
            raise BusyError(f"a journal is opened once; this one is {self.state}")
        self.state = "opening"
        self._layout = _with_absolute_paths(self._layout)
        if self._env_given is None:
            from meshq.env import real_env

            check_in_trio("Journal")
            self._env_given = real_env()
        env = self._env_given
        try:
            await env.threads.run(self._enter_directory, env)
            recovery = await env.threads.run(recover, env.disk, self._layout, env.entropy, self._wanted_node_id)
        except BaseException as error:
            self._end()
            if isinstance(error, OSError):
                raise JournalBrokenError(f"{self._layout.root} can't be opened: {error}", outcome="not_done") from error
            raise
        self._set_up(env, recovery)

    def _enter_directory(self, env: Env) -> None:
        # Kept here and not returned: the result of a cancelled call is lost.
        make_directories(env.disk, self._layout)
        self._lock.take(env.disk, self._layout)

    def _set_up(self, env: Env, recovery: Recovery) -> None:
        allocator = SegmentAllocator(env, self._layout, self._segment_bytes, recovery.manifest.next_segment)
        allocator.on_change = self._full_changed
        self._journal_state_or_none = JournalState(env, self._layout, recovery.usage, recovery.manifest, allocator)
        self._compactor = Compactor(self._journal_state, self._segment_bytes)
        self._indexer = SegmentIndexer(self._journal_state, self._record_prefix, recovery.forms, lambda: self.last)
        self._indexer.on_damaged = self._segment_damaged
        self._recovery = recovery
        self._torn_bytes = recovery.torn_bytes
        self._refused_indexes = len(recovery.refused)
        for number, reason in recovery.refused.items():
            path = self._layout.index(number)
            _log.warning("%s is refused: %s", path, reason, extra={"event": "index_refused"})
        self._covered = recovery.covered
        self._checkpoint_positions = tuple(recovery.checkpoint)
        self.last: Position = Position(recovery.manifest.last)
        self.durable: Position = self.last
        self._open = PendingBatch(self.last + 1, self._batch_capacity())
        self._refusing = NOTHING
        self.state = "open"

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
        if recovery is None or self._runs:
            raise UsageError("recovered() is read once, between open and run")
        self._recovery = None
        env = self._journal_state.env
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
        if self.state != "open" or self._runs:
            raise UsageError("read_recovered() reads between open and run")
        return {
            position: record.payload
            for position, record in RecordReader(self._journal_state).read_now(positions).items()
        }

    def _segment_damaged(self, error: DamagedError) -> None:
        _log.error("%s; the next start will refuse this store", error, extra={"event": "store_damaged"})
        if self.on_damaged is not None:
            self.on_damaged(error)

    def _full_changed(self) -> None:
        if self.state == "open" and not self._closing:
            self._refusing = RECORDS if self.full else NOTHING
            self._maintenance_wakeup.wake()
            self._space_wait.resume(self._has_space_behind)
            if self.on_full_changed is not None:
                self.on_full_changed()

    # -- running ---------------------------------------------------------------------------------------------------

    async def run(self, *, task_status: TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Write the placed records until ``aclose``.

        Checkpoint: always.
        Cancellation: the batch under way is finished; other placed records wait for ``aclose``.
        Raises:
            UsageError: the journal is not open, or runs.
            JournalBrokenError: the disk failed; nothing was acknowledged since.
        """
        if self.state != "open" or self._runs:
            raise UsageError(f"run() needs an open journal that does not run yet; this one is {self.state}")
        self._runs = True
        await self._run(task_status)

    async def _run(self, task_status: TaskStatus[None]) -> None:
        if self._closing:
            task_status.started()
            return
        self._running, self._recovery = True, None
        if self.checkpoint is not None:
            self._journal_state.allocator.request_spare()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_task, "commit")
                nursery.start_soon(self._run_task, "allocator")
                nursery.start_soon(self._run_task, "maintenance")
                nursery.start_soon(self._run_task, "index")
                task_status.started()
                try:
                    with self._run_scope:
                        await trio.sleep_forever()
                finally:
                    self._halt()
        except BaseExceptionGroup as group:
            raise (only := _only_error(group)) from only.__cause__
        finally:
            self._running = False
            self._stopped.set()
        if self._failure is not None:
            raise self._broken()

    async def _run_task(self, name: str) -> None:
        """Run one of the tasks; an error of the disk ends all of them, and leaves ``run`` as one error."""
        loops = {
            "commit": self._commit_loop,
            "allocator": self._journal_state.allocator.run,
            "maintenance": self._maintenance_loop,
            "index": self._indexer.run,
        }
        with trio.CancelScope(shield=True):
            try:
                await loops[name]()
            except DISK_ERRORS as error:
                self._fail(error)
            except BaseException as error:
                self._fail(error)
                raise

    def _fail(self, error: BaseException) -> None:
        super()._fail(error)
        self._run_scope.cancel()

    def _halt(self) -> None:
        super()._halt()
        self._indexer.stop()
        self._space_wait.resume(self._has_space_behind)

    def request_space(self, size_bytes: int, then: Callable[[], None]) -> bool:
        """Ask for disk space for a record, or an atomic batch, that is about to be placed; True: place it now.

        Otherwise ``then`` is called once: when there is space, and ``has_space`` is true during that call; or when the
        disk is known to be full.
        """
        need = batch_bytes_for(size_bytes)
        if size_bytes <= self.large_bytes:
            return self._has_space_behind(need) or self._space_wait.wait(need, then)
        if self._refusing != NOTHING or self._fits(need):
            return True
        return self._journal_state.allocator.request(SEGMENT_HEADER_BYTES + need, then)

    def has_space(self, size_bytes: int) -> bool:
        """Whether a record that is placed now is certain to fit on the disk."""
        need = batch_bytes_for(size_bytes)
        if size_bytes <= self.large_bytes or self._fits(need):
            return True
        return self._journal_state.allocator.has_segment(SEGMENT_HEADER_BYTES + need)

    async def read(self, positions: Sequence[int]) -> dict[int, JournalRecord]:
        """Read the live records at durable positions; records that were deleted meanwhile are left out.

        Checkpoint: always.
        Cancellation: the call is waited for and its result lost.
        Raises:
            JournalBrokenError: the disk failed, or durable bytes are changed: the journal has failed.
            ClosedError: the journal is not open.
        """
        if self.state != "open":
            raise self._broken() if self._failure is not None else ClosedError(f"the journal is {self.state}")
        await trio.lowlevel.checkpoint()
        try:
            return await RecordReader(self._journal_state).read(positions)
        except DISK_ERRORS as error:
            self._fail(error)
            raise self._broken() from error

    # -- closing ---------------------------------------------------------------------------------------------------

    async def aclose(self) -> None:
        """Write the placed records, seal the segment and unlock the directory.  Silent the second time.

        Checkpoint: always.
        Cancellation: the journal is closed nevertheless.
        """
        with trio.CancelScope(shield=True):
            if self._closing or self.state == "new":
                if self.state != "new":
                    await self._closed_event.wait()
                self.state = "closed" if self.state == "new" else self.state
                await trio.lowlevel.checkpoint()
                return
            self._closing = True
            if self.state in ("open", "failed"):
                await self._finish()
            self._end()

    async def _finish(self) -> None:
        self._refusing = ALL
        self._flushing = True
        if self._running:
            self._run_scope.cancel()
            await self._stopped.wait()
        try:
            if self.state == "open":
                self._stopping = True
                await self._commit_loop()
                # On a full disk the last segment stays open, as after a crash.
                with contextlib.suppress(DiskFullError):
                    await self._seal()
                    await self._indexer.finish()
                await self._journal_state.run_in_background(self._journal_state.allocator.remove_unused)
        except DISK_ERRORS as error:
            self._fail(error)

    async def _seal(self) -> None:
        """Seal the last segment in place of a watermark, so that the next open finds the end of this life."""
        writer, state = self._writer, self._journal_state
        if writer is None:
            return
        async with state.manifest_lock:
            if writer.last < writer.base:
                await state.change_manifest(without=[writer.number], last=self.durable)
                await state.remove_segments([writer.number])
            else:
                await state.change_manifest(entries=[writer.entry(sealed=True)], last=self.durable)

    def _end(self) -> None:
        if self._journal_state_or_none is not None:
            self._journal_state.allocator.close()
        for batch in (self._in_flight, *self.queued, self._open):
            if batch is not None and batch.preallocated is not None:
                batch.preallocated.file.close()
        if self._writer is not None:
            self._writer.close()
        self._lock.close()
        if self.state != "failed":
            self.state: str = "closed"
        self._refusing = ALL
        self._closed_event.set()

    # -- a block ---------------------------------------------------------------------------------------------------

    async def __aenter__(self) -> Journal:
        await self.open()
        self._manager = trio.open_nursery()
        nursery = await self._manager.__aenter__()
        self._block = nursery.cancel_scope
        self._runs = True
        nursery.start_soon(self._run_in_block)
        return self

    async def _run_in_block(self) -> None:
        try:
            await self._run(trio.TASK_STATUS_IGNORED)
        except JournalBrokenError:
            invariant(self._block is not None, "a block is open")
            if self._block is not None:
                self._block.cancel()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        await self.aclose()
        swallowed = False
        try:
            swallowed = bool(await self._manager.__aexit__(kind, error, trace))
        except BaseExceptionGroup as group:
            if error is None or _only_error(group) is not error:
                raise (only := _only_error(group)) from only.__cause__
        except trio.Cancelled:
            if error is None:
                raise
        if self._failure is not None:
            raise self._broken()
        return swallowed

    # -- statistics ---------------------------------------------------------------------------------------------

    def statistics(self) -> JournalStatistics:
        """Return a snapshot of counts, sizes and the disk's speed."""
        if self._journal_state_or_none is None:
            raise ClosedError(f"the journal is {self.state}")
        segments = self._journal_state.usage.segments.values()
        entries = self._journal_state.manifest.by_number()
        if self._writer is not None and self._writer.number in entries:
            entries[self._writer.number] = self._writer.entry()
        return JournalStatistics(
            state=self.state,
            full=self.full,
            segments=len(entries),
            bytes=sum(entry.length for entry in entries.values()),
            live_bytes=sum(segment.live_bytes for segment in segments),
            live_records=sum(segment.live_records for segment in segments),
            last=self.last,
            durable=self.durable,
            lag_records=self.last - self.durable,
            batches=self._batch_count,
            syncs=self._sync_count,
            inline_syncs=self._inline_count,
            sync_p50_s=self._inline.percentile(0.5),
            sync_p99_s=self._inline.percentile(0.99),
            compactions=self._compactor.count,
            torn_bytes=self._torn_bytes,
            indexed=self._indexer.indexed,
            refused_indexes=self._refused_indexes,
            unproven_segments=self._indexer.unproven_segments,
            damaged_segments=self._indexer.damaged_segments,
        )


def _with_absolute_paths(layout: Layout) -> Layout:
    """Make the paths absolute: the program may change its working directory while the journal is open."""
    outside = {part: str(Path(path).absolute()) for part, path in layout.directories.outside.items()}
    return attrs.evolve(layout, root=str(Path(layout.root).absolute()), directories=StoreDirectories(**outside))


def _only_error(errors: BaseException) -> BaseException:
    """Return the error of a group that matters: a cancellation only if there is nothing else."""
    while isinstance(errors, BaseExceptionGroup):
        real = [error for error in errors.exceptions if not isinstance(error, trio.Cancelled)]
        errors = (real or list(errors.exceptions))[0]
    return errors
