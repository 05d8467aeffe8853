"""A journal in memory, for tests of programs that keep records: the same promises, and no files."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import attrs
import trio

from meshq.errors import BusyError, ClosedError, NotFoundError, SettingsError, kind_of
from meshq.testing.conformance._journal import JournalPlace


@attrs.frozen
class MemoryRecord:
    """A record of a journal in memory."""

    position: int
    payload: bytes


class MemoryReplay(AsyncIterator[MemoryRecord]):
    """An iterator over the records at these positions, as far as they are not deleted."""

    def __init__(self, records: Mapping[int, bytes], positions: Sequence[int]) -> None:
        self._records = records
        self._positions = iter(positions)

    async def __anext__(self) -> MemoryRecord:
        await trio.lowlevel.checkpoint()
        for position in self._positions:
            payload = self._records.get(position)
            if payload is not None:
                return MemoryRecord(position, payload)
        raise StopAsyncIteration


class MemoryJournal(AbstractAsyncContextManager["MemoryJournal"]):
    """A journal in memory with the calls ``append``, ``append_many``, ``delete`` and ``replay`` of ``meshq.Journal``.

    ``MemoryJournalPlace`` makes it, and keeps its records.  Each call that writes takes ``place.delay`` seconds.
    """

    def __init__(self, place: MemoryJournalPlace) -> None:
        self._place = place
        self._open = False

    def __repr__(self) -> str:
        return f"<MemoryJournal records={len(self._place.records)} {'open' if self._open else 'closed'}>"

    async def __aenter__(self) -> MemoryJournal:
        # A block whose opening was cancelled is never left: nothing is taken before the last checkpoint.
        await trio.lowlevel.checkpoint()
        if self._place.journal is not None:
            raise BusyError("a journal is open here")
        self._place.journal, self._open = self, True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._place.journal, self._open = None, False
        await trio.lowlevel.cancel_shielded_checkpoint()

    async def append(self, payload: bytes) -> int:
        """Write one record; return its position.

        Checkpoint: always.  Cancellation: the record is there, or not.
        Raises:
            SettingsError: the payload is not bytes-like.
            ClosedError: the journal is not open, or was closed meanwhile; nothing was written.
        """
        return (await self.append_many([payload]))[0]

    async def append_many(self, payloads: Sequence[bytes]) -> list[int]:
        """Write records in order; return their positions.

        Checkpoint: always.  Cancellation: all of them are there, or none.
        Raises:
            SettingsError: a payload is not bytes-like.
            ClosedError: the journal is not open, or was closed meanwhile; nothing was written.
        """
        copies = [_payload(payload) for payload in payloads]
        self._check_open()
        place = self._place
        positions = list(range(place.last + 1, place.last + 1 + len(copies)))
        place.last += len(copies)
        await trio.sleep(place.delay)
        # It may have been closed meanwhile, and another one be open here.
        self._check_open()
        place.records.update(zip(positions, copies, strict=True))
        return positions

    async def delete(self, position: int) -> None:
        """Delete a record.

        Checkpoint: always.  Cancellation: done or not done.
        Raises:
            SettingsError: the position is not an integer.
            NotFoundError: no record has this position.
            ClosedError: the journal is not open, or was closed meanwhile; nothing changed.
        """
        if type(position) is not int:
            raise SettingsError("position", position, "what append returned")
        self._check_open()
        if position not in self._place.records:
            raise NotFoundError(f"no live record has position {position}")
        await trio.sleep(self._place.delay)
        self._check_open()
        self._place.records.pop(position, None)

    def replay(self) -> AsyncIterator[MemoryRecord]:
        """Iterate over the records in order, as they are at this call; a record that is deleted meanwhile is left out.

        Raises:
            ClosedError: the journal is not open.
        """
        self._check_open()
        return MemoryReplay(self._place.records, sorted(self._place.records))

    def _check_open(self) -> None:
        if not self._open:
            raise ClosedError("this journal is closed")


class MemoryJournalPlace(JournalPlace):
    """A place in memory: one journal after the other has its records.  ``delay``: seconds that each write takes."""

    def __init__(self, *, delay: float = 0.0) -> None:
        if type(delay) not in (int, float) or not 0 <= delay < math.inf:
            raise SettingsError("delay", delay, "seconds, from 0")
        self.delay: float = delay
        #: The records that are not deleted, by their positions.
        self.records: dict[int, bytes] = {}
        #: The highest position that was given.
        self.last: int = 0
        #: The journal that is open here.
        self.journal: MemoryJournal | None = None

    def open(self) -> MemoryJournal:
        """Return a journal, which is open in its block."""
        return MemoryJournal(self)

    def crashed(self) -> MemoryJournalPlace:
        """Return a place with the records that have been written."""
        other = type(self)(delay=self.delay)
        other.records, other.last = dict(self.records), self.last
        return other


def _payload(value: object) -> bytes:
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]
    except TypeError:
        raise SettingsError("payload", None, "bytes or something like bytes", shown=kind_of(value)) from None
