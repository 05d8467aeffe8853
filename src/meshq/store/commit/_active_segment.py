"""The segment being written: batches are appended and synced, and a full segment gives way to the next."""

from __future__ import annotations

import trio

from meshq.limits import SECTOR_BYTES, SEGMENT_HEADER_BYTES
from meshq.store.allocation._pending_batch import PendingBatch
from meshq.store.commit._inline_sync_plan import InlineSync
from meshq.store.commit._journal_state import JournalState
from meshq.store.formats._batch_format import BatchData
from meshq.store.formats._manifest_format import SegmentEntry
from meshq.store.formats._segment_format import SALT_BYTES, SegmentHeader
from meshq.store.segments._segment_writer import PreallocatedSegment, SegmentWriter, write_segment_header


class ActiveSegment:
    """The segment being written, if there is one: each life begins without one."""

    __slots__ = ("_inline", "_state", "inline_count", "sync_count", "writer")

    def __init__(self, state: JournalState) -> None:
        self._state = state
        self._inline = InlineSync()
        self.writer: SegmentWriter | None = None
        self.sync_count: int = 0
        self.inline_count: int = 0

    @property
    def number(self) -> int:
        """The number of the segment; 0 without one."""
        return 0 if self.writer is None else self.writer.number

    def entries(self) -> dict[int, SegmentEntry]:
        """Return the manifest's segments by number, this segment as long as it is now."""
        entries = self._state.manifest.by_number()
        if self.writer is not None and self.writer.number in entries:
            entries[self.writer.number] = self.writer.entry()
        return entries

    def sync_percentile(self, share: float) -> float:
        """Return a percentile of the recent syncs, in seconds."""
        return self._inline.percentile(share)

    async def write(self, writer: SegmentWriter, batch_data: BatchData, size: int, durable: int) -> float:
        """Append a batch of ``size`` bytes at most, and sync; return the seconds that the sync took.

        ``writer`` writes this segment.  Raises: OSError.
        """
        env = self._state.env
        self.sync_count += 1
        if (
            self._inline.allows(size, trio.current_time())
            and env.threads.idle()
            and not env.failpoint("journal.thread_always")
        ):
            self.inline_count += 1
            return writer.write(batch_data, durable)
        return await env.threads.run(writer.write, batch_data, durable, pool="journal")

    def observe(self, seconds: float) -> None:
        """Record the duration of a sync that made records durable."""
        self._inline.observe(seconds, trio.current_time())

    async def write_watermark(self, first: int, durable: int) -> None:
        """Write an empty batch behind the last one, which shows that the last one was synced.  Raises: OSError."""
        writer = self.writer
        if writer is not None and writer.batches and writer.end + SECTOR_BYTES <= writer.capacity:
            await self.write(writer, BatchData(first, [], []), SECTOR_BYTES, durable)

    async def roll(self, batch: PendingBatch, size: int, durable: int) -> SegmentWriter:
        """Begin the next segment, for a batch of ``size`` bytes; the segment before is sealed.

        Raises:
            DiskFullError: the disk is full, and the journal is being closed.
            OSError: the disk failed.
        """
        state, first = self._state, batch.first
        preallocated = batch.take_preallocated(SEGMENT_HEADER_BYTES + size) or await state.allocator.allocate(
            SEGMENT_HEADER_BYTES + size
        )
        try:
            writer = await self._begun(preallocated, first, durable)
        except BaseException:
            # Neither the allocator nor this object closes the file later.
            preallocated.file.close()
            raise
        if self.writer is not None:
            self.writer.close()
        state.usage.add_segment(writer.number, first)
        self.writer = writer
        return writer

    async def _begun(self, preallocated: PreallocatedSegment, first: int, durable: int) -> SegmentWriter:
        """Write the header of a segment, and list the segment in the manifest."""
        state, manifest, old = self._state, self._state.manifest, self.writer
        header = SegmentHeader(
            number=preallocated.number,
            base=first,
            epoch=0,
            node_id=manifest.node_id,
            journal_id=manifest.journal_id,
            salt=state.env.entropy.token(SALT_BYTES),
            key_id=state.layout.keyring.current_id,
        )
        writer = SegmentWriter(preallocated, header, state.layout.keyring)
        await state.env.threads.run(write_segment_header, preallocated, header, pool="journal")
        sealed = [] if old is None else [old.entry(sealed=True)]
        await state.change_manifest(entries=[*sealed, writer.entry()], last=durable)
        return writer

    async def seal(self, durable: int) -> None:
        """Seal the segment in place of a watermark, so that the next open finds the end of this life.

        Raises: OSError.
        """
        writer, state = self.writer, self._state
        if writer is None:
            return
        if writer.last < writer.base:
            await state.change_manifest(without=[writer.number], last=durable)
            await state.remove_segments([writer.number])
        else:
            await state.change_manifest(entries=[writer.entry(sealed=True)], last=durable)

    def close(self) -> None:
        """Close the file."""
        if self.writer is not None:
            self.writer.close()
