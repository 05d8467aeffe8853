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
from meshq.store._bell import Bell
from meshq.store._books import Books
from meshq.store._excerpts import Excerpts
from meshq.store._index import read_segment, remove_index, write_index
from meshq.store._manifest_format import SegmentEntry
from meshq.store._pair import NoRoomError
from meshq.store._segment_format import SALT_BYTES

#: The thread in which segments are read for this: commits and those who make room don't wait for it.
POOL: Final = "index"
#: What is sealed is left alone for so long: much of it is dead by then, and goes.
SETTLE_S: Final = 1.0
#: Segments that get their index while the journal is being closed; any others are read whole by the next life.
CLOSING_SEGMENTS: Final = 4


class Indexer:
    """Sees to it that each sealed segment of one journal has an index, and that all of them are what was written.

    ``forms``: of the indexes that were believed.
    """

    __slots__ = ("_bell", "_books", "_excerpts", "_forms", "_on_trust", "_stopping", "count", "damaged", "on_damaged")

    def __init__(self, books: Books, excerpts: Excerpts, forms: Mapping[int, int]) -> None:
        self._books = books
        self._excerpts = excerpts
        self._forms = dict(forms)
        #: Segments of which not all bytes were read in this life.
        self._on_trust = dict.fromkeys(forms)
        self._bell = Bell()
        self._stopping = False
        #: Indexes that were written.
        self.count = 0
        #: Segments that were found damaged, and how.
        self.damaged: dict[int, DamagedError] = {}
        #: Told of each of them.
        self.on_damaged: Callable[[DamagedError], None] | None = None
        books.on_switch = self._bell.ring

    def stop(self) -> None:
        """End ``run``."""
        self._stopping = True
        self._bell.ring()

    @property
    def indexed(self) -> int:
        """How many segments have an index that a start would use."""
        listed = self._books.manifest.numbers()
        return sum(number in listed for number in self._forms)

    @property
    def on_trust(self) -> int:
        """How many segments were not read whole yet since the journal was opened."""
        return len(self._trusted())

    @property
    def damaged_segments(self) -> int:
        """How many of the segments that count are damaged."""
        listed = self._books.manifest.numbers()
        return sum(number in listed for number in self.damaged)

    def _pending(self) -> list[SegmentEntry]:
        """The sealed segments that want an index, the oldest first."""
        entries = self._books.manifest.entries
        listed = dict.fromkeys(entry.number for entry in entries)
        self._forms = {number: form for number, form in self._forms.items() if number in listed}
        form = self._excerpts.form
        return [
            entry
            for entry in entries
            if entry.sealed and self._forms.get(entry.number) != form and entry.number not in self.damaged
        ]

    def _trusted(self) -> list[SegmentEntry]:
        """The segments that are to be proven, the oldest first."""
        return [
            entry
            for entry in self._books.manifest.entries
            if entry.number in self._on_trust and entry.number not in self.damaged
        ]

    async def run(self) -> None:
        """Do what there is to do, until ``stop``.

        Checkpoint: always.
        Cancellation: the segment under way is finished.
        Raises:
            OSError: the disk failed.
        """
        await self._settle()
        while not self._stopping:
            entry = await self._step()
            if self._stopping:
                return
            if entry is not None:
                with trio.move_on_after(entry.length / BACKGROUND_BYTES_PER_S):
                    await self._rest()
            else:
                await self._bell.wait()
                await self._settle()

    async def _step(self) -> SegmentEntry | None:
        """See to one segment; returns which.  None: there is nothing to do before another manifest."""
        pending = [] if self._books.room.full else self._pending()
        if pending and await self._write(pending[0]):
            return pending[0]
        trusted = self._trusted()
        if trusted:
            await self._look(trusted[0], self._prove_one)
            return trusted[0]
        return None

    async def _settle(self) -> None:
        with trio.move_on_after(SETTLE_S):
            await self._rest()

    async def _rest(self) -> None:
        """Until the end."""
        while not self._stopping:
            await self._bell.wait()

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
        salt = self._books.env.entropy.token(SALT_BYTES)
        try:
            found = await self._look(entry, partial(self._write_one, salt=salt))
        except NoRoomError:
            return False
        if found:
            self._forms[entry.number] = self._excerpts.form
            self.count += 1
        return True

    async def _look(self, entry: SegmentEntry, read: Callable[[SegmentEntry], None]) -> bool:
        """Read a segment in a thread; False if it is not there any more, or damaged.  Raises: NoRoomError, OSError."""
        books = self._books
        # Whoever removes files waits; whoever writes the manifest does not.
        async with books.files:
            if entry.number not in books.manifest.numbers():
                return False
            try:
                await books.env.threads.run(read, entry, pool=POOL)
            except DamagedError as error:
                self.damaged[entry.number] = error
                await books.env.threads.run(remove_index, books.env.disk, books.layout, entry.number, pool=POOL)
                self._forms.pop(entry.number, None)
                if self.on_damaged is not None:
                    self.on_damaged(error)
                return False
            self._on_trust.pop(entry.number, None)
        return True

    @property
    def _identity(self) -> tuple[bytes, bytes]:
        return self._books.manifest.node_id, self._books.manifest.journal_id

    def _write_one(self, entry: SegmentEntry, *, salt: bytes) -> None:
        books = self._books
        write_index(books.env.disk, books.layout, entry, self._identity, salt=salt, excerpts=self._excerpts)

    def _prove_one(self, entry: SegmentEntry) -> None:
        read_segment(self._books.env.disk, self._books.layout, entry, self._identity)
