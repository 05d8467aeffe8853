"""The journal used by itself: append, delete, replay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import trio

from meshq.abc import Buffer
from meshq.errors import JournalBrokenError, NotFoundError, SettingsError, kind_of
from meshq.ids import Position
from meshq.limits import CHECKPOINT_MESSAGES
from meshq.store.formats._batch_format import records_of
from meshq.store.formats._record import PLAIN, JournalRecord
from meshq.store.maintenance._maintenance import Maintenance
from meshq.store.recovery._recovered_records import make_record
from meshq.store.segments._segment_index import read_segment


class RecordLog(Maintenance):
    """A log of plain records: append, delete and replay, without kinds, tombstones or checkpoints of an owner."""

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
        if not self._journal_state.usage.is_live(position):
            raise NotFoundError(f"no live record has position {position}")
        await self.wait_durable(self.append_nowait(PLAIN, (), tombstone=True, deletes=(position,)))

    def replay(self) -> Replay:
        """Iterate over the live records of ``append`` in order, as they are at this call.

        A record that is deleted before the iteration reaches it is left out.
        """
        return Replay(self)


def _payload(value: object) -> bytes:
    """Copy a payload into bytes: the journal's thread reads it later."""
    if type(value) is bytes:
        return value
    try:
        return bytes(memoryview(value))  # type: ignore[arg-type]
    except TypeError:
        raise SettingsError("payload", None, "bytes or something like bytes", shown=kind_of(value)) from None


#: Segments whose bytes a replay holds; ranges overlap after compactions only.
HELD_SEGMENTS: Final = 3


class Replay:
    """An iterator over live records; writes, deletes and compactions may run meanwhile."""

    __slots__ = ("_held", "_journal", "_positions", "_turns")

    def __init__(self, journal: RecordLog) -> None:
        self._journal = journal
        self._positions = iter(journal._journal_state.usage.live_positions())
        #: Segment -> its bytes, and for each position its row, start and end.
        self._held: dict[int, tuple[Buffer, dict[int, tuple[int, int, int]]]] = {}
        self._turns = 0

    def __aiter__(self) -> Replay:
        return self

    async def __anext__(self) -> JournalRecord:
        """Return the next live record.

        Checkpoint: at least every 64th call.
        Cancellation: the record is skipped if it was being read.
        Raises:
            DamagedError: the record is not what was written.
            JournalBrokenError: the disk can't be read.
        """
        self._turns += 1
        if self._turns % CHECKPOINT_MESSAGES == 0:
            await trio.lowlevel.checkpoint()
        for position in self._positions:
            record = await self._read(position)
            if record is not None and not record.tombstone and record.kind == PLAIN:
                return record
        raise StopAsyncIteration

    async def _read(self, position: int) -> JournalRecord | None:
        usage = self._journal._journal_state.usage
        found = usage.find_record(position)
        if found is None or not found[0].sizes[found[1]]:
            return None
        held = self._held.get(found[0].number)
        if held is None or position not in held[1]:
            held = await self._hold(position)
            if held is None:
                return None
        row, start, end = held[1][position]
        return make_record(held[0], position, row, (start, end), True)

    async def _hold(self, position: int) -> tuple[Buffer, dict[int, tuple[int, int, int]]] | None:
        """Read the segment that has this record; None if the record is gone."""
        state = self._journal._journal_state
        # No manifest changes while this task holds the lock, so the segment's file stays.
        async with state.manifest_lock:
            located = state.usage.find_record(position)
            if located is None:
                return None
            number = located[0].number
            writer = self._journal._writer
            if writer is not None and writer.number == number:
                entry = writer.entry(sealed=True)
            else:
                entry = state.manifest.by_number()[number]
            identity = (state.manifest.node_id, state.manifest.journal_id)
            try:
                found = await state.run_in_background(read_segment, state.env.disk, state.layout, entry, identity)
            except OSError as error:
                raise JournalBrokenError(f"{state.layout.segment(number)} can't be read: {error}") from error
        data = found.data
        spans = {at: (row, start, end) for batch in found.batches for at, row, start, end in records_of(data, batch)}
        if len(self._held) >= HELD_SEGMENTS:
            del self._held[next(iter(self._held))]
        self._held[number] = (data, spans)
        return data, spans
