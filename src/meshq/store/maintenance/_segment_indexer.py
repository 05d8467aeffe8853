"""The indexer: reads sealed segments in the background, to index them and to prove the bytes that a start did not.

A segment gets its index only when a durable manifest says that it is sealed: such a manifest entry is final.  Until
then, and as long as the disk has no space for an index, the next start reads the segment whole.

A start that uses an index does not read the bytes of that segment.  So the indexer reads them afterwards, once in each
life.  A damaged segment loses its index: the next start reads that segment whole, and refuses the store as it should.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from meshq.errors import DamagedError
from meshq.limits import BACKGROUND_BYTES_PER_S
from meshq.store.commit._commit_log import CommitLog
from meshq.store.commit._journal_state import JournalState
from meshq.store.directory._ping_pong_file import DiskFullError
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._record_prefix import RecordPrefix
from meshq.store.formats._segment_format import SALT_BYTES
from meshq.store.segments._segment_index import read_segment, remove_index, write_index

#: The pool of the thread that reads segments: commits and the allocator don't wait for it.
POOL: Final = "index"
#: Seconds before a new or recovered segment is read: many segments are removed before that.
SETTLE_S: Final = 2.0
#: Seconds between two looks at segments that are not to be read yet; also without a write until a journal is idle.
LOOK_S: Final = 1.0
#: A segment with more records than this takes so long in Python that other threads would wait for the interpreter: it
#: is read when the journal is idle, or after ``PATIENCE_S``.
MANY_RECORDS: Final = 4_096
PATIENCE_S: Final = 60.0
#: Segments that get their index while the journal is being closed; the next life reads the others whole.
CLOSING_SEGMENTS: Final = 4


class SegmentIndexer:
    """The background task that gives each sealed segment of one journal an index, and proves the bytes of all of them.

    ``forms``: the forms of the indexes that the start used; ``log`` knows the highest position; ``on_damaged`` is
    called for each damaged segment.
    """

    __slots__ = (
        "_first_seen",
        "_forms",
        "_idle_at",
        "_journal_state",
        "_log",
        "_on_damaged",
        "_record_prefix",
        "_stopping",
        "_unproven",
        "_wakeup",
        "count",
        "damaged",
    )  # fmt: skip

    def __init__(
        self,
        state: JournalState,
        log: CommitLog,
        record_prefix: RecordPrefix,
        forms: Mapping[int, int],
        on_damaged: Callable[[DamagedError], None],
    ) -> None:
        self._journal_state = state
        self._record_prefix = record_prefix
        self._forms = dict(forms)
        #: Segments whose bytes were not all read in this life.
        self._unproven = dict.fromkeys(forms)
        self._log = log
        self._on_damaged = on_damaged
        #: The last position when nothing was written for a while.
        self._idle_at = -1
        #: The time at which each segment was first due.
        self._first_seen: dict[int, float] = {}
        self._wakeup = state.manifest_changed
        self._stopping = False
        #: How many indexes were written.
        self.count = 0
        #: The errors of damaged segments, by number.
        self.damaged: dict[int, DamagedError] = {}

    def stop(self) -> None:
        """End ``run``."""
        self._stopping = True
        self._wakeup.wake()

    @property
    def indexed(self) -> int:
        """The number of segments with an index that a start would use."""
        listed = self._journal_state.manifest.by_number()
        return sum(number in listed for number in self._forms)

    @property
    def unproven_segments(self) -> int:
        """The number of segments that were not read whole since the journal was opened."""
        return len(self._unproven_entries())

    @property
    def damaged_segments(self) -> int:
        """The number of damaged segments in the manifest."""
        listed = self._journal_state.manifest.by_number()
        return sum(number in listed for number in self.damaged)

    def _pending(self) -> list[SegmentEntry]:
        """Return the sealed segments without a usable index, the oldest first."""
        entries = self._journal_state.manifest.entries
        listed = dict.fromkeys(entry.number for entry in entries)
        self._forms = {number: form for number, form in self._forms.items() if number in listed}
        form = self._record_prefix.form
        return [
            entry
            for entry in entries
            if entry.sealed and self._forms.get(entry.number) != form and entry.number not in self.damaged
        ]

    def _unproven_entries(self) -> list[SegmentEntry]:
        """Return the segments that are still to be proven, the oldest first."""
        return [
            entry
            for entry in self._journal_state.manifest.entries
            if entry.number in self._unproven and entry.number not in self.damaged
        ]

    async def run(self) -> None:
        """Index and prove segments until ``stop``.

        Checkpoint: always.
        Cancellation: the segment under way is finished.
        Raises:
            OSError: the disk failed.
        """
        while not self._stopping:
            wanted = self._pending_reads()
            due = next((job for job in wanted if self._is_due(job[0])), None)
            if due is not None:
                await self._read_segment(*due)
            elif wanted:
                before = self._log.last
                await self._wait(LOOK_S)
                self._idle_at = before if before == self._log.last else -1
            else:
                await self._wakeup.wait()

    def _pending_reads(self) -> list[tuple[SegmentEntry, bool]]:
        """Return the segments to read, and whether each is to be indexed or only to be proven."""
        pending = [] if self._journal_state.allocator.full else self._pending()
        wanted = [(entry, True) for entry in pending]
        known = {entry.number for entry in pending}
        wanted += [(entry, False) for entry in self._unproven_entries() if entry.number not in known]
        now = trio.current_time()
        self._first_seen = {entry.number: self._first_seen.get(entry.number, now) for entry, _ in wanted}
        return wanted

    def _is_due(self, entry: SegmentEntry) -> bool:
        """Whether a segment is to be read now."""
        age = trio.current_time() - self._first_seen[entry.number]
        if age < SETTLE_S:
            return False
        segment = self._journal_state.usage.segments.get(entry.number)
        few = segment is None or len(segment.sizes) <= MANY_RECORDS
        return few or self._log.last == self._idle_at or age >= PATIENCE_S

    async def _read_segment(self, entry: SegmentEntry, index: bool) -> None:
        """Read one segment, then leave the disk to other tasks for a while.  Raises: OSError."""
        if not index:
            await self._read_in_thread(entry, self._prove_one)
        elif not await self._write(entry):
            # The disk has no space.
            await self._wait(PATIENCE_S)
        await self._wait(entry.length / BACKGROUND_BYTES_PER_S)

    async def _wait(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._wait_until_stopped()

    async def _wait_until_stopped(self) -> None:
        while not self._stopping:
            await self._wakeup.wait()

    async def finish(self) -> None:
        """Index the segments that were sealed last, while the journal is being closed.

        Checkpoint: if there is a segment to index.
        Cancellation: the index under way is finished.
        Raises:
            OSError: the disk failed.
        """
        for entry in self._pending()[-CLOSING_SEGMENTS:]:
            if not await self._write(entry):
                return

    async def _write(self, entry: SegmentEntry) -> bool:
        """Index a segment; False if the disk has no space.  Raises: OSError."""
        salt = self._journal_state.env.entropy.token(SALT_BYTES)
        try:
            found = await self._read_in_thread(entry, partial(self._write_one, salt=salt))
        except DiskFullError:
            return False
        if found:
            self._forms[entry.number] = self._record_prefix.form
            self.count += 1
        return True

    async def _read_in_thread(self, entry: SegmentEntry, read: Callable[[SegmentEntry], None]) -> bool:
        """Read a segment in a thread; False if the segment is gone or damaged.  Raises: DiskFullError, OSError."""
        state = self._journal_state
        # The lock of the files, not of the manifest: a manifest may be written meanwhile.
        async with state.files_lock:
            if entry.number not in state.manifest.by_number():
                return False
            try:
                await state.env.threads.run(read, entry, pool=POOL)
            except DamagedError as error:
                self.damaged[entry.number] = error
                await state.env.threads.run(remove_index, state.env.disk, state.layout, entry.number, pool=POOL)
                self._forms.pop(entry.number, None)
                self._on_damaged(error)
                return False
            self._unproven.pop(entry.number, None)
        return True

    @property
    def _identity(self) -> tuple[bytes, bytes]:
        return self._journal_state.manifest.node_id, self._journal_state.manifest.journal_id

    def _write_one(self, entry: SegmentEntry, *, salt: bytes) -> None:
        state = self._journal_state
        write_index(state.env.disk, state.layout, entry, self._identity, salt=salt, record_prefix=self._record_prefix)

    def _prove_one(self, entry: SegmentEntry) -> None:
        read_segment(self._journal_state.env.disk, self._journal_state.layout, entry, self._identity)
