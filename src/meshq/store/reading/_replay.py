"""A replay: all live records of an open journal, in order, while the journal is written."""

from __future__ import annotations

from typing import Final

import trio

from meshq.abc import Buffer
from meshq.errors import JournalBrokenError
from meshq.limits import CHECKPOINT_MESSAGES
from meshq.store.commit._active_segment import ActiveSegment
from meshq.store.commit._journal_state import JournalState
from meshq.store.formats._batch_format import records_of
from meshq.store.formats._record import PLAIN, JournalRecord
from meshq.store.recovery._recovered_records import make_record
from meshq.store.segments._segment_index import read_segment

#: Segments whose bytes a replay holds; ranges overlap after compactions only.
HELD_SEGMENTS: Final = 3


class Replay:
    """An iterator over live records; writes, deletes and compactions may run meanwhile."""

    __slots__ = ("_held", "_positions", "_segment", "_state", "_turns")

    def __init__(self, state: JournalState, segment: ActiveSegment) -> None:
        self._state = state
        self._segment = segment
        self._positions = iter(state.usage.live_positions())
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
        found = self._state.usage.find_record(position)
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
        state = self._state
        # No manifest changes while this task holds the lock, so the segment's file stays.
        async with state.manifest_lock:
            located = state.usage.find_record(position)
            if located is None:
                return None
            number = located[0].number
            writer = self._segment.writer
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
