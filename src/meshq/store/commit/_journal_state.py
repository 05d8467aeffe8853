"""The state that the parts of an open journal share: paths, live records, manifest, disk space."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import attrs
import trio

from meshq.abc import Env
from meshq.concurrency import Wakeup
from meshq.store.allocation._ballast import POOL
from meshq.store.allocation._segment_allocator import SegmentAllocator
from meshq.store.directory._ping_pong_file import DiskFullError
from meshq.store.formats._layout_format import Layout
from meshq.store.formats._manifest_format import Manifest, SegmentEntry
from meshq.store.recovery._recovery import truncate_segments, write_manifest
from meshq.store.segments._segment_index import remove_segment
from meshq.store.segments._segment_usage_machine import SegmentUsage

T = TypeVar("T")


@attrs.define(eq=False)
class JournalState:
    """The state of an open journal, without the batches that are being written."""

    env: Env
    layout: Layout
    usage: SegmentUsage
    manifest: Manifest
    allocator: SegmentAllocator
    #: Woken when a new manifest is durable, for the indexer.
    manifest_changed: Wakeup = attrs.field(factory=Wakeup)
    #: Held while a manifest is written, never while space for a manifest is waited for.
    manifest_lock: trio.Lock = attrs.field(factory=trio.Lock)
    #: Held while segments are removed, and while an index is written beside a segment.
    files_lock: trio.Lock = attrs.field(factory=trio.Lock)
    #: How many copies of the segments are being made.
    copies: int = 0
    #: Set when maintenance has done what it is doing; None: it does nothing now.
    maintained: trio.Event | None = None

    @contextmanager
    def maintaining(self) -> Iterator[None]:
        """Surround changes of segments that are not being written."""
        self.maintained = trio.Event()
        try:
            yield
        finally:
            self.maintained.set()
            self.maintained = None

    async def change_manifest(
        self, *, without: Sequence[int] = (), entries: Sequence[SegmentEntry] = (), last: int
    ) -> None:
        """Write the next manifest; wait on a full disk.

        What the caller does before its next checkpoint happens together with the change.

        Checkpoint: always.
        Raises:
            DiskFullError: the disk is full, and the journal is being closed.
            OSError: the disk failed.
        """
        while True:
            try:
                await self.try_manifest(without=without, entries=entries, last=last)
            except DiskFullError:
                if not await self.allocator.free_for_manifest():
                    await self.allocator.wait_for_manifest_space()
            else:
                return

    async def try_manifest(
        self, *, without: Sequence[int] = (), entries: Sequence[SegmentEntry] = (), last: int
    ) -> None:
        """Write the next manifest, or raise ``DiskFullError`` at once; see ``change_manifest``."""
        async with self.manifest_lock:
            manifest = self.manifest.changed(without=without, entries=entries, last=last)
            await self.run_in_background(write_manifest, self.env.disk, self.layout, manifest)
            self.manifest = manifest
        self.allocator.release_space()
        self.manifest_changed.wake()

    async def run_in_background(self, function: Callable[..., T], *arguments: object) -> T:
        """Call a function in a thread that is not the journal's."""
        return await self.env.threads.run(function, *arguments, pool=POOL)

    async def truncate_sealed(self) -> None:
        """Cut off the bytes behind the seals of earlier lives.  Raises: OSError."""
        async with self.files_lock:
            sealed = [entry for entry in self.manifest.entries if entry.sealed]
            await self.run_in_background(truncate_segments, self.env.disk, self.layout, sealed)

    async def remove_segments(self, numbers: Sequence[int]) -> None:
        """Remove the files of segments that the manifest no longer lists.  Raises: OSError."""
        async with self.files_lock:
            for number in numbers:
                await self.run_in_background(remove_segment, self.env.disk, self.layout, number)
        self.allocator.retry_now()
