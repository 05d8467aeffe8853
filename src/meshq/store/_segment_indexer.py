"""Reading sealed segments in the background and in no hurry: to index them, and to prove what a start took on trust.

A segment gets its index only when a durable manifest says that it is sealed: what is written there is final.  Until
then, and wherever the disk has no room for one, it is read whole at the next start.

A start that believes an index does not look at the bytes of that segment.  So they are read afterwards, once in each
life.  A segment that is damaged loses its index: the next start reads it whole, and refuses the store as it should.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

import trio

from meshq.errors import DamagedError
from meshq.limits import BACKGROUND_BYTES_PER_S
from meshq.store._journal_state import JournalState
from meshq.store._manifest_format import SegmentEntry
from meshq.store._ping_pong_file import DiskFullError
from meshq.store._record_prefix import RecordPrefix
from meshq.store._segment_format import SALT_BYTES
from meshq.store._segment_index import read_segment, remove_index, write_index
from meshq.store._wakeup import Wakeup

#: The thread in which segments are read for this: commits and those who make room don't wait for it.
POOL: Final = "index"
#: What is sealed, or found at a start, is left alone for so long: much of it is dead by then, and goes.
SETTLE_S: Final = 2.0
#: How often one looks again at what is not to be read yet, and how long nothing is written in an idle journal.
LOOK_S: Final = 1.0
#: A segment with more records than this takes so long in Python that others would wait for the interpreter: it is read
#: when the journal is idle, or when it has waited for long enough.
MANY_RECORDS: Final = 4_096
PATIENCE_S: Final = 60.0
#: Segments that get their index while the journal is being closed; any others are read whole by the next life.
CLOSING_SEGMENTS: Final = 4


class SegmentIndexer:
    """Sees to it that each sealed segment of one journal has an index, and that all of them are what was written.

    ``forms``: of the indexes that were believed; ``last``: the last position that was given.
    """

    __slots__ = (
        "_forms",
        "_idle_at",
        "_journal_state",
        "_last",
        "_on_trust",
        "_record_prefix",
        "_seen",
        "_stopping",
        "_wakeup",
        "count",
        "damaged",
        "on_damaged",
    )  # fmt: skip

    def __init__(
        self, state: JournalState, record_prefix: RecordPrefix, forms: Mapping[int, int], last: Callable[[], int]
    ) -> None:
        self._journal_state = state
        self._record_prefix = record_prefix
        self._forms = dict(forms)
        #: Segments of which not all bytes were read in this life.
        self._on_trust = dict.fromkeys(forms)
        self._last = last
        #: The last position when nothing was written for a while.
        self._idle_at = -1
        #: When each segment was first seen to want something.
        self._seen: dict[int, float] = {}
        self._wakeup = Wakeup()
        self._stopping = False
        #: Indexes that were written.
        self.count = 0
        #: Segments that were found damaged, and how.
        self.damaged: dict[int, DamagedError] = {}
        #: Told of each of them.
        self.on_damaged: Callable[[DamagedError], None] | None = None
        state.on_manifest_change = self._wakeup.wake

    def stop(self) -> None:
        """End ``run``."""
        self._stopping = True
        self._wakeup.wake()

    @property
    def indexed(self) -> int:
        """How many segments have an index that a start would use."""
        listed = self._journal_state.manifest.by_number()
        return sum(number in listed for number in self._forms)

    @property
    def on_trust(self) -> int:
        """How many segments were not read whole yet since the journal was opened."""
        return len(self._trusted())

    @property
    def damaged_segments(self) -> int:
        """How many of the segments that count are damaged."""
        listed = self._journal_state.manifest.by_number()
        return sum(number in listed for number in self.damaged)

    def _pending(self) -> list[SegmentEntry]:
        """The sealed segments that want an index, the oldest first."""
        entries = self._journal_state.manifest.entries
        listed = dict.fromkeys(entry.number for entry in entries)
        self._forms = {number: form for number, form in self._forms.items() if number in listed}
        form = self._record_prefix.form
        return [
            entry
            for entry in entries
            if entry.sealed and self._forms.get(entry.number) != form and entry.number not in self.damaged
        ]

    def _trusted(self) -> list[SegmentEntry]:
        """The segments that are to be proven, the oldest first."""
        return [
            entry
            for entry in self._journal_state.manifest.entries
            if entry.number in self._on_trust and entry.number not in self.damaged
        ]

    async def run(self) -> None:
        """Do what there is to do, until ``stop``.

        Checkpoint: always.
        Cancellation: the segment under way is finished.
        Raises:
            OSError: the disk failed.
        """
        while not self._stopping:
            wanted = self._wanted()
            ripe = next((job for job in wanted if self._ripe(job[0])), None)
            if ripe is not None:
                await self._see_to(*ripe)
            elif wanted:
                before = self._last()
                await self._wait(LOOK_S)
                self._idle_at = before if before == self._last() else -1
            else:
                await self._wakeup.wait()

    def _wanted(self) -> list[tuple[SegmentEntry, bool]]:
        """What there is to do: segments, and whether each is to be indexed, or proven only."""
        pending = [] if self._journal_state.allocator.full else self._pending()
        wanted = [(entry, True) for entry in pending]
        known = {entry.number for entry in pending}
        wanted += [(entry, False) for entry in self._trusted() if entry.number not in known]
        now = trio.current_time()
        self._seen = {entry.number: self._seen.get(entry.number, now) for entry, _ in wanted}
        return wanted

    def _ripe(self, entry: SegmentEntry) -> bool:
        """Whether a segment is to be read now."""
        age = trio.current_time() - self._seen[entry.number]
        if age < SETTLE_S:
            return False
        segment = self._journal_state.usage.segments.get(entry.number)
        few = segment is None or len(segment.sizes) <= MANY_RECORDS
        return few or self._last() == self._idle_at or age >= PATIENCE_S

    async def _see_to(self, entry: SegmentEntry, index: bool) -> None:
        """Read one segment, and leave the disk to others for a while.  Raises: OSError."""
        if not index:
            await self._look(entry, self._prove_one)
        elif not await self._write(entry):
            # There is no room.
            await self._wait(PATIENCE_S)
        await self._wait(entry.length / BACKGROUND_BYTES_PER_S)

    async def _wait(self, seconds: float) -> None:
        with trio.move_on_after(seconds):
            await self._rest()

    async def _rest(self) -> None:
        """Until the end."""
        while not self._stopping:
            await self._wakeup.wait()

    async def finish(self) -> None:
        """Index what was sealed last, now that the journal is being closed.

        Checkpoint: if there is something to do.
        Cancellation: the index under way is finished.
        Raises:
            OSError: the disk failed.
        """
        for entry in self._pending()[-CLOSING_SEGMENTS:]:
            if not await self._write(entry):
                return

    async def _write(self, entry: SegmentEntry) -> bool:
        """Index a segment; False if there is no room.  Raises: OSError."""
        salt = self._journal_state.env.entropy.token(SALT_BYTES)
        try:
            found = await self._look(entry, partial(self._write_one, salt=salt))
        except DiskFullError:
            return False
        if found:
            self._forms[entry.number] = self._record_prefix.form
            self.count += 1
        return True

    async def _look(self, entry: SegmentEntry, read: Callable[[SegmentEntry], None]) -> bool:
        """Read a segment in a thread; False if the segment is gone or damaged.  Raises: DiskFullError, OSError."""
        state = self._journal_state
        # Whoever removes files waits; whoever writes the manifest does not.
        async with state.files_lock:
            if entry.number not in state.manifest.by_number():
                return False
            try:
                await state.env.threads.run(read, entry, pool=POOL)
            except DamagedError as error:
                self.damaged[entry.number] = error
                await state.env.threads.run(remove_index, state.env.disk, state.layout, entry.number, pool=POOL)
                self._forms.pop(entry.number, None)
                if self.on_damaged is not None:
                    self.on_damaged(error)
                return False
            self._on_trust.pop(entry.number, None)
        return True

    @property
    def _identity(self) -> tuple[bytes, bytes]:
        return self._journal_state.manifest.node_id, self._journal_state.manifest.journal_id

    def _write_one(self, entry: SegmentEntry, *, salt: bytes) -> None:
        state = self._journal_state
        write_index(state.env.disk, state.layout, entry, self._identity, salt=salt, record_prefix=self._record_prefix)

    def _prove_one(self, entry: SegmentEntry) -> None:
        read_segment(self._journal_state.env.disk, self._journal_state.layout, entry, self._identity)
